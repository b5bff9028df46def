"""The only writer of holds, ledger and account counters. Callers hold the account's row lock first (protocol 1.4).

The counters move in the transaction that writes the rows they cache. Sums over several runs take one statement a
table: one settlement of sixteen runs costs what one of one run costs.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Case, Q, Value, When
from django.db.models.functions import Now

from quotas.database import database_time, later
from quotas.errors import QuotaExceeded, TooManyInFlight
from quotas.models import Account, Hold, LedgerEntry
from quotas.periods import period_end, period_key

SETTLED, RELEASED = Hold.State.SETTLED, Hold.State.RELEASED


def ensure_account(name: str) -> Account:
    """Return the account of that name, made with the defaults if it is not there."""
    return Account.objects.get_or_create(name=name)[0]


def lock_account(account_id: int) -> Account:
    """Take the account's row lock and return the row. The first lock of every transaction that moves money."""
    return lock_accounts([account_id])[account_id]


def lock_accounts(account_ids: Iterable[int]) -> dict[int, Account]:
    """Take the row locks of accounts in the order of their ids; each row has the database's time as `db_now`."""
    rows = Account.objects.annotate(db_now=Now()).select_for_update().filter(pk__in=set(account_ids)).order_by("pk")
    return {row.pk: row for row in rows}


def _turn_period(account: Account, now: dt.datetime) -> None:
    """Move `spent` to the period of `now` in memory; the caller's UPDATE stores both."""
    key = period_key(account, now)
    if account.spent_period != key:
        account.spent_period, account.spent = key, 0


