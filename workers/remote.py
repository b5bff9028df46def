"""A handler's context in a process of its own: what it says goes to the worker, what it calls is answered from there.

Plain calls do not wait, unless the worker cannot keep up; usage is counted and priced in the worker before the call
returns, so that nothing is lost with this process.
"""

import asyncio
import builtins
import datetime as dt
import importlib
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from socket import socket
from typing import Any, NoReturn
from uuid import UUID

import orjson
import structlog
from django.conf import settings
from django.utils import timezone

from quotas.errors import InvalidCost, Refusal, UnknownPrice
from quotas.prices import check_amount
from runs import events
from runs.agents import AgentSpec, find_agent, get_agent
from runs.outcomes import ErrorClass, Failed, InvalidInput, Outcome
from runs.text import clean_json, clean_text
from workers.context import Context, Identity, InputFile
from workers.dialogue import ending
from workers.event_buffer import EventBuffer
from workers.executor import Execution, Stop, Time
from workers.frames import READ_BYTES, Body, FrameTooLarge, Message, Reader, encode
from workers.ports import AttemptIsFenced
from workers.usage import Usage

DELTA_PIECE = 64 * 1024  # letters of output text in one message
REFUSALS: dict[str, type[Refusal]] = {"UnknownPrice": UnknownPrice, "InvalidCost": InvalidCost}
ERRORS: dict[str, Callable[[str], Exception]] = {"InvalidInput": InvalidInput, "AttemptIsFenced": AttemptIsFenced}


class WorkerGone(RuntimeError):
    """The worker closed the connection: the attempt has ended there."""


class Link:
    """The connection to the worker. Thread-safe; for the handler's process alone, not for those it forks."""

    def __init__(self, connection: socket, reader: Reader) -> None:
        self._connection = connection
        self._reader = reader
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._open: dict[int, Future[Message]] = {}
        self._next = 1
        self._gone = False

    def say(self, message: bytes) -> None:
        """Send a message; waits while the worker cannot keep up."""
        if os.getpid() != self._pid:
            raise RuntimeError("ctx belongs to the process of its handler, not to those that it forks.")
        with self._sending:
            self._connection.sendall(message)

    def call(self, name: str, args: Body, data: bytes = b"") -> Message:
        """Have the worker do something and return its answer, {"value": …} and bytes. Raises what it raised there."""
        answer: Future[Message] = Future()
        with self._lock:
            if self._gone:
                raise WorkerGone
            number, self._next = self._next, self._next + 1
            self._open[number] = answer
        self.say(encode({"do": "call", "id": number, "name": name, "args": args}, data))
        body, block = answer.result()
        if "error" in body:
            _raise(body["error"])
        return body, block

    def listen(self, on_stop: Callable[[], None]) -> None:
        """Take answers until the worker closes the connection; `on_stop` is called when it asks for the end."""
        try:
            self._take(b"", on_stop)  # what came along with the first message
            while block := self._connection.recv(READ_BYTES):
                self._take(block, on_stop)
        except OSError:
            pass  # as if it had been closed
        with self._lock:
            self._gone, left = True, list(self._open.values())
        for answer in left:
            answer.set_exception(WorkerGone())

    def _take(self, block: bytes, on_stop: Callable[[], None]) -> None:
        for body, data in self._reader.feed(block):
            if body.get("do") == "stop":
                on_stop()
                continue
            with self._lock:
                answer = self._open.pop(body["id"])
            answer.set_result((body, data))


def _raise(said: Body) -> NoReturn:
    """Raise in the handler's call what the worker met there."""
    name, message = said["type"], said["message"]
    if name in REFUSALS:
        raise REFUSALS[name](**said["facts"])
    if name in ERRORS:
        raise ERRORS[name](message)
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        raise known(message)
    raise RuntimeError(f"{name}: {message}")


class RemoteEvents(EventBuffer):
    """Events go to the worker's buffer as they come; they are numbered there."""

    def __init__(self, fence: int, link: Link) -> None:
        super().__init__(fence, dt.timedelta(0))
        self._link = link

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        kind, data = clean_text(kind)[:60], clean_json(data)
        body = events.encode(kind, data, timezone.now())
        if len(body) > settings.EVENT_BYTES // 2:  # it may be one that is cut: no need to send what nobody will see
            data = orjson.loads(body)["data"]
        self._link.say(encode({"do": "emit", "kind": kind, "data": data}))

    def delta(self, text: str) -> None:
        for start in range(0, len(text), DELTA_PIECE):
            self._link.say(encode({"do": "delta", "text": text[start : start + DELTA_PIECE]}))


