"""Claiming runs: a set of queued runs becomes this worker's in one transaction, or fails before it began (protocol 6).

The caller (workers) opens the transaction, so that a dead letter is written in the same commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from quotas import services as money
from quotas.database import database_time, later
from quotas.models import Account
from quotas.services import Bill
from runs.models import Attempt, Run, Transition
from runs.outcomes import ErrorClass, Failed
from runs.states import CLAIM, REFUSE, RunState
from runs.transitions import Move, lock_runs, transition


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
        at=database_time(run),
        data={"error": facts, "cost": run.cost},
        changes={"error": facts, "error_class": error.error_class.value},
    )
    row = transition([move])[0]
    run.error, run.error_class = facts, error.error_class.value
    money.close_holds(account, [Bill(run.pk, run.cost, started=run.started_at is not None)])
    return Refused(run, row)


def _claim(rows: Sequence[Run], owner: Owner) -> list[Claimed]:
    if not rows:
        return []
    expires = later(owner.lease_seconds)  # one expression for all, so that the set shares it instead of a CASE
    moves = [
        Move(
            run=row,
            edge=CLAIM,
            actor=owner.worker,
            at=database_time(row),
            data={"attempt": row.attempt, "worker": owner.worker},
            changes={
                "claim_token": owner.token,
                "worker": owner.worker,
                "lease_expires_at": expires,
                "started_at": row.started_at or database_time(row),
            },
        )
        for row in rows
    ]
    started = transition(moves)
    for row, move in zip(rows, moves, strict=True):
        row.claim_token, row.worker = owner.token, owner.worker
        row.started_at = move.changes["started_at"]
    Attempt.objects.bulk_create(
        Attempt(run=row, fence=row.fence, number=row.attempt, worker=owner.worker, started_at=database_time(row))
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
