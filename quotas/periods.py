"""Budget periods: pure functions of a passed `now` and the account's time zone (money 11)."""

import datetime as dt
from zoneinfo import ZoneInfo

from quotas.models import Account


def period_key(account: Account, now: dt.datetime) -> str:
    """Return the name of the period `now` lies in: "", "2026-11-29" or "2026-11", in the account's time zone."""
    local = now.astimezone(ZoneInfo(account.timezone))
    match account.period:
        case Account.Period.DAY:
            return local.strftime("%Y-%m-%d")
        case Account.Period.MONTH:
            return local.strftime("%Y-%m")
        case _:
            return ""


def period_start(account: Account, now: dt.datetime) -> dt.datetime | None:
    """Return when the current period began (aware, in the account's zone), or None where there is none."""
    zone = ZoneInfo(account.timezone)
    today = now.astimezone(zone).date()
    match account.period:
        case Account.Period.DAY:
            first = today
        case Account.Period.MONTH:
            first = today.replace(day=1)
        case _:
            return None
    return dt.datetime.combine(first, dt.time(), tzinfo=zone)


def period_end(account: Account, now: dt.datetime) -> dt.datetime | None:
    """Return when the current period ends (aware, in the account's zone), or None where there is none."""
    zone = ZoneInfo(account.timezone)
    local = now.astimezone(zone)
    match account.period:
        case Account.Period.DAY:
            following = local.date() + dt.timedelta(days=1)
        case Account.Period.MONTH:
            following = (local.date().replace(day=1) + dt.timedelta(days=32)).replace(day=1)
        case _:
            return None
    return dt.datetime.combine(following, dt.time(), tzinfo=zone)


def carried_over(account: Account, key: str) -> dict[str, int]:
    """Return what the overdraft of the stored period takes in each later one up to `key`, as {period: amount}.

    Empty where nothing is carried; else the sum is what was overdrawn. A period in between that nobody touched pays
    off as much as the limit, so that it does not matter when an account is looked at.
    """
    room = max(0, account.limit)
    left = account.spent - room
    if account.overdraft_rule != Account.OverdraftRule.CARRY or left <= 0:
        return {}
    carried = {}
    for period in _periods_between(account.spent_period, key):
        carried[period] = min(left, room)
        left -= carried[period]
    carried[key] = left
    return {period: amount for period, amount in carried.items() if amount}


def _periods_between(first: str, last: str) -> list[str]:
    """Return the names of the periods strictly between two of the same length; none where they are not comparable."""
    if len(first) != len(last) or not first < last:
        return []
    between = []
    name = _following(first)
    while name < last:
        between.append(name)
        name = _following(name)
    return between


def _following(name: str) -> str:
    """Return the name of the day after a day, or of the month after a month."""
    if len(name) == len("2026-11"):
        return (dt.date.fromisoformat(f"{name}-01") + dt.timedelta(days=32)).strftime("%Y-%m")
    return (dt.date.fromisoformat(name) + dt.timedelta(days=1)).isoformat()
