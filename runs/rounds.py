"""The rounds: every open socket, event stream and long poll of a process is looked after by one periodic look.

A connection outlives its key, its sign-in and its membership; none of them tells anybody when it ends. The look asks
the database, not Redis, so that it also ends what is open while Redis is away.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar
from weakref import WeakKeyDictionary

import structlog
from channels.db import database_sync_to_async

from quotas.errors import AccessEnded
from quotas.standing import Rights, Standing, rights_of

log = structlog.get_logger(__name__)
SECONDS = 2.0  # between two looks; what was taken away ends within twice that
T = TypeVar("T")


class Stay:
    """One open connection. `ended` is set once it is let in no more; `rights` are those of the last look."""

    def __init__(self, rounds: "Rounds", standing: Standing, rights: Rights) -> None:
        self.standing = standing
        self.rights = rights
        self.ended = asyncio.Event()
        self._rounds = rounds
        self._patience: asyncio.Timeout | None = None

    def heard(self, rights: Rights | None) -> None:
        """Take what a look found; None, or rights without `read`: nothing more may be sent."""
        if rights is not None and "read" in rights.scopes:
            self.rights = rights
            return
        self.ended.set()
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def look(self) -> Rights:
        """Look now, before an act. Raises AccessEnded."""
        await self._rounds.look([self.standing])
        if self.ended.is_set():
            raise AccessEnded
        return self.rights

    async def watched(self, frames: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """Yield the frames, and close them at the end. Raises AccessEnded once the connection is let in no more."""
        try:
            while True:
                try:
                    frame = await self._next_of(frames)
                except StopAsyncIteration:
                    return
                yield frame
        finally:
            await frames.aclose()

    async def _next_of(self, frames: AsyncIterator[T]) -> T:
        try:
            async with asyncio.timeout(None) as self._patience:
                if self.ended.is_set():
                    raise AccessEnded
                return await anext(frames)
        except TimeoutError:
            if self.ended.is_set():
                raise AccessEnded from None
            raise
        finally:
            self._patience = None

    def close(self) -> None:
        self._rounds.forget(self)


class Rounds:
    """The stays of one event loop, and the task that looks after them as long as there are any."""

    def __init__(self) -> None:
        self._stays: dict[Standing, set[Stay]] = {}
        self._task: asyncio.Task[None] | None = None

    def open(self, standing: Standing, rights: Rights) -> Stay:
        """Look after a connection until its stay is closed."""
        made = Stay(self, standing, rights)
        self._stays.setdefault(standing, set()).add(made)
        if self._task is None:
            self._task = asyncio.create_task(self._go(), name="rounds")
        return made

    def forget(self, stay: Stay) -> None:
        stays = self._stays.get(stay.standing, set())
        stays.discard(stay)
        if not stays:
            self._stays.pop(stay.standing, None)

    async def _go(self) -> None:
        try:
            while self._stays:
                await asyncio.sleep(SECONDS)
                await self.look(list(self._stays))
        finally:
            self._task = None  # which holds its loop

    async def look(self, standings: list[Standing]) -> None:
        """Tell the stays of these standings what they may now. While the database is away they stay as they are."""
        try:
            # A thread of its own: the one that sync requests share may hang in one of them.
            found = await database_sync_to_async(rights_of, thread_sensitive=False)(standings)
        except Exception as error:  # noqa: BLE001  whatever a driver raises: the next look decides
            log.warning("rounds.not_looked", error=repr(error)[:300])
            return
        for standing in standings:
            for stay in tuple(self._stays.get(standing, ())):
                stay.heard(found.get(standing))


_rounds: WeakKeyDictionary[asyncio.AbstractEventLoop, Rounds] = WeakKeyDictionary()


def current() -> Rounds:
    """Return the running event loop's rounds."""
    return _rounds.setdefault(asyncio.get_running_loop(), Rounds())