def _store(account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(
        spent=account.spent,
        spent_period=account.spent_period,
        held=account.held,
        in_flight=account.in_flight,
    )


def check_in_flight(account: Account) -> None:
    """Raise TooManyInFlight when the locked account has no place for another run."""
    if account.in_flight >= account.max_in_flight:
        raise TooManyInFlight(account=account.name, in_flight=account.in_flight, limit=account.max_in_flight)


def expire_lapsed(account: Account) -> int:
    """Move lapsed holds to `expired` and lower `held` in memory (money 4). Returns how many. One read when none."""
    lapsed = list(
        Hold.objects.select_for_update()
        .filter(account_id=account.pk, state=Hold.State.ACTIVE, expires_at__lt=Now())
        .order_by("pk")
        .values_list("pk", "amount")
    )
    if lapsed:
        Hold.objects.filter(pk__in=[pk for pk, _ in lapsed]).update(state=Hold.State.EXPIRED)
        account.held -= sum(amount for _, amount in lapsed)
    return len(lapsed)


def accounts_with_lapsed_holds(limit: int = 100) -> list[int]:
    """Return the ids of accounts that hold amounts for runs nobody looks after any more."""
    lapsed = Hold.objects.filter(state=Hold.State.ACTIVE, expires_at__lt=Now())
    return list(lapsed.order_by().values_list("account_id", flat=True).distinct()[:limit])


def expire_holds_of(account_id: int) -> int:
    """Expire an account's lapsed holds, account first (money 4). Returns how many. In the caller's transaction."""
    account = lock_account(account_id)
    expired = expire_lapsed(account)
    if expired:
        _turn_period(account, database_time(account))
        _store(account)
    return expired


def place_hold(account: Account, *, run_id: UUID, amount: int, lapses_after: float) -> Hold:
    """Reserve `amount` for a run on the locked account, or raise QuotaExceeded. `lapses_after` is in seconds."""
    now = database_time(account)
    _turn_period(account, now)
    expire_lapsed(account)
    available = account.limit - account.spent - account.held
    if amount > available:
        raise QuotaExceeded(**quota_facts(account, amount, now))
    hold = Hold.objects.create(
        run_id=run_id,
        account_id=account.pk,
        amount=amount,
        expires_at=now + dt.timedelta(seconds=lapses_after),
    )
    account.held += amount
    account.in_flight += 1
    _store(account)
    return hold


def quota_facts(account: Account, needed: int, now: dt.datetime) -> dict[str, Any]:
    """Return the facts of a 402 (money 9)."""
    ends = period_end(account, now)
    return {
        "account": account.name,
        "limit": account.limit,
        "spent": account.spent,
        "held": account.held,
        "available": account.limit - account.spent - account.held,
        "needed": needed,
        "period_ends_at": None if ends is None else ends.isoformat(),
        "retry_after": None if ends is None else max(1.0, (ends - now).total_seconds()),
    }


def pin_holds(run_ids: Sequence[UUID]) -> list[UUID]:
    """Stop the lapsing of the runs' active holds for as long as they run. Returns the runs whose hold is not active.

    Takes no account lock: it changes no counter (protocol 1.4).
    """
    pinned = Hold.objects.filter(run_id__in=run_ids, state=Hold.State.ACTIVE).update(expires_at=None)
    if pinned == len(run_ids):
        return []
    active = set(Hold.objects.filter(run_id__in=run_ids, state=Hold.State.ACTIVE).values_list("run_id", flat=True))
    return [run_id for run_id in run_ids if run_id not in active]


def rearm_hold(account: Account, *, run_id: UUID) -> bool:
    """Re-arm an expired hold on the locked account, if `available` has room for it (money 4)."""
    hold = Hold.objects.select_for_update().get(run_id=run_id)
    if hold.state == Hold.State.ACTIVE:
        return True
    _turn_period(account, database_time(account))
    if hold.state != Hold.State.EXPIRED or hold.amount > account.limit - account.spent - account.held:
        return False
    Hold.objects.filter(pk=hold.pk).update(state=Hold.State.ACTIVE, expires_at=None)
    account.held += hold.amount
    _store(account)
    return True


def lapse_from_now(run_ids: Sequence[UUID], *, seconds: float) -> None:
    """Let the holds of runs that left `running` without ending lapse again."""
    Hold.objects.filter(run_id__in=run_ids, state=Hold.State.ACTIVE).update(expires_at=later(seconds))


@dataclass(frozen=True, slots=True)
class Bill:
    """What an ended run really cost. `started` is False for a run that never began: released, no ledger line."""

    run_id: UUID
    cost: int
    started: bool = True
    price_book: int | None = None  # by which the cost was priced


def close_holds(account: Account, bills: Sequence[Bill]) -> None:
    """Settle or release the holds of runs that end in this transaction, on the locked account (money 3).

    Conditional: a hold that is neither active nor expired was closed before, and is left alone with its counters.
    """
    holds = {
        hold.run_id: hold
        for hold in Hold.objects.select_for_update()
        .filter(
            run_id__in=[bill.run_id for bill in bills],
            state__in=(Hold.State.ACTIVE, Hold.State.EXPIRED),
        )
        .order_by("pk")
    }
    due = [bill for bill in bills if bill.run_id in holds]
    if not due:
        return
    _turn_period(account, database_time(account))
    _mark_closed(due)
    free = account.limit - account.spent - account.held
    entries = []
    for bill in due:
        hold = holds[bill.run_id]
        if hold.state == Hold.State.ACTIVE:
            account.held -= hold.amount
            free += hold.amount
        account.in_flight -= 1
        if bill.started:
            entries.append(_settle_entry(account, bill, overdraft=bill.cost > free))
            account.spent += bill.cost
            free -= bill.cost
    if entries:
        LedgerEntry.objects.bulk_create(entries)
    _store(account)


def _mark_closed(due: Sequence[Bill]) -> None:
    state = _per_run(due, lambda bill: str(SETTLED if bill.started else RELEASED))
    Hold.objects.filter(
        Q(run_id__in=[bill.run_id for bill in due]),
        state__in=(Hold.State.ACTIVE, Hold.State.EXPIRED),
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
        overdraft=overdraft,
        price_book_id=bill.price_book,
    )


def forget_holds(run_ids: Iterable[UUID]) -> int:
    """Delete the closed holds of runs that are no more; an open one stays. Returns how many. The ledger stays."""
    return Hold.objects.filter(run_id__in=list(run_ids), state__in=(SETTLED, RELEASED)).delete()[0]


def forget_who_and_why(account_id: int) -> int:
    """Empty the texts of an account's ledger lines; amounts, kinds and times stay. Returns how many lines had any."""
    told = LedgerEntry.objects.filter(account_id=account_id).exclude(actor="", reason="")
    return told.update(actor="", reason="")
