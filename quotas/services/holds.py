"""Holds: reserved at the door, pinned while a run runs, extended, expired, armed again."""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from quotas.database import database_time, later
from quotas.errors import QuotaExceeded
from quotas.models import Account, Hold
from quotas.periods import period_end
from quotas.services.accounts import available, lock_account, store, turn_period

CLOSED = (Hold.State.SETTLED, Hold.State.RELEASED)


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
        turn_period(account, database_time(account))
        store(account)
    return expired


def place_hold(account: Account, *, run_id: UUID, amount: int, lapses_after: float) -> Hold:
    """Reserve `amount` for a run on the locked account, or raise QuotaExceeded. `lapses_after` is in seconds."""
    now = database_time(account)
    turn_period(account, now)
    expire_lapsed(account)
    check_available(account, amount, now)
    hold = Hold.objects.create(
        run_id=run_id,
        account_id=account.pk,
        amount=amount,
        expires_at=now + dt.timedelta(seconds=lapses_after),
    )
    account.held += amount
    account.in_flight += 1
    store(account)
    return hold


def check_available(account: Account, needed: int, now: dt.datetime) -> None:
    """Raise QuotaExceeded when the account, its figures being those of `now`, has not that much available."""
    if needed > available(account):
        raise QuotaExceeded(**quota_facts(account, needed, now))


def quota_facts(account: Account, needed: int, now: dt.datetime) -> dict[str, Any]:
    """Return the facts of a 402 (money 9)."""
    ends = period_end(account, now)
    return {
        "account": account.name,
        "limit": account.limit,
        "spent": account.spent,
        "held": account.held,
        "available": available(account),
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
    if hold.state != Hold.State.EXPIRED or not _take_room(account, hold.amount):
        return False
    Hold.objects.filter(pk=hold.pk).update(state=Hold.State.ACTIVE, expires_at=None)
    return True


def extend_hold(account: Account, *, run_id: UUID, amount: int) -> bool:
    """Raise the active hold of a run to `amount` on the locked account, if `available` has room for the difference.

    A hold that has as much already is left as it is, and True: the call may be repeated. False changes nothing: no
    room, or the hold is not active (money 6).
    """
    hold = (
        Hold.objects.select_for_update().filter(run_id=run_id, account_id=account.pk, state=Hold.State.ACTIVE).first()
    )
    if hold is None:
        return False
    if amount <= hold.amount:
        return True
    if not _take_room(account, amount - hold.amount):
        return False
    Hold.objects.filter(pk=hold.pk).update(amount=amount, extensions=F("extensions") + 1)
    return True


def _take_room(account: Account, amount: int) -> bool:
    """Count `amount` as held on the locked account if there is room, without what others' lapsed holds take."""
    turn_period(account, database_time(account))
    expired = expire_lapsed(account)
    has_room = amount <= available(account)
    if has_room:
        account.held += amount
    if has_room or expired:
        store(account)
    return has_room


def lapse_from_now(run_ids: Sequence[UUID], *, seconds: float) -> None:
    """Let the holds of runs that left `running` without ending lapse again."""
    Hold.objects.filter(run_id__in=run_ids, state=Hold.State.ACTIVE).update(expires_at=later(seconds))


def forget_holds(run_ids: Iterable[UUID]) -> int:
    """Delete the closed holds of runs that are no more; an open one stays. Returns how many. The ledger stays."""
    return Hold.objects.filter(run_id__in=list(run_ids), state__in=CLOSED).delete()[0]
