"""Leaving `running` without an answer: handed back unbegun, taken over from a lost owner, ended for a deaf one."""

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from quotas import services as money
from quotas.database import database_time
from quotas.models import Account
from runs import limits
from runs.agents import AgentNotRegistered, AgentSpec, get_agent
from runs.events import event_id
from runs.limits import Limit
from runs.models import Attempt, OnLost, Run
from runs.outcomes import Cause, ErrorClass, Failed
from runs.retry import Backoff, is_retryable
from runs.services import sessions
from runs.services.attempts import add_usage
from runs.services.claims import Claimed
from runs.services.holding import bill_of, let_lapse
from runs.services.moves import Left, Moved, caused, fail_columns, retry_data, short
from runs.states import CONFIRM_CANCEL, FAIL, HAND_BACK, INTERRUPT, RETAKE, RETRY_LATER, Edge, RunState
from runs.transitions import Move, lock_runs, transition

HANDED_BACK = "handed_back"
LEAST_DELAY_SECONDS = 0.001  # what is scheduled has a time


def hand_back(claimed: Claimed, *, actor: str, reason: str, above: int = 0) -> Left | None:
    """Return a run that could not be begun to its queue, uncounted; one marked for cancel ends here instead.

    The new fence is above `above` as well: a log that is ahead of the row must not stay so. None if the run is not
    this owner's any more. Must run in the caller's transaction.
    """
    account = money.lock_account(claimed.run.account_id)
    heirs = sessions.successors(account.pk, [claimed.run.session])
    locked = lock_runs([claimed.run.pk, *heirs])
    run = next((row for row in locked if row.pk == claimed.run.pk and _is_owned(row, claimed)), None)
    if run is None:
        return None
    begun_before = run.attempts.exclude(fence=claimed.fence).exclude(outcome=HANDED_BACK).exists()
    now, slot = database_time(run), run.session_slot
    edge = HAND_BACK if run.cancel_requested_at is None else CONFIRM_CANCEL
    changes: dict[str, Any] = {} if begun_before else {"started_at": None}
    if edge is HAND_BACK:
        changes |= {"queued_at": now, **limits.waiting(run, now)}
    move = Move(
        run,
        edge,
        actor=actor,
        at=now,
        data={"reason": reason},
        prev=event_id(claimed.fence, 1),
        changes=changes,
        above=above,
    )
    row = transition([move])[0]
    Attempt.objects.filter(run=run, fence=claimed.fence).update(outcome=HANDED_BACK, ended_at=Now())
    if run.is_terminal:
        money.close_holds(account, [bill_of(run, started=begun_before)])
        return Left(Moved(run, row), started=sessions.hand_on(locked, [slot], actor=actor))
    let_lapse([run], now)
    return Left(Moved(run, row))


def _is_owned(run: Run, claimed: Claimed) -> bool:
    return run.state == RunState.RUNNING and run.fence == claimed.fence and run.claim_token == claimed.token


@dataclass(frozen=True, slots=True)
class Lost:
    """A running run whose lease lapsed, exactly as it was seen."""

    run_id: UUID
    fence: int
    lease_expires_at: dt.datetime


def take_over(lost: Lost, *, actor: str) -> Left | None:
    """Give the run of a lost worker its next state, by its policy (protocol 8.3). None if it was not lost.

    Must run in the caller's transaction. Booked at the cost the beat stored; what was spent after it is unknown.
    """
    return _end_for_owner(lost.run_id, lambda run: _is_lost(run, lost), _of_lost_worker, actor)


def take_over_dead(run_id: UUID, *, worker: str, actor: str) -> Left | None:
    """Give a run of a worker process that is known to be dead its next state, whatever its lease says (8.4)."""
    return _end_for_owner(run_id, lambda run: run.worker == worker, _of_lost_worker, actor)


def end_overdue(run_id: UUID, fence: int, *, grace_seconds: float, actor: str) -> Left | None:
    """End an attempt that its owner did not end in `grace_seconds` after it was asked to, with the owner's outcome."""

    def is_overdue(run: Run) -> bool:
        asked = run.stop_requested_at
        grace = dt.timedelta(seconds=grace_seconds)
        return run.fence == fence and asked is not None and asked + grace < database_time(run)

    return _end_for_owner(run_id, is_overdue, _of_overdue, actor)


@dataclass(frozen=True, slots=True)
class _End:
    """How somebody else ends an attempt: the edge, the row's columns, the event's data, the attempt's word."""

    edge: Edge
    changes: dict[str, Any]
    data: dict[str, Any]
    word: str
    error_class: ErrorClass


def _end_for_owner(
    run_id: UUID, may: Callable[[Run], bool], decide: Callable[[Run, dt.datetime], _End], actor: str
) -> Left | None:
    found = Run.objects.filter(pk=run_id).values_list("account_id", "session").first()
    if found is None:
        return None
    account_id, session = found
    account = money.lock_account(account_id)
    locked = lock_runs([run_id, *sessions.successors(account.pk, [session])])
    run = next((row for row in locked if row.pk == run_id and row.state == RunState.RUNNING and may(row)), None)
    return None if run is None else _end(account, run, locked, decide, actor)


