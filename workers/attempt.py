"""One attempt of a claimed run: what its handler gets, running it, and ending it by whatever outcome."""

import asyncio
import datetime as dt
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone

from quotas.errors import Refusal
from runs import limits
from runs.agents import get_agent
from runs.limits import Limit
from runs.models import Attempt, OnLost, Run
from runs.outcomes import ErrorClass, Failed, Interrupted, Outcome, Succeeded
from runs.results import dumps
from runs.services.attempts import Finish
from runs.services.budget import Extension, extend_budget
from workers import metrics
from workers.budget import Budget
from workers.config import WorkerConfig
from workers.context import Context, Identity
from workers.delivery import Started
from workers.event_buffer import EventBuffer
from workers.event_writer import EventWriter
from workers.executor import Execution, Stop, Time
from workers.finaliser import Finaliser
from workers.owned import OwnedRun, OwnedRuns
from workers.ports import AttemptIsFenced, WorkerPorts
from workers.units import Units

log = structlog.get_logger(__name__)
ABANDONED_MAX = 1000
EXTENDING_MAX = 2  # unit threads that wait for accounts' locks, so that beats, claims and ends have theirs


class Attempts:
    """Runs attempts for one worker. `own` may be called in a unit's thread; everything else runs in the loop."""

    def __init__(
        self, config: WorkerConfig, owned: OwnedRuns, writer: EventWriter, finaliser: Finaliser, units: Units
    ) -> None:
        self.config = config
        self.owned = owned
        self.writer = writer
        self.finaliser = finaliser
        self.units = units
        self.abandoned: set[asyncio.Task[Any]] = set()  # handlers that ignored their cancellation, while they go on
        self._extending = asyncio.Semaphore(EXTENDING_MAX)
        # More than places, on demand: an abandoned handler keeps its thread and must not keep another run waiting.
        self._handlers = ThreadPoolExecutor(config.concurrency + ABANDONED_MAX, thread_name_prefix="handler")

    def close(self) -> None:
        self._handlers.shutdown(wait=False, cancel_futures=True)

    async def run(self, owned: OwnedRun) -> None:
        """Run a claimed run's handler and end its attempt, by whatever outcome. Never raises."""
        began = time.monotonic()
        structlog.contextvars.bind_contextvars(**owned.ctx.identity.log_fields)  # of this task and what it starts
        if began - owned.renewed_at > self.config.lost_after:
            owned.execution.stop(Stop.LOST)  # the process stood still between the claim and this line
        budget = self._budget_of(owned)
        try:
            budget.begin()
            outcome = await owned.execution.run(self._handlers)
            outcome = await self._fit(owned, _by_policy(owned, outcome))
            owned.buffer.close()
            await self.writer.flush([owned], everything=True)
            owned.ending = True
            await self.finaliser.finish(owned.entry, _finish_of(owned, outcome))
            metrics.attempt_seconds.labels(owned.run.agent).observe(time.monotonic() - began)
        except Exception:
            # Nothing above is expected to raise; if it does, the lease lapses and takeover ends the run.
            log.exception("attempt.broke", run_id=str(owned.run_id))
        finally:
            budget.close()
            self._abandon(owned.execution)
            self.owned.remove(owned)

    def own(self, started: Started) -> OwnedRun:
        """Make a claimed run this process's: from here on the beat renews its lease."""
        run, entry = started.claimed.run, started.entry
        confined = _is_suspect(run)
        spec = replace(get_agent(run.agent), isolation="process") if confined else get_agent(run.agent)
        buffer = EventBuffer(run.fence, _clock_offset(started.claimed.started.at))

        async def flush() -> None:
            await self.writer.flush([owned], everything=True)

        identity = Identity(
            run_id=run.pk,
            agent=run.agent,
            attempt=run.attempt,
            fence=run.fence,
            worker=self.config.consumer,
            account_id=run.account_id,
            metadata=run.metadata,
            request_id=run.request_id,
        )
        ctx = Context(identity, buffer, WorkerPorts(run, started.claimed.token, self.units, flush))
        begun_at = started.claimed.started.at
        time, grace = _time_of(run, begun_at), self.config.handler_grace
        execution = Execution(spec, ctx, run.input, time=time, grace=grace, confined=confined)
        claimed = started.claimed
        owned = OwnedRun(run, claimed.token, entry, ctx, buffer, execution, started.claimed_at, claimed.limits)
        run.input_json = ""  # the handler has it; a worker need not hold it twice
        self.owned.add(owned)
        if started.claimed.begun_before:  # what an earlier attempt showed is void (protocol 11.2)
            buffer.emit("output.rollback", {"after": ""})
        if run.cancel_requested_at is not None:
            execution.stop(Stop.CANCEL)
        return owned

    def _budget_of(self, owned: OwnedRun) -> Budget:
        run, units = owned.run, self.units

        async def extend(spent: int) -> Extension:
            def work() -> Extension:
                return extend_budget(
                    run_id=run.pk, account_id=run.account_id, fence=run.fence, claim_token=owned.token, spent=spent
                )

            async with self._extending:
                return await units.run(work)

        may = get_agent(run.agent).may_extend
        return Budget(owned.execution, owned.buffer, amount=run.budget, before=run.cost, extend=extend if may else None)

    async def _fit(self, owned: OwnedRun, outcome: Outcome) -> Outcome:
        """Turn a result that is too large for a row into an artifact (protocol 11.1)."""
        match outcome:
            case Succeeded(result_json) if len(result_json) > settings.RESULT_INLINE_BYTES:
                named = await self._as_artifact(owned, "result.json", result_json)
                if named is None:
                    message = "The result is too large for the row, and could not be stored as a file."
                    return Failed(ErrorClass.NOT_STORABLE, "ResultNotStored", message)
                return Succeeded(named)
            case Failed(partial_json=str() as partial) if len(partial) > settings.RESULT_INLINE_BYTES:
                return replace(outcome, partial_json=await self._as_artifact(owned, "partial.json", partial))
            case _:
                return outcome

    async def _as_artifact(self, owned: OwnedRun, name: str, text: str) -> str | None:
        """Store a large JSON text as a file; returns the JSON that names it, or None when it cannot be stored."""
        try:
            stored = await owned.ctx.artifact(name, text.encode("utf-8"), "application/json")
        except (AttemptIsFenced, OSError, DatabaseError, Refusal) as error:
            log.warning("result.not_stored", run_id=str(owned.run_id), error=str(error))
            return None
        return dumps({"artifact": stored["name"], "size": stored["size"]})

    def _abandon(self, execution: Execution) -> None:
        if execution.abandoned is not None:
            metrics.abandoned.inc()
            self.abandoned.add(execution.abandoned)
            execution.abandoned.add_done_callback(self.abandoned.discard)


