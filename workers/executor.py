"""Running one handler under its time limit, and turning every way it can end into an Outcome."""

import asyncio
import contextvars
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog
from django.db import close_old_connections
from jsonschema import Draft202012Validator

from quotas.errors import UnknownPrice
from runs.agents import AgentSpec
from runs.outcomes import Cancelled, ErrorClass, Failed, Fatal, Interrupted, Outcome, Succeeded
from runs.results import dumps
from runs.text import clean_text
from workers.context import Context

log = structlog.get_logger(__name__)
MESSAGE_MAX = 4000
TRACEBACK_MAX = 20_000


class Stop(StrEnum):
    """Why a handler is asked to stop before it is done."""

    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a handler raised, as a value: SystemExit and its like would end the event loop."""

    error: BaseException


class Execution:
    """One handler at work. `stop` may be called from the loop at any time; the first reason counts."""

    def __init__(self, spec: AgentSpec, ctx: Context, run_input: Any, *, time_limit: float, grace: float) -> None:
        self.ctx = ctx
        self.abandoned: asyncio.Task[Any] | None = None  # the handler, when it ignored its cancellation
        self.reason: Stop | None = None
        self._spec = spec
        self._input = run_input
        self._time_limit = time_limit
        self._grace = grace
        self._stopped = asyncio.Event()

    def stop(self, reason: Stop) -> None:
        """Ask the handler to stop. Repeating it changes nothing."""
        if self.reason is None:
            self.reason = reason
            self.ctx.mark_cancelled()
            self._stopped.set()

    async def run(self, threads: ThreadPoolExecutor) -> Outcome:
        """Run the handler to its end, its limit or its stop, and say how it ended. Never raises.

        A handler that is stopped before it began does not begin.
        """
        if self._stopped.is_set():
            return self._outcome(None)
        task = asyncio.create_task(self._call(threads), name=f"run {self.ctx.run_id}")
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({task, stopped}, timeout=self._time_limit, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.stop(Stop.TIMEOUT)
                await self._end(task)
        finally:
            stopped.cancel()
        return self._outcome(task)

    async def _end(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the handler and give it its grace; one that does not end is abandoned (protocol 7.5)."""
        task.cancel()
        await asyncio.wait({task}, timeout=self._grace)
        if not task.done():
            self.abandoned = task
            log.warning("handler.abandoned", run_id=self.ctx.run_id, agent=self._spec.name, reason=self.reason)
            task.add_done_callback(_forget)

    async def _call(self, threads: ThreadPoolExecutor) -> Any:
        handler: Callable[..., Any] = self._spec.handler
        try:
            if inspect.iscoroutinefunction(handler):
                return await handler(self.ctx, self._input)
            return await self._in_thread(threads)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  a handler may raise anything; it fails its own run only
            return _Raised(error)

    async def _in_thread(self, threads: ThreadPoolExecutor) -> Any:
        """Run a sync handler. A thread cannot be cancelled: after a stop its end is waited for, within the grace."""
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(threads, context.run, self._guarded)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            return await asyncio.shield(future)

    def _guarded(self) -> Any:
        """Call the sync handler; what it raises is a value, because a future refuses StopIteration and never ends."""
        close_old_connections()  # the thread's last use of the database may be long ago
        try:
            return self._spec.handler(self.ctx, self._input)
        except BaseException as error:  # noqa: BLE001  as above
            return _Raised(error)
        finally:
            close_old_connections()

    def _outcome(self, task: "asyncio.Task[Any] | None") -> Outcome:
        ended = task is not None and task.done() and not task.cancelled()
        value = task.result() if task is not None and ended else None
        if self.reason is Stop.TIMEOUT:
            return Failed(ErrorClass.TIMEOUT, "TimeLimit", f"The time limit of {self._time_limit:g} s passed.")
        if ended and not isinstance(value, _Raised):
            return self._result(value)
        if self.reason is Stop.CANCEL:
            return Cancelled()
        if self.reason is Stop.DRAIN:
            return Interrupted("the worker was stopped before the run could end")
        if self.reason is Stop.LOST:
            return Interrupted("the worker could not renew its lease")
        if isinstance(value, _Raised):
            return _failure(value.error)
        return Failed(ErrorClass.AGENT_BUG, "CancelledError", "The handler cancelled itself.")

    def _result(self, value: Any) -> Outcome:
        """Check and serialise what the handler returned."""
        try:
            text = dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            return Failed(ErrorClass.AGENT_BUG, type(error).__name__, f"The result is not JSON: {error}"[:MESSAGE_MAX])
        validator = self._spec.output_validator
        if validator is not None:
            problem = _misfit(validator, value)
            if problem is not None:
                message = f"The result does not fit the output schema: {problem}"[:MESSAGE_MAX]
                return Failed(ErrorClass.BAD_OUTPUT, "BadOutput", clean_text(message), partial_json=text)
        return Succeeded(text)


def _misfit(validator: Draft202012Validator, value: Any) -> str | None:
    """Return what is wrong with a value, or with the schema it should fit; None when it fits."""
    try:
        problem = next(iter(validator.iter_errors(value)), None)
    except Exception as error:  # noqa: BLE001  a schema that cannot be applied must not leave the run without an end
        return f"the schema cannot be applied: {error}"
    return None if problem is None else str(problem.message)


def _failure(error: BaseException) -> Failed:
    match error:
        case Fatal():
            error_class = _class_of(error)
        case UnknownPrice():
            error_class = ErrorClass.UNKNOWN_PRICE
        case _:
            error_class = ErrorClass.AGENT_BUG
    return Failed(
        error_class,
        type(error).__name__[:120],
        cut(clean_text(_message_of(error)), MESSAGE_MAX),
        cut(clean_text(_traceback_of(error)), TRACEBACK_MAX),
    )


def _class_of(error: Fatal) -> ErrorClass:
    """Return the class an author gave, in whatever way they gave it (a subclass may not call ours)."""
    try:
        return ErrorClass(getattr(error, "error_class", ErrorClass.AGENT_BUG))
    except ValueError:
        return ErrorClass.AGENT_BUG


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a broken __str__ must not hide the failure
        return f"({type(error).__name__} cannot be shown)"


def _traceback_of(error: BaseException) -> str:
    """Return the traceback without our own frames in front; at most 50 frames of it are formatted."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    try:
        return "".join(traceback.format_exception(type(error), error, trace, limit=50, chain=False))
    except Exception:  # noqa: BLE001  as above
        return ""


def cut(text: str, limit: int) -> str:
    """Return the text, cut in the middle with a mark when it is longer than the limit."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters cut) …\n{text[-half:]}"


def _forget(task: "asyncio.Task[Any]") -> None:
    """Take the late result of an abandoned handler, so that the loop does not complain of it."""
    if not task.cancelled():
        task.exception()
