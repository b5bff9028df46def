"""One hub a web process: it hears the wakes of watched runs and reads each watched log once for all its viewers.

The stream is the truth; a wake only says "look". Lost wakes are healed by a slow sweep, which also reads the row of
every watched run that was silent, so that an ended run ends its viewers even if its terminal event was never appended
(protocol 3.5). Viewers never touch Redis: nobody's cancellation can leave a reply on a shared connection.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

import structlog
from channels.db import database_sync_to_async
from redis.exceptions import RedisError

from runs import broker, events, keys, lifecycle, metrics
from runs.events import Event
from runs.models import Run, Transition
from runs.selectors import unfinished
from runs.states import TERMINAL, TERMINAL_EVENTS

log = structlog.get_logger(__name__)
SWEEP_SECONDS = 2.0
TAIL_EVENTS = 500
READ_COUNT = 500
Pair = tuple[Event, str]


class Watch:
    """A watched run: the newest events, shared by all its viewers, and a bell that rings on news."""

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        self.tail: deque[Pair] = deque(maxlen=TAIL_EVENTS)
        self.last = ""
        self.viewers = 0
        self.frames: deque[tuple[int, dict[str, Any]]] = deque(maxlen=20)
        self.frame_count = 0
        self.silent = True
        self._bell = asyncio.Event()

    async def news(self) -> None:
        """Wait for the next news of any kind."""
        await self._bell.wait()

    def ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def add(self, pairs: list[Pair]) -> None:
        fresh = [p for p in pairs if events.split_id(p[0]["id"]) > events.split_id(self.last)]
        if fresh:
            self.tail.extend(fresh)
            self.last = fresh[-1][0]["id"]
            self.silent = False
            self.ring()

    def add_frame(self, frame: dict[str, Any]) -> None:
        self.frame_count += 1
        self.frames.append((self.frame_count, frame))
        self.ring()

    def after(self, cursor: str) -> list[Pair]:
        """Return what the tail holds after a cursor. Whether it continues there is the reader's to check."""
        if events.split_id(cursor) >= events.split_id(self.last):
            return []
        floor = events.split_id(cursor)
        return [p for p in self.tail if events.split_id(p[0]["id"]) > floor]


