"""Reading of money: an account's figures and its holds. Nothing here writes."""

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any
from uuid import UUID

from django.db.models import Q, Sum
from django.db.models.functions import Now
from django.utils import timezone

from quotas.database import database_time
from quotas.drift import booked_in
from quotas.models import Account, Hold
from quotas.periods import carried_over, period_end, period_key


def spent_in_period(account: Account, now: dt.datetime) -> int:
    """Return what counts as spent at `now`: what whoever locks the account then finds, or makes of it."""
    return spent_by_account([account], now)[account.pk]


def spent_by_account(accounts: Iterable[Account], now: dt.datetime) -> dict[int, int]:
    """Return what counts as spent at `now`, by account id.

    An account whose stored period is another has what is booked in the period of `now`, and the overdraft that is
    carried into it. One statement for each such period; none where there is none.
    """
    spent: dict[int, int] = {}
    elsewhere = defaultdict[str, list[int]](list)
    for account in accounts:
        key = period_key(account, now)
        is_turned = account.spent_period == key
        spent[account.pk] = account.spent if is_turned else carried_over(account, key).get(key, 0)
        if not is_turned:
            elsewhere[key].append(account.pk)
    for key, account_ids in elsewhere.items():
        for account_id, amount in booked_in(account_ids, key).items():
            spent[account_id] += amount
    return spent


def quota_of(account: Account, now: dt.datetime | None = None) -> dict[str, Any]:
    """Return the account's figures in micro-units, read afresh: what `GET /quota` answers."""
    fresh = Account.objects.get(pk=account.pk)
    now = now or timezone.now()
    fresh.spent = spent_in_period(fresh, now)
    return quota_figures(fresh, now)


def quota_figures(account: Account, now: dt.datetime) -> dict[str, Any]:
    """Return the figures of an account whose `spent` is that of the period of `now`."""
    return {
        "account": account.name,
        "limit": account.limit,
        "spent": account.spent,
        "held": account.held,
        "available": account.limit - account.spent - account.held,
        "in_flight": account.in_flight,
        "max_in_flight": account.max_in_flight,
        "max_running": account.max_running,
        "period": account.period,
        "period_ends_at": period_end(account, now),
    }


def account_now(account_id: int, *, without: Collection[UUID] = ()) -> Account:
    """Return the account with the figures that a submit would find under its lock now; not to be saved.

    Its period is turned and lapsed holds do not count; `without` are runs that would be ended before.
    """
    account = Account.objects.annotate(db_now=Now()).get(pk=account_id)
    account.spent = spent_in_period(account, database_time(account))
    lapsed = Q(state=Hold.State.ACTIVE, expires_at__lt=Now())
    gone = Hold.objects.filter(lapsed | Q(state=Hold.State.ACTIVE, run_id__in=without), account_id=account_id)
    account.held -= gone.aggregate(total=Sum("amount"))["total"] or 0
    if without:
        account.in_flight -= Hold.objects.filter(run_id__in=without, state__in=Hold.OPEN).count()
    return account


def holds_of(run_ids: Iterable[UUID]) -> dict[UUID, Hold]:
    """Return the holds by run id."""
    return {hold.run_id: hold for hold in Hold.objects.filter(run_id__in=list(run_ids))}
