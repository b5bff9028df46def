"""Budget periods follow the account's own calendar."""

import datetime as dt

import pytest

from quotas.models import Account
from quotas.periods import period_end, period_key


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("period", "zone", "now", "key", "end"),
    [
        ("none", "UTC", "2026-11-29T10:00+00:00", "", None),
        ("day", "UTC", "2026-11-29T23:59:59+00:00", "2026-11-29", "2026-11-30T00:00+00:00"),
        ("day", "UTC", "2026-12-31T23:00+00:00", "2026-12-31", "2027-01-01T00:00+00:00"),
        ("day", "Asia/Tokyo", "2026-11-29T15:00+00:00", "2026-11-30", "2026-12-01T00:00+09:00"),
        ("day", "Pacific/Kiritimati", "2026-11-29T10:00+00:00", "2026-11-30", "2026-12-01T00:00+14:00"),
        ("month", "UTC", "2026-01-31T12:00+00:00", "2026-01", "2026-02-01T00:00+00:00"),
        ("month", "UTC", "2028-02-29T12:00+00:00", "2028-02", "2028-03-01T00:00+00:00"),
        ("month", "UTC", "2026-12-01T00:00+00:00", "2026-12", "2027-01-01T00:00+00:00"),
        ("month", "America/New_York", "2026-12-01T04:59+00:00", "2026-11", "2026-12-01T00:00-05:00"),
        # Clocks go back on 25 October 2026 and forward on 28 March 2027 in Berlin.
        ("day", "Europe/Berlin", "2026-10-25T00:30+02:00", "2026-10-25", "2026-10-26T00:00+01:00"),
        ("day", "Europe/Berlin", "2027-03-28T00:30+01:00", "2027-03-28", "2027-03-29T00:00+02:00"),
        ("month", "Europe/Berlin", "2026-10-01T00:00+02:00", "2026-10", "2026-11-01T00:00+01:00"),
    ],
)
def test_a_period_has_the_name_and_the_end_of_the_accounts_own_calendar(period, zone, now, key, end):
    account = Account(period=period, timezone=zone)

    assert period_key(account, at(now)) == key
    assert period_end(account, at(now)) == (None if end is None else at(end))


def test_a_day_of_a_clock_change_is_longer_or_shorter():
    account = Account(period="day", timezone="Europe/Berlin")
    starts = [at("2026-10-25T00:00+02:00"), at("2027-03-28T00:00+01:00")]

    lengths = [period_end(account, start).astimezone(dt.UTC) - start.astimezone(dt.UTC) for start in starts]

    assert lengths == [dt.timedelta(hours=25), dt.timedelta(hours=23)]