class RemoteUsage(Usage):
    """Usage is counted, priced and stored by the worker."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def add(
        self,
        model: str,
        *,
        input: int = 0,  # noqa: A002  the provider's own word
        output: int = 0,
        cached: int = 0,
        reasoning: int = 0,
        embedding: int = 0,
    ) -> None:
        counts = {"input": input, "output": output, "cached": cached, "reasoning": reasoning, "embedding": embedding}
        for count in counts.values():
            check_amount(count)  # what is no number might not even be sent
        self._link.call("usage.add", {"model": clean_text(model), "counts": counts})

    def add_cost(self, amount: int) -> None:
        check_amount(amount)
        self._link.call("usage.add_cost", {"amount": amount})

    @property
    def cost(self) -> int:
        return self.snapshot()[1]

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, Any], int]:
        found = self._link.call("usage.read", {})[0]["value"]
        return found["totals"], found["cost"]


class RemotePorts:
    """Files are stored and read by the worker. The waiting is done in a thread: the handler's loop goes on."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def store_artifact(self, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        args = {"name": name, "content_type": content_type}
        body, _ = await asyncio.to_thread(self._link.call, "artifact", args, data)
        stored: dict[str, Any] = body["value"]
        return stored

    async def open_file(self, file_id: UUID) -> InputFile:
        body, data = await asyncio.to_thread(self._link.call, "open_file", {"file_id": str(file_id)})
        return InputFile(body["value"]["name"], body["value"]["content_type"], data)

    async def flush(self) -> None:
        await asyncio.to_thread(self._link.call, "flush", {})


class RemoteContext(Context):
    """The context of a handler in a process of its own."""

    def __init__(self, identity: Identity, link: Link) -> None:
        self._remote = RemotePorts(link)
        super().__init__(identity, RemoteEvents(identity.fence, link), self._remote)
        self.usage = RemoteUsage(link)

    async def artifact(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> dict[str, Any]:
        return await self._remote.store_artifact(name, bytes(data), content_type)  # the worker emits the event


def work(connection: socket, reader: Reader, start: Body) -> None:
    """Run the handler that the worker's first message names, and say how it ended."""
    identity = Identity(**(start["identity"] | {"run_id": UUID(start["identity"]["run_id"])}))
    structlog.contextvars.bind_contextvars(**identity.log_fields)
    link = Link(connection, reader)
    try:
        spec = _find(identity.agent, start["module"])
    except Exception as error:  # noqa: BLE001  an agent's module may raise anything
        structlog.get_logger(__name__).exception("agent.not_found")
        message = f"The agent cannot be found in a process of its own: {error}"
        link.say(ending(Failed(ErrorClass.AGENT_BUG, type(error).__name__, message)))
        return
    asyncio.run(_run(spec, RemoteContext(identity, link), link, start["input"]))


def _find(name: str, module: str) -> AgentSpec:
    """Return the agent, here a handler of this very process. Its own module is tried before all of them."""
    with suppress(ImportError, ValueError):  # "__main__" is not this program; what is broken is told by the next line
        importlib.import_module(module)
    return replace(find_agent(name) or get_agent(name), isolation="loop", output_schema=None)  # checked in the worker


async def _run(spec: AgentSpec, ctx: RemoteContext, link: Link, run_input: Any) -> None:
    """Run the handler to its end. Limits in time are the worker's: here it has all it takes, and all grace."""
    execution = Execution(spec, ctx, run_input, time=Time(math.inf), grace=math.inf)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        ctx.mark_cancelled()  # at once: a handler that blocks the loop may look
        loop.call_soon_threadsafe(execution.stop, Stop.CANCEL)

    threading.Thread(target=link.listen, args=(stop,), name="worker", daemon=True).start()
    with ThreadPoolExecutor(1, thread_name_prefix="handler") as threads:
        outcome = await execution.run(threads)
        link.say(_last_words(outcome, told=ctx.was_told))


def _last_words(outcome: Outcome, *, told: bool) -> bytes:
    try:
        return ending(outcome, told=told)
    except FrameTooLarge as error:
        return ending(Failed(ErrorClass.NOT_STORABLE, "ResultTooLarge", str(error)))