def _goes_on() -> bool:
    """Raise CancelledError in a task that was cancelled before: the client swallows it while it connects."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return True


class Hub:
    """The watches of one event loop, and the two coroutines that feed them."""

    def __init__(self) -> None:
        self._watches: dict[UUID, Watch] = {}
        self._bells: dict[str, set[asyncio.Event]] = {}  # other channels (sessions) and who waits on them
        self._dirty: set[UUID] = set()
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._pubsub: Any = None
        self._channels_changed = asyncio.Event()

    @asynccontextmanager
    async def watch(self, run_id: UUID) -> AsyncIterator[Watch]:
        """Watch a run for as long as the block lasts."""
        self._start()
        found = self._watches.get(run_id)
        if found is None:
            found = self._watches[run_id] = Watch(run_id)
            self._channels_changed.set()
        found.viewers += 1
        metrics.viewers.inc()
        self._mark(run_id)
        try:
            yield found
        finally:
            found.viewers -= 1
            metrics.viewers.dec()
            if not found.viewers and self._watches.get(run_id) is found:
                del self._watches[run_id]
                self._channels_changed.set()

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """Get a bell that rings on any message of a channel. A lost ring is the caller's to heal, by a time-out."""
        self._start()
        bell = asyncio.Event()
        self._bells.setdefault(channel, set()).add(bell)
        self._channels_changed.set()
        try:
            yield bell
        finally:
            self._bells[channel].discard(bell)
            if not self._bells[channel]:
                del self._bells[channel]
                self._channels_changed.set()

    def _start(self) -> None:
        if not self._tasks or any(task.done() for task in self._tasks):
            for task in self._tasks:
                task.cancel()
            self._tasks = [
                asyncio.create_task(self._hear(), name="hub.hear"),
                asyncio.create_task(self._read(), name="hub.read"),
                asyncio.create_task(self._sweep(), name="hub.sweep"),
            ]

    def _mark(self, run_id: UUID) -> None:
        self._dirty.add(run_id)
        self._work.set()

    # -- hearing ---------------------------------------------------------------------------------------------------
    async def _hear(self) -> None:
        """Keep the subscriptions equal to what is watched, and turn messages into marks. Reconnects by itself."""
        while _goes_on():
            try:
                async with broker.hub_client().pubsub() as pubsub:
                    await self._hear_on(pubsub)
            except (RedisError, OSError) as error:
                metrics.redis_errors.inc()
                log.warning("hub.reconnecting", error=str(error))
                await asyncio.sleep(1)

    async def _hear_on(self, pubsub: Any) -> None:
        subscribed: set[str] = set()
        self._channels_changed.set()
        while _goes_on():
            if self._channels_changed.is_set():
                self._channels_changed.clear()
                subscribed = await self._resubscribe(pubsub, subscribed)
            elif not subscribed:
                await self._channels_changed.wait()
            else:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=0.05)
                if message is not None:
                    self._heard(message["channel"].decode(), message["data"])

    async def _resubscribe(self, pubsub: Any, subscribed: set[str]) -> set[str]:
        wanted = {keys.run_wake(run_id) for run_id in self._watches} | set(self._bells)
        if wanted - subscribed:
            await pubsub.subscribe(*(wanted - subscribed))
        if subscribed - wanted:
            await pubsub.unsubscribe(*(subscribed - wanted))
        for run_id in self._watches:
            if keys.run_wake(run_id) not in subscribed:
                self._mark(run_id)  # an append between the first read and the subscription
        return wanted

    def _heard(self, channel: str, data: bytes) -> None:
        for bell in self._bells.get(channel, ()):
            bell.set()
        run_id = next((i for i in self._watches if keys.run_wake(i) == channel), None)
        if run_id is None:
            return
        if data.startswith(b"{"):
            self._watches[run_id].add_frame({"type": "retried_by", "run": json.loads(data)["retried_by"]})
        else:
            self._mark(run_id)

    # -- reading ---------------------------------------------------------------------------------------------------
    async def _read(self) -> None:
        while _goes_on():
            await self._work.wait()
            self._work.clear()
            dirty, self._dirty = self._dirty, set()
            try:
                await self._read_runs([self._watches[i] for i in dirty if i in self._watches])
            except Exception as error:  # noqa: BLE001  an odd entry in one log must not end the reader of all
                metrics.count_store_error(error)
                log.warning("hub.read_failed", error=repr(error)[:300])
                self._dirty |= dirty
                await asyncio.sleep(0.5)
                self._work.set()

    async def _read_runs(self, watches: list[Watch]) -> None:
        if not watches:
            return
        pipe = broker.hub_client().pipeline(transaction=False)
        for watch in watches:
            if watch.last:
                _ = pipe.xrange(keys.log(watch.run_id), min=f"({watch.last}", count=READ_COUNT)
            else:
                _ = pipe.xrevrange(keys.log(watch.run_id), count=TAIL_EVENTS)
        for watch, reply in zip(watches, await pipe.execute(), strict=True):
            was_live = bool(watch.last)
            fresh = events.bodies(watch.run_id, reply if was_live else reply[::-1])
            watch.add(fresh)
            if was_live and fresh:
                metrics.observe_lag(fresh[-1][0]["at"])
            if len(reply) == READ_COUNT:
                self._mark(watch.run_id)

    async def _sweep(self) -> None:
        """Look at every watched log now and then, and at the rows of those that were silent."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            silent = [watch for watch in self._watches.values() if watch.silent]
            for watch in self._watches.values():
                watch.silent = True
                self._mark(watch.run_id)
            if silent:
                with suppress(Exception):  # the database is away: the next sweep looks again
                    await self._serve_ended(silent)

    async def _serve_ended(self, silent: list[Watch]) -> None:
        rows = await database_sync_to_async(_ended_of)([watch.run_id for watch in silent])
        for watch in silent:
            if watch.run_id in rows and events.split_id(watch.last) < events.split_id(rows[watch.run_id][0]["id"]):
                watch.add([rows[watch.run_id]])


def _ended_of(run_ids: list[UUID]) -> dict[UUID, Pair]:
    """Return the terminal events, made from the rows, of those runs that have ended."""
    ended: list[Run] = [run for run in unfinished(run_ids).values() if run.state in TERMINAL]
    rows: list[Transition] = lifecycle.transitions_at([(run.pk, run.fence) for run in ended])
    lines = {row.run_id: lifecycle.line_of(row) for row in rows if row.kind in TERMINAL_EVENTS}
    # Without a `prev` the row does not say what came before: what the viewer has may not be all of it.
    return {
        run_id: (events.decode(run_id, line.id, line.body), line.prev or lifecycle.UNKNOWN)
        for run_id, line in lines.items()
    }


_hubs: dict[int, Hub] = {}


def current() -> Hub:
    """Return the running event loop's hub."""
    loop = asyncio.get_running_loop()
    return _hubs.setdefault(id(loop), Hub())