def _is_suspect(run: Run) -> bool:
    """Whether this is the last attempt of a run that lost its worker in the one before: it may have been the cause.

    It gets a process of its own. So a run that kills its worker harms its neighbours before its last attempt only,
    and a run that merely was such a neighbour does not end as `crash_loop` for it.
    """
    if not 1 < run.attempt == run.max_attempts:
        return False
    before = Attempt.objects.filter(run=run, number=run.attempt - 1).order_by("-fence")
    return before.values_list("error_class", flat=True).first() == ErrorClass.LOST_WORKER


def _time_of(run: Run, begun_at: dt.datetime) -> Time:
    """Return the time of an attempt that began then by the database's clock: the first limit that will pass."""
    limit, at = limits.first_to_pass(run, begun_at)
    return Time(
        seconds=max(0.0, (at - begun_at).total_seconds()),
        limit=Stop(limit.value),
        message_of=lambda stop: limits.message_of(Limit(stop.value), run),
    )


def _by_policy(owned: OwnedRun, outcome: Outcome) -> Outcome:
    """Return what becomes of a run whose lease this worker did not renew: as if the worker were gone (protocol 7.4)."""
    run = owned.run
    gone = owned.execution.reason is Stop.LOST and isinstance(outcome, Interrupted)
    if not gone or run.on_lost != OnLost.RERUN:
        return outcome
    message = f"The worker could not renew its lease in attempt {run.attempt} of {run.max_attempts}."
    delay = get_agent(run.agent).backoff.delay(run.attempt)
    return Failed(ErrorClass.LOST_WORKER, "WorkerLost", message, retry_in=delay)


def _clock_offset(database_time: dt.datetime) -> dt.timedelta:
    """Return the database's clock minus ours, where they differ by more than the way of an answer explains."""
    offset = database_time - timezone.now()
    return offset if abs(offset) > dt.timedelta(seconds=1) else dt.timedelta(0)


def _finish_of(owned: OwnedRun, outcome: Outcome) -> Finish:
    usage, cost = owned.ctx.usage.snapshot()
    return Finish(
        run_id=owned.run_id,
        account_id=owned.run.account_id,
        fence=owned.fence,
        token=owned.token,
        outcome=outcome,
        usage=usage,
        cost=cost,
        last_seq=owned.buffer.last_seq,
        session=owned.run.session,
        progress=owned.ctx.progress_now,
        price_book=owned.ctx.usage.price_book,
    )
