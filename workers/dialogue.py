"""What a handler says from its process, done to its attempt's context; what it calls is answered, in its order."""

import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from quotas.errors import Refusal
from runs.outcomes import ErrorClass, Failed, Outcome, Succeeded
from workers.context import Context
from workers.event_buffer import DELTA_LETTERS
from workers.frames import Body, BrokenFrame, encode

UNSTORED_MAX = 200  # events a handler may emit before it has to wait until they are stored

Wait = Callable[[Coroutine[Any, Any, Any]], Any]


class HandlerFailed(Exception):
    """The handler raised, in its process. `failed` is what that is to the run."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class Stopped(Exception):
    """The handler ended because it was asked to, and has no answer."""


class Dialogue:
    """The worker's end of it, for one thread. `wait` runs a coroutine in the event loop and returns its result."""

    def __init__(self, ctx: Context, wait: Wait) -> None:
        self.ended = False
        self._ctx = ctx
        self._wait = wait
        self._unstored = 0.0
        self._value: Any = None
        self._problem: Exception | None = None
        self._calls: dict[str, Callable[[Body, bytes], tuple[Any, bytes]]] = {
            "artifact": self._artifact,
            "open_file": self._open_file,
            "flush": self._flush,
            "usage.add": self._add,
            "usage.add_cost": self._add_cost,
            "usage.read": self._read,
        }

    def result(self) -> Any:
        """Return what the handler returned. Raises HandlerFailed, Stopped."""
        if self._problem is not None:
            raise self._problem
        return self._value

    def take(self, body: Body, data: bytes) -> bytes | None:
        """Do what a message says, and return the answer to a call. Raises BrokenFrame, and what `wait` raises."""
        match body:
            case {"do": "emit", "kind": str(kind), "data": dict(facts)}:
                self._emit(kind, facts)
            case {"do": "delta", "text": str(text)}:
                self._ctx.delta(text)
                self._count(len(text) / DELTA_LETTERS)
            case {"do": "call", "id": int(number), "name": str(name), "args": dict(args)} if name in self._calls:
                return self._answer(number, name, args, data)
            case {"do": "ended", "how": str(how)}:
                self._end(how, body, data)
            case _:
                raise BrokenFrame(f"a message that means nothing: {str(body)[:200]}")
        return None

    def _emit(self, kind: str, facts: dict[str, Any]) -> None:
        match facts:
            case {"done": int(done), "total": int(total), "message": str(message)} if kind == "run.progress":
                self._ctx.progress(done, total, message)
            case _ if kind == "run.progress":
                raise BrokenFrame(f"a progress that is none: {str(facts)[:200]}")
            case _:
                self._ctx.emit(kind, facts)
        self._count(1)

    def _count(self, events: float) -> None:
        """Read nothing more while a full batch of events waits to be stored: the pipe then blocks the handler."""
        self._unstored += events
        if self._unstored >= UNSTORED_MAX:
            self._unstored = 0
            self._wait(self._ctx.flush())

    def _answer(self, number: int, name: str, args: Body, data: bytes) -> bytes:
        try:
            value, answered = self._calls[name](args, data)
            return encode({"id": number, "value": value}, answered)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001  it is the handler's, and is raised in its call
            facts = error.facts if isinstance(error, Refusal) else None
            said = {"type": type(error).__name__, "message": str(error), "facts": facts}
            return encode({"id": number, "error": json.loads(json.dumps(said, default=str))})

    def _end(self, how: str, body: Body, data: bytes) -> None:
        self.ended = True
        self._ctx.was_told = bool(body.get("told"))
        try:
            match how:
                case "returned":
                    self._value = json.loads(data)
                case "failed":
                    known = body["failed"] | {"error_class": ErrorClass(body["failed"]["error_class"])}
                    partial = data.decode("utf-8") if body["has_partial"] else None
                    self._problem = HandlerFailed(Failed(**known, partial_json=partial))
                case _:
                    self._problem = Stopped()
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BrokenFrame(f"an end that cannot be read: {error}") from error

    # -- calls -----------------------------------------------------------------------------------------------------
    def _artifact(self, args: Body, data: bytes) -> tuple[Any, bytes]:
        return self._wait(self._ctx.artifact(args["name"], data, args["content_type"])), b""

    def _open_file(self, args: Body, _data: bytes) -> tuple[Any, bytes]:
        file = self._wait(self._ctx.open_file(args["file_id"]))
        return {"name": file.name, "content_type": file.content_type}, file.data

    def _flush(self, _args: Body, _data: bytes) -> tuple[Any, bytes]:
        self._unstored = 0
        self._wait(self._ctx.flush())
        return None, b""

    def _add(self, args: Body, _data: bytes) -> tuple[Any, bytes]:
        self._ctx.usage.add(args["model"], **args["counts"])
        return None, b""

    def _add_cost(self, args: Body, _data: bytes) -> tuple[Any, bytes]:
        self._ctx.usage.add_cost(args["amount"])
        return None, b""

    def _read(self, _args: Body, _data: bytes) -> tuple[Any, bytes]:
        totals, cost = self._ctx.usage.snapshot()
        return {"totals": totals, "cost": cost}, b""


def ending(outcome: Outcome, *, told: bool = False) -> bytes:
    """Return a handler's last message: it returned, it failed, or it was stopped. Raises FrameTooLarge.

    `told`: it knew that it had to stop, so that what it returned may not be the whole.
    """
    match outcome:
        case Succeeded(result_json):
            return encode({"do": "ended", "how": "returned", "told": told}, result_json.encode("utf-8"))
        case Failed():
            known = asdict(outcome)
            partial = known.pop("partial_json")
            body = {"do": "ended", "how": "failed", "told": told, "failed": known, "has_partial": partial is not None}
            return encode(body, (partial or "").encode("utf-8"))
        case _:
            return encode({"do": "ended", "how": "stopped"})
