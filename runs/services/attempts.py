"""Finalise: the one gate through which an owner's run ends (protocol 9).

A set operation: runs of one account that end together share a transaction and its locks. The caller (workers) opens
the transaction, so that dead letters are written in the same commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from quotas import services as money
from quotas.database import database_time
from quotas.services import Bill
from runs.events import event_id
from runs.models import Attempt, Run, Transition
from runs.outcomes import Cancelled, Failed, Interrupted, Outcome, Succeeded
from runs.states import CONFIRM_CANCEL, FAIL, INTERRUPT, SUCCEED, TERMINAL_EVENTS, Edge, RunState
from runs.transitions import Move, lock_runs, one_value, transition

ERROR_TEXT_MAX = 2000


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
    progress: dict[str, Any] = field(default_factory=dict)
    price_book: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finalise did: the transitions of runs that moved, runs that were `lost`, and those failed for good."""

    moved: list[Transition] = field(default_factory=list)
    lost: list[UUID] = field(default_factory=list)
    failed: list[Run] = field(default_factory=list)


def finish_attempts(account_id: int, finishes: Sequence[Finish]) -> Finished:
    """End attempts of one account's runs: the one gate through which an owner's run ends (protocol 9).

    Must run in the caller's transaction. Nine statements on PostgreSQL, whatever the number of runs.
    """
    account = money.lock_account(account_id)
    rows = {row.pk: row for row in lock_runs([finish.run_id for finish in finishes])}
    mine = [finish for finish in finishes if _is_owner(rows.get(finish.run_id), finish)]
    lost = [finish.run_id for finish in finishes if finish not in mine]
    if not mine:
        return Finished(lost=lost)
    endings = [_ending(rows[finish.run_id], finish) for finish in mine]
    moved = transition([ending.move for ending in endings])
    _close_attempts(endings)
    money.close_holds(account, [Bill(e.finish.run_id, e.cost, price_book=e.finish.price_book) for e in endings])
    failed = [ending.move.run for ending in endings if ending.move.edge is FAIL]
    return Finished(moved, lost, failed)


def recognise(finished: Finished, finishes: Sequence[Finish]) -> Finished:
    """Return the verdict with those `lost` runs moved over that an earlier try of ours ended.

    Its COMMIT succeeded and its answer was lost (protocol 1.8). Only an owner writes `prev`, and only its own numbers.
    """
    by_run = {finish.run_id: finish for finish in finishes if finish.run_id in finished.lost}
    ours = [
        row
        for row in Transition.objects.filter(run_id__in=list(by_run), kind__in=list(TERMINAL_EVENTS))
        if row.fence == by_run[row.run_id].fence + 1
        and row.prev == event_id(by_run[row.run_id].fence, by_run[row.run_id].last_seq)
    ]
    found = {row.run_id for row in ours}
    return Finished([*finished.moved, *ours], [i for i in finished.lost if i not in found], finished.failed)


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
    cost: int  # the run's, over all attempts
    outcome: str  # the attempt's word
    error: dict[str, Any] | None
    kept: str | None  # a result that a cancel mark overtook


def _ending(run: Run, finish: Finish) -> _Ending:
    """Turn an owner's outcome into the run's move. A cancel mark that is there first wins (protocol 12.1)."""
    edge, changes, data = _edge_of(finish.outcome)
    word, kept = str(edge.target), None
    if run.cancel_requested_at is not None and edge is not CONFIRM_CANCEL:
        kept = finish.outcome.result_json if isinstance(finish.outcome, Succeeded) else None
        edge, changes, data = CONFIRM_CANCEL, {}, {"after": word}
    error = finish.outcome.as_json() if isinstance(finish.outcome, Failed) else None
    cost = run.cost + finish.cost
    usage = add_usage(run.usage, finish.usage)
    move = Move(
        run,
        edge,
        actor=run.worker,
        at=database_time(run),
        data={**data, "cost": cost, "usage": usage, "attempt": run.attempt},
        prev=event_id(finish.fence, finish.last_seq),
        changes={"cost": cost, "usage": usage, **changes},
    )
    # The row is told, so that whoever writes the dead letter sees what the UPDATE stores.
    run.error, run.error_class = error, changes.get("error_class", "")
    return _Ending(finish, move, cost, word, error, kept)


def _edge_of(outcome: Outcome) -> tuple[Edge, dict[str, Any], dict[str, Any]]:
    """Return the edge of an outcome, the row's columns, and what the event says."""
    match outcome:
        case Succeeded(result_json):
            return SUCCEED, {"result_json": result_json}, {}
        case Failed():
            error = outcome.as_json()
            changes = {"error": error, "error_class": outcome.error_class.value}
            if outcome.partial_json is not None:
                changes["result_json"] = outcome.partial_json
            short = {**error, "traceback": "", "message": error["message"][:ERROR_TEXT_MAX]}
            return FAIL, changes, {"error": short}
        case Cancelled():
            return CONFIRM_CANCEL, {}, {}
        case Interrupted(reason):
            return INTERRUPT, {}, {"reason": reason}


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
