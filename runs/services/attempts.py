"""Finalise: the one gate through which an owner's run ends (protocol 9).

A set operation: runs of one account that end together share a transaction and its locks. The caller (workers) opens
the transaction, so that dead letters are written in the same commit.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from quotas import services as money
from quotas.database import database_time
from runs import limits
from runs.events import event_id
from runs.models import Attempt, Run, Transition
from runs.outcomes import Cancelled, Cause, ErrorClass, Failed, HandedBack, Interrupted, Outcome, Succeeded
from runs.services import sessions
from runs.services.holding import bill_of, let_lapse
from runs.services.moves import Moved, caused, retry_data, short
from runs.states import (
    CONFIRM_CANCEL,
    EDGES,
    FAIL,
    HAND_BACK,
    INTERRUPT,
    RETRY_LATER,
    RETRY_NOW,
    SUCCEED,
    TERMINAL,
    Edge,
    RunState,
)
from runs.transitions import BULKY, Move, lock_runs, one_value, transition

LEAVING = [edge.event for edge in EDGES if edge.by_owner]
# An attempt that a drain ended has worked, and may have cost: one that was `handed_back` never began.
ATTEMPT_WORDS = {RETRY_NOW: "failed", RETRY_LATER: "failed", HAND_BACK: "drained"}


@dataclass(frozen=True, slots=True)
class Finish:
    """How an attempt ended, as its owner says it. `cost` and `usage` are this attempt's absolute totals."""

    run_id: UUID
    account_id: int
    fence: int
    token: str
    outcome: Outcome
    usage: dict[str, Any]
    cost: int
    last_seq: int
    session: str = ""
    progress: dict[str, Any] = field(default_factory=dict)
    price_book: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finalise did: runs that moved, runs that were `lost`, those failed for good, successors now queued."""

    moved: list[Moved] = field(default_factory=list)
    lost: list[UUID] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)
    started: list[Moved] = field(default_factory=list)


def finish_attempts(account_id: int, finishes: Sequence[Finish]) -> Finished:
    """End attempts of one account's runs: the one gate through which an owner's run leaves `running` (protocol 9).

    Must run in the caller's transaction. Nine statements on PostgreSQL, whatever the number of runs; one more for each
    session among them, and for each different time at which runs go on.
    """
    account = money.lock_account(account_id)
    heirs = sessions.successors(account_id, (finish.session for finish in finishes))
    locked = lock_runs([*(finish.run_id for finish in finishes), *heirs])
    rows = {row.pk: row for row in locked}
    for row in locked:
        row.account = account  # whom a retry's event names; all of them are of this account
    mine = [finish for finish in finishes if _is_owner(rows.get(finish.run_id), finish)]
    lost = [finish.run_id for finish in finishes if finish not in mine]
    if not mine:
        return Finished(lost=lost)
    endings = [_ending(rows[finish.run_id], finish) for finish in mine]
    slots = [ending.move.run.session_slot for ending in endings if ending.is_over]
    moved = transition([ending.move for ending in endings])
    _close_attempts(endings)
    over = [ending for ending in endings if ending.is_over]
    money.close_holds(account, [bill_of(ending.move.run) for ending in over])
    let_lapse([ending.move.run for ending in endings if not ending.is_over], endings[0].move.at)
    return Finished(
        [Moved(ending.move.run, row) for ending, row in zip(endings, moved, strict=True)],
        lost,
        [ending.move.run for ending in endings if ending.move.edge is FAIL],
        sessions.hand_on(locked, slots, actor=endings[0].move.actor),
    )


def recognise(finished: Finished, finishes: Sequence[Finish]) -> Finished:
    """Return the verdict with those `lost` runs moved over that an earlier try of ours ended.

    Its COMMIT succeeded and its answer was lost (protocol 1.8). Only an owner writes `prev`, and only its own numbers.
    """
    by_run = {finish.run_id: finish for finish in finishes if finish.run_id in finished.lost}
    ours = {
        row.run_id: row
        for row in Transition.objects.filter(run_id__in=list(by_run), kind__in=LEAVING)
        if row.fence == by_run[row.run_id].fence + 1
        and row.prev == event_id(by_run[row.run_id].fence, by_run[row.run_id].last_seq)
    }
    runs = Run.objects.defer(*BULKY).filter(pk__in=list(ours))
    # A run that somebody moved on since then was announced by them; its entry is theirs as well.
    found = [Moved(run, ours[run.pk]) for run in runs if run.fence == ours[run.pk].fence]
    return replace(
        finished,
        moved=[*finished.moved, *found],
        lost=[run_id for run_id in finished.lost if run_id not in {one.run.pk for one in found}],
    )


def _is_owner(row: Run | None, finish: Finish) -> bool:
    return (
        row is not None
        and row.state == RunState.RUNNING
        and row.fence == finish.fence
        and row.claim_token == finish.token
    )


@dataclass(frozen=True, slots=True)
class _Ending:
    finish: Finish
    move: Move
    outcome: str  # the attempt's word
    error: dict[str, Any] | None
    kept: str | None  # a result that did not become the run's: overtaken by a cancel, or refused

    @property
    def is_over(self) -> bool:
        return self.move.edge.target in TERMINAL


def _ending(run: Run, finish: Finish) -> _Ending:
    """Turn an owner's outcome into the run's move. A cancel mark that is there first wins (protocol 12.1)."""
    now = database_time(run)
    outcome = _decided(run, finish.outcome, now)
    edge, changes, data = _edge_of(run, outcome, now)
    word = ATTEMPT_WORDS.get(edge, str(edge.target))
    kept = outcome.partial_json if isinstance(outcome, Failed) else None
    if run.cancel_requested_at is not None and edge is not CONFIRM_CANCEL:
        kept = outcome.result_json if isinstance(outcome, Succeeded) else kept
        edge, changes, data = CONFIRM_CANCEL, {}, {"after": word}
    error = outcome.as_json() if isinstance(outcome, Failed) else None
    # The row is told, so that whoever writes the bill, the dead letter or the next entry sees what the UPDATE stores.
    run.cost, run.usage = run.cost + finish.cost, add_usage(run.usage, finish.usage)
    run.price_book = finish.price_book or run.price_book
    move = Move(
        run,
        edge,
        actor=run.worker,
        at=now,
        data={"attempt": run.attempt, **data, "cost": run.cost, "usage": run.usage},
        prev=event_id(finish.fence, finish.last_seq),
        changes={"cost": run.cost, "usage": run.usage, "price_book": run.price_book, **changes},
    )
    run.error, run.error_class = (error, changes.get("error_class", "")) if edge is FAIL else (None, "")
    run.not_before = changes.get("not_before")
    return _Ending(finish, move, word, error, kept)


def _decided(run: Run, outcome: Outcome, now: dt.datetime) -> Outcome:
    """Return the outcome with what the row says about a further attempt: whether one is left, and time for it."""
    if not isinstance(outcome, Failed):
        return outcome
    if outcome.retry_in is None:
        return outcome if outcome.cause else caused(outcome, Cause.FATAL)
    begins = now + dt.timedelta(seconds=outcome.retry_in)
    if run.attempt >= run.max_attempts or not limits.may_begin(run, begins):
        crashed = outcome.error_class is ErrorClass.LOST_WORKER and run.attempt >= run.max_attempts
        return caused(outcome, Cause.CRASH_LOOP if crashed else Cause.EXHAUSTED)
    return outcome


def _edge_of(run: Run, outcome: Outcome, now: dt.datetime) -> tuple[Edge, dict[str, Any], dict[str, Any]]:
    """Return the edge of an outcome, the row's columns, and what the event says."""
    match outcome:
        case Succeeded(result_json):
            return SUCCEED, {"result_json": result_json}, {}
        case Failed(retry_in=float() | int() as delay):
            columns = limits.waiting(run, now, delay=delay)
            edge = RETRY_NOW if columns["not_before"] is None else RETRY_LATER
            queued = {"queued_at": now} if edge is RETRY_NOW else {}
            return edge, {"attempt": run.attempt + 1, **queued, **columns}, retry_data(run, outcome, columns)
        case Failed():
            changes = {"error": outcome.as_json(), "error_class": outcome.error_class.value}
            if outcome.partial_json is not None:
                changes["result_json"] = outcome.partial_json
            return FAIL, changes, {"error": short(outcome)}
        case Cancelled():
            return CONFIRM_CANCEL, {}, {}
        case Interrupted(reason):
            return INTERRUPT, {}, {"reason": reason}
        case HandedBack(reason):
            return HAND_BACK, {"queued_at": now, **limits.waiting(run, now)}, {"reason": reason}


