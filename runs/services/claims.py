"""Claiming runs: a set of queued runs becomes this worker's in one transaction, or fails before it began (protocol 6).

The caller (workers) opens the transaction, so that a dead letter is written in the same commit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from quotas import services as money
from quotas.database import database_time, later
from quotas.models import Account
from runs import controls, limits, running
from runs.models import Attempt, Run, Transition
from runs.outcomes import Cause, ErrorClass, Failed
from runs.running import RunningLimit
from runs.services import sessions
from runs.services.holding import bill_of
from runs.services.moves import Left, Moved, fail_columns, short
from runs.states import CLAIM, REFUSE, RunState
from runs.transitions import Move, lock_runs, transition

CLAIM_FENCE = 2  # of a run that was queued by its submit and claimed once


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run this worker owns now: everything its handler and its later writes need."""

    run: Run
    token: str
    started: Transition
    begun_before: bool = False  # an earlier attempt may have shown output
    limits: tuple[str, ...] = ()  # on runs at work, of which it has a place

    @property
    def fence(self) -> int:
        return self.run.fence


@dataclass(frozen=True, slots=True)
class Claims:
    """What a claim found: `won`, and every row `seen` as locked.

    Not claimed were runs `unheld` (to be claimed alone, account first) and `limited` (to be given a place first).
    """

    won: list[Claimed] = field(default_factory=list)
    unheld: list[UUID] = field(default_factory=list)
    limited: list["Limited"] = field(default_factory=list)
    seen: dict[UUID, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limited:
    """A queued run as it was read, and the limits of which it needs a place before it is claimed."""

    run: Run
    limits: tuple[RunningLimit, ...]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes: the worker's unique name, the token of this claim, the lease's length in seconds."""

    worker: str
    token: str
    lease_seconds: float


def start_attempts(
    wanted: dict[UUID, int], owner: Owner, agents: frozenset[str], placed: Collection[UUID] = ()
) -> Claims:
    """Claim queued runs of known agents, given as {run id: fence of the entry}, as one set (protocol 6.5).

    Runs under limits are claimed if they are `placed`; those of a paused queue are not. Must run in the caller's
    transaction. Five statements on PostgreSQL, whatever the number of runs.
    """
    rows = lock_runs(wanted, bulky=True, **running.ACCOUNT_LIMIT, **controls.PAUSED)
    seen = {row.pk: row for row in rows}
    ready = [
        row
        for row in rows
        if row.state == RunState.QUEUED
        and row.fence == wanted[row.pk]
        and row.agent in agents
        and not controls.is_held(row)
    ]
    limits_by_run = {row.pk: running.annotated_limits(row) for row in ready}
    limited = [Limited(row, limits_by_run[row.pk]) for row in ready if limits_by_run[row.pk] and row.pk not in placed]
    waiting = {one.run.pk for one in limited}
    ready = [row for row in ready if row.pk not in waiting]
    if not ready:
        return Claims(limited=limited, seen=seen)
    unheld = set(money.pin_holds([row.pk for row in ready]))
    ready = [row for row in ready if row.pk not in unheld]
    won = _claim(ready, owner, limits_by_run)
    return Claims(won=won, unheld=sorted(unheld), limited=limited, seen=seen)


def start_attempt_rearmed(run_id: UUID, fence: int, owner: Owner) -> Claimed | Left | None:
    """Claim one run whose hold lapsed: account first, re-armed against what is available (money 4).

    A run whose account has no room fails with `quota_exceeded`. None if somebody else was first, or its queue is
    paused by now. Must run in the caller's transaction.
    """
    locked = _lock_waiting(run_id, fence)
    if locked is None or locked[1].state != RunState.QUEUED or controls.is_paused(locked[1].queue):
        return None
    account, run = locked
    if money.rearm_hold(account, run_id=run_id):
        money.pin_holds([run_id])
        return _claim([run], owner, {run_id: running.limits_of(run, account.max_running)})[0]
    message = "The hold lapsed while the run waited, and the account has no room for a new one."
    error = Failed(ErrorClass.QUOTA, "QuotaExceeded", message, cause=Cause.QUOTA.value)
    return _refuse(account, run, error, owner.worker)


def refuse(run_id: UUID, fence: int, error: Failed, *, actor: str) -> Left | None:
    """End a queued or scheduled run that cannot be started. None if it does not wait at that fence any more.

    Must run in the caller's transaction, which writes the dead letter too.
    """
    locked = _lock_waiting(run_id, fence)
    return None if locked is None else _refuse(*locked, error, actor)


def _lock_waiting(run_id: UUID, fence: int) -> tuple[Account, Run] | None:
    account_id = Run.objects.filter(pk=run_id).values_list("account_id", flat=True).first()
    if account_id is None:
        return None
    account = money.lock_account(account_id)
    rows = lock_runs([run_id], bulky=True)
    if not rows or rows[0].state not in REFUSE.sources or rows[0].fence != fence:
        return None
    return account, rows[0]


def _refuse(account: Account, run: Run, error: Failed, actor: str) -> Left:
    slot = run.session_slot
    move = Move(
        run,
        REFUSE,
        actor=actor,
        at=database_time(run),
        data={"error": short(error), "cost": run.cost},
        changes=fail_columns(run, error),
    )
    row = transition([move])[0]
    money.close_holds(account, [bill_of(run, started=run.started_at is not None)])
    # Alone under the account's lock, so that locking the successor after its predecessor can meet nobody.
    heirs = lock_runs(sessions.successors(account.pk, [run.session])) if slot else []
    return Left(Moved(run, row), [run], sessions.hand_on(heirs, [slot], actor=actor))


def _claim(rows: Sequence[Run], owner: Owner, limits_by_run: Mapping[UUID, tuple[RunningLimit, ...]]) -> list[Claimed]:
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
                "waits_until": None,
                **limits.at_claim(row, database_time(row)),
            },
        )
        for row in rows
    ]
    started = transition(moves)
    again = {row.pk for row in rows if row.started_at is not None}
    for row, move in zip(rows, moves, strict=True):
        row.claim_token, row.worker = owner.token, owner.worker
        row.started_at, row.stop_at = move.changes["started_at"], move.changes["stop_at"]
    Attempt.objects.bulk_create(
        Attempt(run=row, fence=row.fence, number=row.attempt, worker=owner.worker, started_at=database_time(row))
        for row in rows
    )
    return [
        Claimed(row, owner.token, first, begun_before=row.pk in again, limits=_names_of(limits_by_run[row.pk]))
        for row, first in zip(rows, started, strict=True)
    ]


def _names_of(limits: tuple[RunningLimit, ...]) -> tuple[str, ...]:
    return tuple(limit.name for limit in limits)


def claimed_by(token: str) -> list[Claimed]:
    """Return what a claim with this token won: read after a commit whose answer was lost (protocol 1.8)."""
    mine = Run.objects.filter(claim_token=token, state=RunState.RUNNING)
    rows = list(mine.annotate(**running.ACCOUNT_LIMIT).order_by("pk"))
    firsts = {
        first.run_id: first
        for first in Transition.objects.filter(run_id__in=[row.pk for row in rows], kind=CLAIM.event).order_by("fence")
    }
    # Whether it had begun before is not told by the row any more: what rolls back nothing does no harm.
    return [
        Claimed(
            row,
            token,
            firsts[row.pk],
            begun_before=row.fence > CLAIM_FENCE,
            limits=_names_of(running.annotated_limits(row)),
        )
        for row in rows
    ]
