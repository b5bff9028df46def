"""The account's row: its lock, its counters, and the turn of its period."""

import datetime as dt
from collections.abc import Iterable

from django.db.models.functions import Now

from quotas.drift import booked_in
from quotas.errors import TooManyInFlight
from quotas.models import Account, LedgerEntry
from quotas.periods import carried_over, period_key


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


def check_in_flight(account: Account) -> None:
    """Raise TooManyInFlight when the locked account has no place for another run."""
    if account.in_flight >= account.max_in_flight:
        raise TooManyInFlight(account=account.name, in_flight=account.in_flight, limit=account.max_in_flight)


def turn_period(account: Account, now: dt.datetime) -> None:
    """Move `spent` of the locked account to the period of `now`.

    It is stored at once, whatever the caller stores: the lines it books must be booked once. A new period starts at
    what is booked in it: nothing, or what the overdraft rule carries over (money 11).
    """
    key = period_key(account, now)
    if account.spent_period == key:
        return
    carried = carried_over(account, key)
    if carried:
        _book_carried(account, carried)
    account.spent_period, account.spent = key, booked_in([account.pk], key).get(account.pk, 0)
    store(account)


def _book_carried(account: Account, carried: dict[str, int]) -> None:
    """Book what is carried out of the stored period and into the later ones; the lines' sum is zero."""
    amounts = {account.spent_period: -sum(carried.values()), **carried}
    LedgerEntry.objects.bulk_create(
        LedgerEntry(account_id=account.pk, kind=LedgerEntry.Kind.CARRY, amount=amount, period=period)
        for period, amount in amounts.items()
    )


def available(account: Account) -> int:
    return account.limit - account.spent - account.held


def store(account: Account) -> None:
    """Write the counters of the locked account."""
    Account.objects.filter(pk=account.pk).update(
        spent=account.spent,
        spent_period=account.spent_period,
        held=account.held,
        in_flight=account.in_flight,
    )
