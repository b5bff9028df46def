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
