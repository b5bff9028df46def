"""Closing holds: settled by what was really spent, released where nothing began; once each (money 3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Case, Q, Value, When
from django.db.models.functions import Now

from quotas.database import database_time
from quotas.models import Account, Hold, LedgerEntry
from quotas.services.accounts import available, store, turn_period

SETTLED, RELEASED = Hold.State.SETTLED, Hold.State.RELEASED


@dataclass(frozen=True, slots=True)
class Bill:
    """What an ended run really cost. `started` is False for a run that never began: released, no ledger line.

    `agent` is opaque: a name by which the ledger is summed up.
    """

    run_id: UUID
    cost: int
    started: bool = True
    price_book: int | None = None  # by which the cost was priced
    agent: str = ""
    waived_by: str = ""  # who decided that nobody pays: the cost is written off in the same transaction


def close_holds(account: Account, bills: Sequence[Bill]) -> None:
    """Settle or release the holds of runs that end in this transaction, on the locked account (money 3).

    Conditional: a hold that is neither active nor expired was closed before, and is left alone with its counters.
    """
    holds = {
        hold.run_id: hold
        for hold in Hold.objects.select_for_update()
        .filter(
            run_id__in=[bill.run_id for bill in bills],
            state__in=Hold.OPEN,
        )
        .order_by("pk")
    }
    due = [bill for bill in bills if bill.run_id in holds]
    if not due:
        return
    turn_period(account, database_time(account))
    _mark_closed(due)
    free = available(account)
    entries = []
    for bill in due:
        hold = holds[bill.run_id]
        if hold.state == Hold.State.ACTIVE:
            account.held -= hold.amount
            free += hold.amount
        account.in_flight -= 1
        if bill.started:
            entries.append(_settle_entry(account, bill, overdraft=not bill.waived_by and bill.cost > free))
            if bill.waived_by and bill.cost:
                entries.append(_write_off_entry(account, bill))
                continue
            account.spent += bill.cost
            free -= bill.cost
    if entries:
        LedgerEntry.objects.bulk_create(entries)
    store(account)


def _mark_closed(due: Sequence[Bill]) -> None:
    state = _per_run(due, lambda bill: str(SETTLED if bill.started else RELEASED))
    Hold.objects.filter(
        Q(run_id__in=[bill.run_id for bill in due]),
        state__in=Hold.OPEN,
    ).update(
        actual=_per_run(due, lambda bill: bill.cost),
        closed_at=Now(),
        expires_at=None,
        state=state,
    )


def _per_run(due: Sequence[Bill], value: Callable[[Bill], str | int]) -> str | int | Case:
    """Return an UPDATE's right side: one value where all are the same, else a CASE by run."""
    values = [value(bill) for bill in due]
    if len(set(values)) == 1:
        return values[0]
    return Case(*(When(run_id=b.run_id, then=Value(v)) for b, v in zip(due, values, strict=True)))


def _settle_entry(account: Account, bill: Bill, *, overdraft: bool) -> LedgerEntry:
    return LedgerEntry(
        account_id=account.pk,
        run_id=bill.run_id,
        settle_key=bill.run_id,
        kind=LedgerEntry.Kind.SETTLE,
        amount=bill.cost,
        period=account.spent_period,
        agent=bill.agent,
        overdraft=overdraft,
        price_book_id=bill.price_book,
    )


def forget_who_and_why(account_id: int) -> int:
    """Empty the texts of an account's ledger lines; amounts, kinds and times stay. Returns how many lines had any."""
    told = LedgerEntry.objects.filter(account_id=account_id).exclude(actor="", reason="")
    return told.update(actor="", reason="")


def _write_off_entry(account: Account, bill: Bill) -> LedgerEntry:
    """Return the line that takes a waived cost off again: both together leave the account as it was."""
    return LedgerEntry(
        account_id=account.pk,
        run_id=bill.run_id,
        kind=LedgerEntry.Kind.WRITE_OFF,
        amount=-bill.cost,
        period=account.spent_period,
        agent=bill.agent,
        actor=bill.waived_by,
        reason="Waived when the run was requeued.",
    )