def add_usage(before: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of two usages {model: {kind: tokens}}."""
    total = {model: dict(kinds) for model, kinds in before.items()}
    for model, kinds in more.items():
        for kind, count in kinds.items():
            own = total.setdefault(model, {})
            own[kind] = own.get(kind, 0) + count
    return total


def _close_attempts(endings: Sequence[_Ending]) -> None:
    """Close the attempt rows of a set in one UPDATE, keyed by (run, fence)."""
    which = Q()
    for ending in endings:
        which |= Q(run_id=ending.finish.run_id, fence=ending.finish.fence)
    update_attempts(
        which,
        [ending.finish.run_id for ending in endings],
        {
            "outcome": [ending.outcome for ending in endings],
            "error": [ending.error for ending in endings],
            "error_class": [str((ending.error or {}).get("class", "")) for ending in endings],
            "usage": [ending.finish.usage for ending in endings],
            "cost": [ending.finish.cost for ending in endings],
            "price_book": [ending.finish.price_book for ending in endings],
            "progress": [ending.finish.progress for ending in endings],
            "result_json": [ending.kept for ending in endings],
        },
        ended_at=Now(),
    )


def update_attempts(which: Q, run_ids: Sequence[UUID], columns: dict[str, list[Any]], **same: Any) -> None:
    """Write columns of attempts, a value a run, in one UPDATE. `which` selects one attempt a run."""
    Attempt.objects.filter(which).update(
        **same,
        **{name: one_value(Attempt, name, run_ids, values, by="run_id") for name, values in columns.items()},
    )
