"""WebSockets of runs and sessions: the same frames as SSE, with a credit window because daphne has no back-pressure.

The client acknowledges the last id; the server stops at WINDOW frames or bytes that are not acknowledged and closes
with 1008 if the window stays shut. A viewer resumes from its cursor, so closing costs nothing. A closed tab never
cancels a run.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import orjson
import structlog
from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import Error
from redis.exceptions import RedisError

from quotas.access import Caller, caller_for_key, caller_for_user
from quotas.errors import Refusal
from quotas.models import Account
from quotas.standing import Rights, Standing, rights_of, standing_of
from runs import follow, reader, rounds, tickets
from runs.errors import InvalidCursor
from runs.handshake import live, origin_is_ours, session_user
from runs.models import Run
from runs.selectors import get_run
from runs.services import cancel_run

log = structlog.get_logger(__name__)
PROTOCOL = "agentops"
KEY_MARK = "key."
WINDOW_FRAMES = 256
WINDOW_BYTES = 256 * 1024
SHUT_SECONDS = 10.0
MESSAGE_MAX = 64 * 1024


class Window:
    """What was sent and not acknowledged. Frames without an id count with the event before them."""

    def __init__(self) -> None:
        self._sent: deque[tuple[str, int]] = deque()
        self._bytes = 0
        self._opened = asyncio.Event()
        self._opened.set()

    def sent(self, event_id: str, size: int) -> None:
        self._sent.append((event_id, size))
        self._bytes += size
        if len(self._sent) >= WINDOW_FRAMES or self._bytes >= WINDOW_BYTES:
            self._opened.clear()

    def acknowledged(self, event_id: str) -> None:
        if not any(sent == event_id for sent, _ in self._sent):
            return
        while self._sent:
            sent, size = self._sent.popleft()
            self._bytes -= size
            if sent == event_id:
                break
        if len(self._sent) < WINDOW_FRAMES and self._bytes < WINDOW_BYTES:
            self._opened.set()

    async def open(self) -> bool:
        """Wait until there is credit. False when the window stayed shut for SHUT_SECONDS."""
        try:
            async with asyncio.timeout(SHUT_SECONDS):
                await self._opened.wait()
        except TimeoutError:
            return False
        return True


class StreamConsumer(AsyncWebsocketConsumer, ABC):
    """What the run and the session socket share: authentication, the window, client frames, closing."""

    caller: Caller
    stay: rounds.Stay
    channel_layer_alias = "none"  # the stream is the truth: these sockets need no layer, and no Redis for one

    async def connect(self) -> None:
        self._window = Window()
        self._tasks: list[asyncio.Task[None]] = []
        offered = list(self.scope.get("subprotocols", []))
        try:
            cursor = self._query("after")
            self.caller, standing = await self._authenticate(offered)
            frames = await self.open_stream(cursor)
        except InvalidCursor:
            await self._accept(offered)
            await self.close(code=4400)
        except Refusal as refusal:
            # Accepted first: a browser cannot tell the reasons of a refused handshake apart.
            await self._accept(offered)
            await self.close(code=4401 if refusal.status in {401, 403} else 4404)
        except (Error, RedisError) as error:
            log.warning("socket.postponed", error=str(error))
            await self._accept(offered)
            await self.close(code=1013)  # try again later
        else:
            await self._accept(offered)
            live.add(self)
            self.stay = rounds.current().open(standing, Rights(self.caller.scopes))
            self._tasks = [asyncio.create_task(self._pump(frames)), asyncio.create_task(self._leave_when_ended())]

    @abstractmethod
    async def open_stream(self, cursor: str) -> Any:
        """Return the frames after the cursor, or raise a Refusal."""

    async def disconnect(self, code: int) -> None:  # noqa: ARG002  Channels' signature
        if self in live:
            live.discard(self)
            self.stay.close()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        raise StopConsumer

    # -- who is it -------------------------------------------------------------------------------------------------
    def _query(self, name: str) -> str:
        raw: bytes = self.scope.get("query_string", b"")
        return parse_qs(raw.decode("utf-8", "replace")).get(name, [""])[0]

    async def _authenticate(self, offered: list[str]) -> tuple[Caller, Standing]:
        """Return the caller by key (subprotocol), ticket, or session cookie; a cookie needs a known origin."""
        key = next((part.removeprefix(KEY_MARK) for part in offered if part.startswith(KEY_MARK)), None)
        if key is not None:
            caller = await database_sync_to_async(caller_for_key)(key)
            return caller, standing_of(caller, None)
        ticket = self._query("ticket")
        if ticket:
            return await database_sync_to_async(_caller_for_ticket)(ticket, self.target())
        user = await session_user(self.scope) if origin_is_ours(self.scope) else None
        if user is None:
            raise _NotSignedIn
        caller = await database_sync_to_async(caller_for_user)(user, self._query("account") or None)
        return caller, standing_of(caller, self.scope["session"].session_key)

    def target(self) -> str:
        """Return what a ticket must have been made for."""
        return str(self.scope["url_route"]["kwargs"].get("run_id", ""))

    async def _accept(self, offered: list[str]) -> None:
        await self.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)

    # -- out -------------------------------------------------------------------------------------------------------
    async def _pump(self, frames: Any) -> None:
        try:
            async for frame in frames:
                if frame is None:
                    continue
                body = orjson.dumps(frame).decode()
                if not await self._window.open():
                    await self.close(code=1008)
                    return
                await self.send(text_data=body)
                event_id = frame.get("cursor") or frame.get("id")
                if event_id:
                    self._window.sent(event_id, len(body))
            await self.close(code=1000)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("socket.broke")
            await self.close(code=1011)
        finally:
            await frames.aclose()

    async def _leave_when_ended(self) -> None:
        await self.stay.ended.wait()
        await self.close(code=4401)

    # -- in --------------------------------------------------------------------------------------------------------
    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:  # noqa: ARG002
        if text_data is None:
            await self.close(code=1003)
            return
        if len(text_data) > MESSAGE_MAX:
            await self.close(code=1009)
            return
        try:
            frame = orjson.loads(text_data)
            kind = frame["type"]
        except (ValueError, TypeError, KeyError):
            await self.close(code=1007)
            return
        match kind:
            case "ack" if isinstance(frame.get("id"), str):
                self._window.acknowledged(frame["id"])
            case "ping":
                await self.send(text_data='{"type":"pong"}')
            case "cancel":
                try:
                    await self.cancel()
                except Refusal as refusal:
                    await self.send(text_data=orjson.dumps({"type": "error", "code": refusal.code}).decode())
            case _:
                await self.send(text_data='{"type":"error","code":"unknown_frame"}')

    async def cancel(self) -> None:
        """Cancel what is watched; a session socket has no one run to cancel."""
        await self.send(text_data='{"type":"error","code":"unknown_frame"}')


class RunConsumer(StreamConsumer):
    """`/ws/runs/{id}/?after=`."""

    run: Run

    async def open_stream(self, cursor: str) -> Any:
        reader.check_cursor(cursor)
        run_id: UUID = self.scope["url_route"]["kwargs"]["run_id"]
        self.run = await database_sync_to_async(get_run)(run_id, self.caller.account)
        if not self.caller.may("read"):
            raise _NotSignedIn
        return _with_hello(self.run, follow.follow_run(run_id, cursor))

    async def cancel(self) -> None:
        # Asked afresh: a role may have been lowered since the last look.
        if not self.caller.may("cancel") or "cancel" not in (await self.stay.look()).scopes:
            await self.send(text_data='{"type":"error","code":"scope_missing"}')
            return
        verdict = await database_sync_to_async(cancel_run)(
            run_id=self.run.pk, actor=self.caller.actor, account=self.caller.account
        )
        await self.send(text_data=orjson.dumps({"type": "cancel", "what": verdict.what}).decode())


class SessionConsumer(StreamConsumer):
    """`/ws/sessions/{key}/?after=`: the events of all runs of a session."""

    async def open_stream(self, cursor: str) -> Any:
        follow.split_session_cursor(cursor)
        if not self.caller.may("read"):
            raise _NotSignedIn
        key: str = self.scope["url_route"]["kwargs"]["key"]
        return follow.follow_session(self.caller.account.pk, key, cursor)


class _NotSignedIn(Refusal):
    """Sign in, or send a key or a ticket."""

    code = "not_signed_in"
    status = 401


async def _with_hello(run: Run, frames: Any) -> Any:
    try:
        yield {"type": "hello", "run": str(run.pk), "state": str(run.state)}
        async for frame in frames:
            yield frame
    finally:
        await frames.aclose()


def _caller_for_ticket(ticket: str, run_id: str) -> tuple[Caller, Standing]:
    """Return a caller who reads: for as long as whoever asked for the ticket is let in themselves."""
    found = tickets.redeem(ticket)
    if found is None or str(found.run_id) != run_id or found.standing not in rights_of([found.standing]):
        raise _NotSignedIn
    account = Account.objects.get(pk=found.account_id)
    return Caller(account, actor="ticket", scopes=frozenset({"read"})), found.standing
