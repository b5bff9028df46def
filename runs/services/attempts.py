"""The owner's side of a run: claim, finalise, hand back, and takeover of a lost owner (protocol 6, 8, 9).

All are set operations: runs that start or end together share a transaction, a round trip and their locks. The caller
(workers) opens the transaction, so that dead letters are written in the same commit.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from quotas import services as money
from quotas.database import later
from quotas.models import Account
from quotas.prices import PriceTable
from quotas.services import Bill
from runs.events import event_id
from runs.models import Attempt, Run, Transition
from runs.outcomes import Cancelled, ErrorClass, Failed, Interrupted, Outcome, Succeeded
from runs.states import (
    CLAIM,
    CONFIRM_CANCEL,
    FAIL,
    HAND_BACK,
    INTERRUPT,
    REFUSE,
    SUCCEED,
    Edge,
    RunState,
)
from runs.transitions import Move, lock_runs, one_value, transition

LAPSE_MARGIN_SECONDS = 300.0
ERROR_TEXT_MAX = 2000


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run this worker owns now: everything its handler and its later writes need."""

    run: Run
    token: str
    started: Transition

    @property
    def fence(self) -> int:
        return self.run.fence


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim found: `won`, runs `unheld` (to be claimed alone, account first), and every row `seen` as locked."""

    won: list[Claimed] = field(default_factory=list)
    unheld: list[UUID] = field(default_factory=list)
    seen: dict[UUID, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """A queued run that failed without an attempt, and its transition."""

    run: Run
    transition: Transition


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes: the worker's unique name, the token of this claim, the lease's length in seconds."""

    worker: str
    token: str
    lease_seconds: float


def start_attempts(wanted: dict[UUID, int], owner: Owner, agents: frozenset[str]) -> Claims:
    """Claim queued runs of known agents, given as {run id: fence of the entry}, as one set (protocol 6.5).

    Must run in the caller's transaction. Five statements on PostgreSQL, whatever the number of runs.
    """
    rows = lock_runs(wanted, bulky=True)
    seen = {row.pk: row for row in rows}
    ready = [
        row for row in rows if row.state == RunState.QUEUED and row.fence == wanted[row.pk] and row.agent in agents
    ]
    if not ready:
        return Claims(seen=seen)
    unheld = set(money.pin_holds([row.pk for row in ready]))
    ready = [row for row in ready if row.pk not in unheld]
    return Claims(won=_claim(ready, owner), unheld=sorted(unheld), seen=seen)


def start_attempt_rearmed(run_id: UUID, fence: int, owner: Owner) -> Claimed | Refused | None:
    """Claim one run whose hold lapsed: account first, re-armed against what is available (money 4).

    A run whose account has no room fails with `quota_exceeded`. None if somebody else was first. Must run in the
    caller's transaction.
    """
    locked = _lock_queued(run_id, fence)
    if locked is None:
        return None
    account, run = locked
    if money.rearm_hold(account, run_id=run_id):
        money.pin_holds([run_id])
        return _claim([run], owner)[0]
    message = "The hold lapsed while the run waited, and the account has no room for a new one."
    return _refuse(account, run, Failed(ErrorClass.QUOTA, "QuotaExceeded", message), owner.worker)


def refuse(run_id: UUID, fence: int, error: Failed, *, actor: str) -> Refused | None:
    """End a queued run that cannot be started. None if it is not queued at that fence any more.

    Must run in the caller's transaction, which writes the dead letter too.
    """
    locked = _lock_queued(run_id, fence)
    return None if locked is None else _refuse(*locked, error, actor)


def _lock_queued(run_id: UUID, fence: int) -> tuple[Account, Run] | None:
    account_id = Run.objects.filter(pk=run_id).values_list("account_id", flat=True).first()
    if account_id is None:
        return None
    account = money.lock_account(account_id)
    rows = lock_runs([run_id], bulky=True)
    if not rows or rows[0].state != RunState.QUEUED or rows[0].fence != fence:
        return None
    return account, rows[0]


def _refuse(account: Account, run: Run, error: Failed, actor: str) -> Refused:
    facts = error.as_json()
    move = Move(
        run,
        REFUSE,
        actor=actor,
        at=_now_of(run),
        data={"error": facts, "cost": run.cost},
        changes={"error": facts, "error_class": error.error_class.value},
    )
    row = transition([move])[0]
    run.error, run.error_class = facts, error.error_class.value
    money.close_holds(account, [Bill(run.pk, run.cost, started=run.started_at is not None)])
    return Refused(run, row)


def _now_of(run: Run) -> dt.datetime:
    at: dt.datetime = run.db_now  # type: ignore[attr-defined]  annotated by lock_runs
    return at


