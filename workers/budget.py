"""What an attempt may spend: a warning near the end, then more is reserved for its run, or it is stopped (money 6).

Reports come in any thread and never wait: what they lead to is done in the event loop and in units.
"""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable

import structlog
from django.db import Error

from quotas.errors import Refusal
from runs.services.budget import Extension, Verdict
from workers import metrics
from workers.event_buffer import EventBuffer
from workers.executor import Execution, Stop

log = structlog.get_logger(__name__)
WARN_PERCENT = 80
RETRY_MAX_SECONDS = 5.0

Extend = Callable[[int], Awaitable[Extension]]  # is told what is spent


class Budget:
    """The budget of a run while one attempt works. `before` is what its earlier attempts cost.

    `extend` has more reserved; None: the agent does not allow it. Amounts are micro-units.
    """

    def __init__(
        self, execution: Execution, buffer: EventBuffer, *, amount: int, before: int, extend: Extend | None
    ) -> None:
        self.amount = amount
        self._execution = execution
        self._buffer = buffer
        self._spent = before
        self._before = before
        self._extend = extend
        self._lock = threading.Lock()  # of amount, spent and the flags
        self._warned = False
        self._deciding = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None  # the loop itself keeps no hold of a task

    def begin(self) -> None:
        """Watch the attempt's usage from now on; called in the event loop. What earlier attempts spent counts."""
        self._loop = asyncio.get_running_loop()
        self._execution.ctx.usage.watch(self.reported)
        if self._is_over():
            self._decide()  # now, so that a handler that may not spend anything does not even begin

    def close(self) -> None:
        """Decide nothing more: the attempt has ended."""
        with self._lock:
            self._closed = True

    def reported(self, cost: int) -> None:
        """Compare what the attempt has cost so far with the budget. Thread-safe; waits for nothing."""
        with self._lock:
            self._spent = max(self._spent, self._before + cost)
            if self._closed or self._deciding or self._loop is None:
                return
            self._deciding = self._spent > self.amount
            over = self._deciding
        if not over:
            self._warn()
            return
        if self._extend is None:
            self._execution.ctx.mark_cancelled()  # at once: a sync handler may look before the loop has a turn
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._decide)

    def _warn(self) -> None:
        with self._lock:
            due = not self._warned and 0 < self.amount * WARN_PERCENT <= self._spent * 100
            self._warned = self._warned or due
            data = {"budget": self.amount, "spent": self._spent}
        if due:
            self._buffer.emit("budget.warning", data)

    def _decide(self) -> None:
        if self._extend is None:
            self._stop("the agent does not let it be extended")
        else:
            self._task = asyncio.create_task(self._have_more(self._extend), name="budget")

    async def _have_more(self, extend: Extend) -> None:
        """Ask for more until it is as much as was spent meanwhile; while the database is away, again and again."""
        wait = 0.1
        while self._is_over():
            try:
                extension = await extend(self._spent)
            except (Error, Refusal) as error:
                metrics.count_error(error)
                log.warning("budget.asked_again", run_id=self._execution.ctx.run_id, error=str(error)[:200])
                await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311  spreading
                wait = min(RETRY_MAX_SECONDS, wait * 2)
                continue
            match extension.verdict:
                case Verdict.EXTENDED:
                    self._raised(extension.budget)
                case Verdict.NO_ROOM:
                    return self._stop("its account has no room for more")
                case Verdict.CANCELLED:
                    return self._execution.stop(Stop.CANCEL)
                case Verdict.LOST:
                    return None  # the beat and the log say so to the rest of the worker
        self._warn()
        return None

    def _is_over(self) -> bool:
        """Whether more is needed still; if not, the next report decides anew."""
        with self._lock:
            self._deciding = self._spent > self.amount and not self._closed
            return self._deciding

    def _raised(self, budget: int) -> None:
        with self._lock:
            before, self.amount, self._warned = self.amount, budget, False
            spent = self._spent
        self._buffer.emit("budget.extended", {"from": before, "budget": budget, "spent": spent})

    def _stop(self, why: str) -> None:
        with self._lock:
            spent, amount = self._spent, self.amount
        message = f"The run has spent {spent} micro-units of the {amount} that are reserved for it, and {why}."
        log.info("budget.exceeded", run_id=self._execution.ctx.run_id, spent=spent, budget=amount)
        self._execution.stop(Stop.BUDGET, message)
