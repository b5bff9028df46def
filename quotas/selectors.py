"""Reading of money: an account's figures, its ledger, its holds. Nothing here writes."""

import datetime as dt
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.utils import timezone

from quotas.models import Account, Hold, LedgerEntry
from quotas.periods import period_end, period_key


def spent_in_period(account: Account, now: dt.datetime) -> int:
    """Return what counts as spent at `now`: 0 when the stored figure belongs to an earlier period."""
    return account.spent if account.spent_period == period_key(account, now) else 0


def quota_of(account: Account, now: dt.datetime | None = None) -> dict[str, Any]:
    """Return the account's figures in micro-units, read afresh: what `GET /quota` answers."""
    fresh = Account.objects.get(pk=account.pk)
    now = now or timezone.now()
    spent = spent_in_period(fresh, now)
    return {
        "account": fresh.name,
        "limit": fresh.limit,
        "spent": spent,
        "held": fresh.held,
        "available": fresh.limit - spent - fresh.held,
        "in_flight": fresh.in_flight,
        "max_in_flight": fresh.max_in_flight,
        "max_running": fresh.max_running,
        "period": fresh.period,
        "period_ends_at": period_end(fresh, now),
    }


def holds_of(run_ids: Iterable[UUID]) -> dict[UUID, Hold]:
    """Return the holds by run id."""
    return {hold.run_id: hold for hold in Hold.objects.filter(run_id__in=list(run_ids))}


def ledger_of(account: Account, *, before: int | None = None, limit: int = 50) -> list[LedgerEntry]:
    """Return the account's newest ledger entries, older than the entry `before`."""
    rows = LedgerEntry.objects.filter(account=account).order_by("-id")
    if before is not None:
        rows = rows.filter(id__lt=before)
    return list(rows[:limit])