def _claim(rows: Sequence[Run], owner: Owner) -> list[Claimed]:
    if not rows:
        return []
    expires = later(owner.lease_seconds)  # one expression for all, so that the set shares it instead of a CASE
    moves = [
        Move(
            run=row,
            edge=CLAIM,
            actor=owner.worker,
            at=_now_of(row),
            data={"attempt": row.attempt, "worker": owner.worker},
            changes={
                "claim_token": owner.token,
                "worker": owner.worker,
                "lease_expires_at": expires,
                "started_at": row.started_at or _now_of(row),
            },
        )
        for row in rows
    ]
    started = transition(moves)
    for row, move in zip(rows, moves, strict=True):
        row.claim_token, row.worker = owner.token, owner.worker
        row.started_at = move.changes["started_at"]
    Attempt.objects.bulk_create(
        Attempt(run=row, fence=row.fence, number=row.attempt, worker=owner.worker, started_at=_now_of(row))
        for row in rows
    )
    return [Claimed(row, owner.token, first) for row, first in zip(rows, started, strict=True)]


def claimed_by(token: str) -> list[Claimed]:
    """Return what a claim with this token won: read after a commit whose answer was lost (protocol 1.8)."""
    rows = list(Run.objects.filter(claim_token=token, state=RunState.RUNNING).order_by("pk"))
    firsts = {
        first.run_id: first
        for first in Transition.objects.filter(run_id__in=[row.pk for row in rows], kind=CLAIM.event).order_by("fence")
    }
    return [Claimed(row, token, firsts[row.pk]) for row in rows]


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
    book = mine[0].price_book
    money.close_holds(account, [Bill(e.finish.run_id, e.cost) for e in endings], price_book=book)
    failed = [ending.move.run for ending in endings if ending.move.edge is FAIL]
    return Finished(moved, lost, failed)


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
        at=_now_of(run),
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


def hand_back(run_id: UUID, fence: int, token: str, *, actor: str, reason: str) -> Transition | None:
    """Return a run that could not be begun to its queue, uncounted. None if it is not this owner's any more.

    Must run in the caller's transaction. A run marked for cancel is not handed back: the mark needs the owner.
    """
    rows = lock_runs([run_id])
    if not rows or rows[0].fence != fence or rows[0].claim_token != token or rows[0].state != RunState.RUNNING:
        return None
    run = rows[0]
    if run.cancel_requested_at is not None:
        return None
    move = Move(run, HAND_BACK, actor=actor, at=_now_of(run), data={"reason": reason}, prev=event_id(fence, 1))
    row = transition([move])[0]
    Attempt.objects.filter(run_id=run_id, fence=fence).update(outcome="handed_back", ended_at=Now())
    money.lapse_from_now([run_id], seconds=run.queue_wait_seconds + run.time_limit_seconds + LAPSE_MARGIN_SECONDS)
    return row


@dataclass(frozen=True, slots=True)
class Lost:
    """A running run whose lease lapsed, exactly as it was seen."""

    run_id: UUID
    fence: int
    lease_expires_at: dt.datetime


def take_over(lost: Lost, *, actor: str) -> Transition | None:
    """Give the run of a lost worker its next state, by policy `interrupt` (protocol 8.3). None if it was not lost.

    Must run in the caller's transaction. Settled at the cost the beat stored; what was spent after it is unknown.
    """
    account_id = Run.objects.filter(pk=lost.run_id).values_list("account_id", flat=True).first()
    if account_id is None:
        return None
    account = money.lock_account(account_id)
    rows = [row for row in lock_runs([lost.run_id]) if _is_lost(row, lost)]
    if not rows:
        return None
    run = rows[0]
    attempt = Attempt.objects.filter(run=run, fence=run.fence).first()
    spent, usage = (attempt.cost, attempt.usage) if attempt is not None else (0, {})
    cost, total = run.cost + spent, add_usage(run.usage, usage)
    edge = INTERRUPT if run.cancel_requested_at is None else CONFIRM_CANCEL
    move = Move(
        run,
        edge,
        actor=actor,
        at=_now_of(run),
        data={
            "reason": f"the worker {run.worker} was lost",
            "cost": cost,
            "usage": total,
            "cost_after_last_beat": "unknown",
        },
        changes={"cost": cost, "usage": total, "error_class": ErrorClass.LOST_WORKER.value},
    )
    row = transition([move])[0]
    Attempt.objects.filter(run=run, fence=lost.fence).update(
        outcome=str(edge.target), error_class=ErrorClass.LOST_WORKER.value, ended_at=Now()
    )
    money.close_holds(account, [Bill(run.pk, cost)], price_book=PriceTable.current().version)
    return row


def _is_lost(run: Run, lost: Lost) -> bool:
    """Whether the row still is as it was seen, and its lease has lapsed by the database's clock."""
    return (
        run.state == RunState.RUNNING
        and run.fence == lost.fence
        and run.lease_expires_at == lost.lease_expires_at
        and lost.lease_expires_at < _now_of(run)
    )