def _end(
    account: Account, run: Run, locked: Sequence[Run], decide: Callable[[Run, dt.datetime], _End], actor: str
) -> Left:
    attempt = Attempt.objects.filter(run=run, fence=run.fence).first()
    if attempt is not None:
        run.cost, run.usage = run.cost + attempt.cost, add_usage(run.usage, attempt.usage)
        run.price_book = attempt.price_book or run.price_book
    run.account = account
    now, slot, fence = database_time(run), run.session_slot, run.fence
    end = decide(run, now)
    move = Move(
        run,
        end.edge,
        actor=actor,
        at=now,
        data={**end.data, "cost": run.cost, "usage": run.usage, "cost_after_last_beat": "unknown"},
        changes={"cost": run.cost, "usage": run.usage, "price_book": run.price_book, **end.changes},
    )
    row = transition([move])[0]
    Attempt.objects.filter(run=run, fence=fence).update(
        outcome=end.word, error=end.data.get("error"), error_class=end.error_class.value, ended_at=Now()
    )
    if not run.is_terminal:
        run.attempt, run.not_before = end.changes["attempt"], end.changes["not_before"]
        let_lapse([run], now)
        return Left(Moved(run, row))
    money.close_holds(account, [bill_of(run)])
    failed = [run] if end.edge is FAIL else []
    return Left(Moved(run, row), failed, sessions.hand_on(locked, [slot], actor=actor))


def _of_lost_worker(run: Run, now: dt.datetime) -> _End:
    """Decide by policy. A mark for cancel comes first; a crash counts as an attempt (protocol 8.3)."""
    reason, lost = f"the worker {run.worker} was lost", ErrorClass.LOST_WORKER
    if run.cancel_requested_at is not None:
        return _End(CONFIRM_CANCEL, {"error_class": lost.value}, {"reason": reason}, str(CONFIRM_CANCEL.target), lost)
    if run.stop_requested:
        return _of_overdue(run, now)  # its time was over before its worker was: never interrupted
    if run.on_lost != OnLost.RERUN:
        return _End(INTERRUPT, {"error_class": lost.value}, {"reason": reason}, str(INTERRUPT.target), lost)
    message = f"The worker was lost in attempt {run.attempt} of {run.max_attempts}."
    return _again_or_failed(run, now, Failed(lost, "WorkerLost", message), RETAKE, Cause.CRASH_LOOP)


def _of_overdue(run: Run, now: dt.datetime) -> _End:
    """Decide as the owner would have: failed, and tried again only where the agent says so."""
    if run.cancel_requested_at is not None:
        word = str(CONFIRM_CANCEL.target)
        return _End(CONFIRM_CANCEL, {}, {"reason": "its worker did not stop it in time"}, word, ErrorClass.TIMEOUT)
    message = limits.message_of(Limit(run.stop_requested), run)
    error = Failed(ErrorClass.TIMEOUT, "TimeLimit", message)
    spec = _spec_of(run)
    if spec is None or not is_retryable(error.error_class, retry_on=spec.retry_on, fatal_on=spec.fatal_on):
        error = caused(error, Cause.FATAL)
        return _End(FAIL, fail_columns(run, error), {"error": short(error)}, "failed", error.error_class)
    return _again_or_failed(run, now, error, RETRY_LATER, Cause.EXHAUSTED)


def _again_or_failed(run: Run, now: dt.datetime, error: Failed, again: Edge, cause: Cause) -> _End:
    """Schedule the next attempt with back-off while one is left and has time; else fail for this cause."""
    spec = _spec_of(run)
    delay = (spec.backoff if spec is not None else Backoff()).delay(run.attempt)
    word = "failed" if again is RETRY_LATER else "lost"
    if run.attempt < run.max_attempts and limits.may_begin(run, now + dt.timedelta(seconds=delay)):
        columns = limits.waiting(run, now, delay=max(delay, LEAST_DELAY_SECONDS))
        data = retry_data(run, error, columns)
        return _End(again, {"attempt": run.attempt + 1, **columns}, data, word, error.error_class)
    if run.attempt < run.max_attempts:
        message = f"{error.message} No time is left for another attempt."
        error, cause = replace(error, message=message), Cause.EXHAUSTED
    error = caused(error, cause)
    return _End(FAIL, fail_columns(run, error), {"error": short(error)}, word, error.error_class)


def _spec_of(run: Run) -> AgentSpec | None:
    """Return the agent's specification; None where only other processes know it."""
    try:
        return get_agent(run.agent)
    except AgentNotRegistered:
        return None


def _is_lost(run: Run, lost: Lost) -> bool:
    """Whether the row still is as it was seen, and its lease has lapsed by the database's clock."""
    return (
        run.fence == lost.fence
        and run.lease_expires_at == lost.lease_expires_at
        and lost.lease_expires_at < database_time(run)
    )
