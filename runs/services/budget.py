"""Raising what is reserved for a run that has spent more than its hold (money 6)."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from quotas import services as money
from quotas.database import in_transaction
from quotas.models import AMOUNT_MAX
from runs.models import Run
from runs.states import RunState
from runs.transitions import lock_runs

STEP_MIN = 1000  # micro-units: small reports must not need a transaction each


class Verdict(StrEnum):
    """What became of the wish for more."""

    EXTENDED = "extended"
    NO_ROOM = "no_room"  # the account has none for what is spent
    CANCELLED = "cancelled"  # a cancel mark was there first: no more is reserved for a run that is to end
    LOST = "lost"  # the run is somebody else's by now, or has ended


@dataclass(frozen=True, slots=True)
class Extension:
    """The verdict, and what is reserved for the run now, in micro-units; 0 when it is lost."""

    verdict: Verdict
    budget: int


def extend_budget(*, run_id: UUID, account_id: int, fence: int, claim_token: str, spent: int) -> Extension:
    """Reserve at least `spent` (over all attempts) for a running run of this owner, in a transaction of its own.

    Half as much again where the account has room for it, else STEP_MIN more, else exactly what is spent. May be
    repeated: an answer that was lost is given again (protocol 1.8). Raises Busy and the database's errors.
    """

    def work() -> Extension:
        account = money.lock_account(account_id)
        run = next(iter(lock_runs([run_id])), None)
        if run is None or run.state != RunState.RUNNING or run.fence != fence or run.claim_token != claim_token:
            return Extension(Verdict.LOST, 0)
        if run.budget >= spent:
            return Extension(Verdict.EXTENDED, run.budget)
        if run.cancel_requested_at is not None:
            return Extension(Verdict.CANCELLED, run.budget)
        for amount in (spent + max(spent // 2, STEP_MIN), spent + STEP_MIN, spent):
            if amount <= AMOUNT_MAX and money.extend_hold(account, run_id=run_id, amount=amount):
                Run.objects.filter(pk=run_id).update(budget=amount)
                return Extension(Verdict.EXTENDED, amount)
        return Extension(Verdict.NO_ROOM, run.budget)

    return in_transaction(work)
