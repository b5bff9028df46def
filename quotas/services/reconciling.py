"""Reconciling: counters set to what the rows say, and holds closed whose runs are proven to be over."""

from collections.abc import Sequence

from django.db.models.functions import Now

from quotas import audit
from quotas.drift import Figures, figures_of
from quotas.models import Account, Hold, LedgerEntry
from quotas.services.accounts import store
from quotas.services.settling import Bill, close_holds


def check_counters(account_id: int) -> Figures:
    """Return an account's counters, stored and counted. No lock is needed."""
    return figures_of(Account.objects.filter(pk=account_id))[0]


def repair_counters(account: Account, *, actor: str, request_id: str = "") -> Figures:
    """Set the locked account's counters to what its rows say, audited. Returns what was found before."""
    found = check_counters(account.pk)
    if found.drift:
        account.spent, account.held, account.in_flight = (
            found.counted[kind] for kind in ("spent", "held", "in_flight")
        )
        store(account)
        audit.record(
            actor=actor,
            action="account.reconciled",
            target_type="account",
            target_id=account.pk,
            before=found.stored,
            after=found.counted,
            request_id=request_id,
        )
    return found


def close_leaked(account: Account, bills: Sequence[Bill], *, actor: str, request_id: str = "") -> None:
    """Close open holds of runs that are over, on the locked account, audited. The caller has the proof under locks.

    A run with a settle line keeps it: its hold alone is closed, at what that line says.
    """
    lines = LedgerEntry.objects.filter(settle_key__in=[bill.run_id for bill in bills])
    settled = {line.settle_key: line.amount for line in lines if line.settle_key}
    close_holds(account, [bill for bill in bills if bill.run_id not in settled])
    for hold in Hold.objects.select_for_update().filter(run_id__in=list(settled), state__in=Hold.OPEN).order_by("pk"):
        account.held -= hold.amount if hold.state == Hold.State.ACTIVE else 0
        account.in_flight -= 1
        closed = {"state": Hold.State.SETTLED, "actual": settled[hold.run_id], "closed_at": Now(), "expires_at": None}
        Hold.objects.filter(pk=hold.pk).update(**closed)
    store(account)
    for bill in bills:
        audit.record(
            actor=actor,
            action="hold.released",
            target_type="run",
            target_id=bill.run_id,
            after={"account": account.name, "cost": bill.cost, "settled": bill.started or bill.run_id in settled},
            reason="its run is over",
            request_id=request_id,
        )
