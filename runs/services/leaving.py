"""Leaving `running` without an answer: handed back by an owner who could not begin, or taken over from a lost one."""

import datetime as dt
from dataclasses import dataclass
from uuid import UUID

from django.db.models.functions import Now

from quotas import services as money
from quotas.database import database_time
from quotas.prices import PriceTable
from quotas.services import Bill
from runs.events import event_id
from runs.models import Attempt, Run, Transition
from runs.outcomes import ErrorClass
from runs.services.attempts import add_usage
from runs.services.claims import Claimed
from runs.services.submit import LAPSE_MARGIN_SECONDS
from runs.states import CONFIRM_CANCEL, HAND_BACK, INTERRUPT, RunState
from runs.transitions import Move, lock_runs, transition

HANDED_BACK = "handed_back"


def hand_back(claimed: Claimed, *, actor: str, reason: str, above: int = 0) -> tuple[Run, Transition] | None:
    """Return a run that could not be begun to its queue, uncounted; one marked for cancel ends here instead.

    The new fence is above `above` as well: a log that is ahead of the row must not stay so. None if the run is not
    this owner's any more. Must run in the caller's transaction.
    """
    account = money.lock_account(claimed.run.account_id)
    rows = [row for row in lock_runs([claimed.run.pk]) if _is_owned(row, claimed)]
    if not rows:
        return None
    run = rows[0]
    begun_before = run.attempts.exclude(fence=claimed.fence).exclude(outcome=HANDED_BACK).exists()
    edge = HAND_BACK if run.cancel_requested_at is None else CONFIRM_CANCEL
    move = Move(
        run,
        edge,
        actor=actor,
        at=database_time(run),
        data={"reason": reason},
        prev=event_id(claimed.fence, 1),
        changes={} if begun_before else {"started_at": None},
        above=above,
    )
    row = transition([move])[0]
    Attempt.objects.filter(run=run, fence=claimed.fence).update(outcome=HANDED_BACK, ended_at=Now())
    if run.is_terminal:
        money.close_holds(account, [Bill(run.pk, run.cost, started=begun_before)])
    else:
        lapses = run.queue_wait_seconds + run.time_limit_seconds + LAPSE_MARGIN_SECONDS
        money.lapse_from_now([run.pk], seconds=lapses)
    return run, row


def _is_owned(run: Run, claimed: Claimed) -> bool:
    return run.state == RunState.RUNNING and run.fence == claimed.fence and run.claim_token == claimed.token


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
        at=database_time(run),
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
    money.close_holds(account, [Bill(run.pk, cost, price_book=PriceTable.current().version)])
    return row


def _is_lost(run: Run, lost: Lost) -> bool:
    """Whether the row still is as it was seen, and its lease has lapsed by the database's clock."""
    return (
        run.state == RunState.RUNNING
        and run.fence == lost.fence
        and run.lease_expires_at == lost.lease_expires_at
        and lost.lease_expires_at < database_time(run)
    )
