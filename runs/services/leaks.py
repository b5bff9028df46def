"""Leaked holds: open although their run is over. They are closed only with proof, read under the locks (money 4)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from quotas import services as money
from quotas.database import in_transaction
from quotas.drift import Figures
from quotas.models import Hold
from quotas.services import Bill
from runs.models import Run
from runs.services.holding import bill_of
from runs.states import OPEN
from runs.transitions import lock_runs

OPEN_STATES = [str(state) for state in OPEN]
PAGE = 100  # holds of one transaction: no submit of the account waits longer than for these


@dataclass(frozen=True, slots=True)
class Leak:
    """An open hold and the proof that nobody needs it: the `state` its run ended in, "" where no such run exists."""

    run_id: UUID
    state: str
    bill: Bill


@dataclass(frozen=True, slots=True)
class Reconciled:
    """One account as it was found: its counters with their drift, and its leaked holds."""

    figures: Figures
    leaks: list[Leak] = field(default_factory=list)


def reconcile(account_id: int, *, fix: bool, actor: str, request_id: str = "") -> Reconciled:
    """Compare an account's counters with its rows, and look for leaked holds; with `fix` repair both, audited.

    The rows are summed up without a lock; where that finds something to repair, once more under it.
    """

    def repaired() -> Figures:
        return money.repair_counters(money.lock_account(account_id), actor=actor, request_id=request_id)

    figures = money.check_counters(account_id)
    found = Reconciled(in_transaction(repaired) if fix and figures.drift else figures)
    after = 0
    while True:
        holds = Hold.objects.filter(account_id=account_id, state__in=Hold.OPEN, pk__gt=after)
        page = list(holds.order_by("pk").values_list("pk", "run_id")[:PAGE])
        if not page:
            return found
        suspects = _suspects([run_id for _, run_id in page])
        if suspects:
            work = partial(_prove, account_id, suspects, fix=fix, actor=actor, request_id=request_id)
            found.leaks.extend(in_transaction(work))
        after = page[-1][0]


def release_leaked(account_id: int, run_id: UUID, *, actor: str, request_id: str = "") -> Leak | None:
    """Close one hold, if its run is proven to be over; else, or where it is closed already, change nothing."""
    leaks = in_transaction(partial(_prove, account_id, [run_id], fix=True, actor=actor, request_id=request_id))
    return leaks[0] if leaks else None


def _suspects(run_ids: Sequence[UUID]) -> list[UUID]:
    """Return the runs that are not open, read without a lock: most runs end between two looks, and are no leak."""
    alive = set(Run.objects.filter(pk__in=run_ids, state__in=OPEN_STATES).values_list("pk", flat=True))
    return [run_id for run_id in run_ids if run_id not in alive]


def _prove(account_id: int, suspects: Sequence[UUID], *, fix: bool, actor: str, request_id: str) -> list[Leak]:
    """Look again under the account's lock, without which no run begins or ends, and close what is proven a leak."""
    account = money.lock_account(account_id)
    rows = {row.pk: row for row in lock_runs(suspects)}
    holds = Hold.objects.filter(account_id=account_id, run_id__in=suspects, state__in=Hold.OPEN).order_by("pk")
    leaks = [_leak(hold.run_id, rows.get(hold.run_id)) for hold in holds if _is_over(rows.get(hold.run_id))]
    if fix and leaks:
        money.close_leaked(account, [leak.bill for leak in leaks], actor=actor, request_id=request_id)
    return leaks


def _is_over(run: Run | None) -> bool:
    """The proof: no such run, or one in a state that no edge leaves."""
    return run is None or run.is_terminal


def _leak(run_id: UUID, run: Run | None) -> Leak:
    if run is None:
        return Leak(run_id, "", Bill(run_id, 0, started=False))
    return Leak(run_id, run.state, bill_of(run, started=run.started_at is not None))
