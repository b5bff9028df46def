"""Running one handler under its time limit, and turning every way it can end into an Outcome."""

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import structlog
from django.conf import settings
from django.db import close_old_connections
from jsonschema import Draft202012Validator

from runs.agents import AgentSpec
from runs.outcomes import Cancelled, Cause, ErrorClass, Failed, HandedBack, Interrupted, Outcome, Succeeded
from runs.results import dumps
from workers.context import Context
from workers.dialogue import HandlerFailed
from workers.failures import failure, failure_of
from workers.isolation import END_SECONDS, LOST_GRACE_SECONDS, ProcessDied, run_isolated

log = structlog.get_logger(__name__)


class Stop(StrEnum):
    """Why a handler is asked to stop before it is done. The limits in time are called as in runs.limits.Limit."""

    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"
    TIME_LIMIT = "time_limit"
    WALL_CLOCK = "wall_clock"
    DEADLINE = "deadline"
    NO_PROGRESS = "no_progress"
    BUDGET = "budget"


LIMITS = frozenset({Stop.TIME_LIMIT, Stop.WALL_CLOCK, Stop.DEADLINE, Stop.NO_PROGRESS})


@dataclass(frozen=True, slots=True)
class Time:
    """How long the handler may run from now, which limit ends then, and the words for any limit that passed."""

    seconds: float
    limit: Stop = Stop.TIME_LIMIT
    message_of: Callable[[Stop], str] = lambda limit: f"The {limit.replace('_', ' ')} passed."


@dataclass(frozen=True, slots=True)
class _Raised:
    """What a handler raised, as a value: SystemExit and its like would end the event loop."""

    error: BaseException


class Execution:
    """One handler at work. `stop` may be called from the loop at any time; the first reason counts.

    `confined`: it has a process of its own because its worker was lost before; the death of that process is another.
    """

    def __init__(
        self, spec: AgentSpec, ctx: Context, run_input: Any, *, time: Time, grace: float, confined: bool = False
    ) -> None:
        self.ctx = ctx
        self.abandoned: asyncio.Task[Any] | None = None  # the handler, when it ignored its cancellation
        self.reason: Stop | None = None
        self._spec = spec
        self._input = run_input
        self._time = time
        self._grace = grace
        self._confined = confined
        self._stopped = asyncio.Event()
        self._said = ""

    def stop(self, reason: Stop, message: str = "") -> None:
        """Ask the handler to stop. Repeating it changes nothing. `message`: the error's words, of a budget."""
        if self.reason is None:
            self.reason, self._said = reason, message
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
            await asyncio.wait({task, stopped}, timeout=self._time.seconds, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.stop(self._time.limit)
                await self._end(task)
        finally:
            stopped.cancel()
        return self._outcome(task)

    async def _end(self, task: "asyncio.Task[Any]") -> None:
        """Cancel the handler and give it its grace; one that does not end is abandoned (protocol 7.5)."""
        task.cancel()
        if inspect.iscoroutinefunction(self._spec.handler) and not self._is_isolated:
            self.ctx.was_told = True  # it has not ended, so the cancellation reaches it at its await
        await asyncio.wait({task}, timeout=self._grace + (END_SECONDS if self._is_isolated else 0))
        if not task.done():
            self.abandoned = task
            log.warning("handler.abandoned", run_id=self.ctx.run_id, agent=self._spec.name, reason=self.reason)
            task.add_done_callback(_forget)

    async def _call(self, threads: ThreadPoolExecutor) -> Any:
        handler: Callable[..., Any] = self._spec.handler
        try:
            if self._is_isolated:
                return await run_isolated(self._spec, self.ctx, self._input, self._grace_now)
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
        if self.reason in LIMITS:
            return self._failed(ErrorClass.TIMEOUT, "TimeLimit", self._time.message_of(self.reason))
        if self.reason is Stop.BUDGET and (self.ctx.was_told or not ended):
            return self._over_budget(value)
        if ended and not isinstance(value, _Raised):
            return self._result(value)
        if self.reason is Stop.CANCEL:
            return Cancelled()
        if self.reason is Stop.DRAIN:
            reason = "the worker was stopped before the run could end"
            return HandedBack(reason) if self._hands_back else Interrupted(reason)
        if self.reason is Stop.LOST:
            return Interrupted("the worker could not renew its lease")
        if isinstance(value, _Raised):
            return self._failure(value.error)
        return self._failed(ErrorClass.AGENT_BUG, "CancelledError", "The handler cancelled itself.")

    def _over_budget(self, value: Any) -> Failed:
        """Return the failure of a run that was stopped for its cost, with what its handler leaves (money 6)."""
        partial: str | None = None
        if isinstance(value, _Raised):
            partial = self._failure(value.error).partial_json
        elif value is not None:
            with suppress(TypeError, ValueError, RecursionError):
                partial = dumps(value)
        if partial is None and self.ctx.text:
            partial = dumps(self.ctx.text)
        message = self._said or "The budget of the run was spent."
        return Failed(ErrorClass.BUDGET, "BudgetExceeded", message, partial_json=partial, cause=Cause.BUDGET.value)

    def _failure(self, error: BaseException) -> Failed:
        if isinstance(error, HandlerFailed):  # decided in its process, where the exception was
            return error.failed
        failed = failure_of(error, self._spec, self.ctx.attempt)
        if not isinstance(error, ProcessDied):
            return failed
        failed = replace(failed, traceback="")  # it would be ours alone
        return replace(failed, error_class=ErrorClass.LOST_WORKER, retry_in=0.0) if self._confined else failed

    @property
    def _is_isolated(self) -> bool:
        return self._spec.isolation == "process"

    def _grace_now(self) -> float:
        """The grace of a process that can be killed. A lost run may soon be at work elsewhere: it gets less."""
        return min(self._grace, LOST_GRACE_SECONDS) if self.reason is Stop.LOST else self._grace

    @property
    def _hands_back(self) -> bool:
        """Whether a drain gives the run to the next worker. Not while its handler goes on here all the same."""
        return self.abandoned is None and (self._spec.on_drain or settings.DRAIN_POLICY) == "hand_back"

    def _failed(self, error_class: ErrorClass, name: str, message: str, partial: str | None = None) -> Failed:
        return failure(self._spec, self.ctx.attempt, error_class, name, message, partial=partial)

    def _result(self, value: Any) -> Outcome:
        """Check and serialise what the handler returned."""
        try:
            text = dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            return self._failed(ErrorClass.AGENT_BUG, type(error).__name__, f"The result is not JSON: {error}")
        missing = self.ctx.usage.missing
        if missing is not None:  # swallowed by the handler: what has no price would be free
            return self._failed(ErrorClass.UNKNOWN_PRICE, type(missing).__name__, missing.message, text)
        validator = self._spec.output_validator
        if validator is not None:
            problem = _misfit(validator, value)
            if problem is not None:
                message = f"The result does not fit the output schema: {problem}"
                return self._failed(ErrorClass.BAD_OUTPUT, "BadOutput", message, text)
        return Succeeded(text)


def _misfit(validator: Draft202012Validator, value: Any) -> str | None:
    """Return what is wrong with a value, or with the schema it should fit; None when it fits."""
    try:
        problem = next(iter(validator.iter_errors(value)), None)
    except Exception as error:  # noqa: BLE001  a schema that cannot be applied must not leave the run without an end
        return f"the schema cannot be applied: {error}"
    return None if problem is None else str(problem.message)


def _forget(task: "asyncio.Task[Any]") -> None:
    """Take the late result of an abandoned handler, so that the loop does not complain of it."""
    if not task.cancelled():
        task.exception()
