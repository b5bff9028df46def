"""Days in an account's time zone: what `from` and `to` mean, and on which day a moment lies, on every database."""

import datetime as dt
from zoneinfo import ZoneInfo

from django.db.models import Case, DateTimeField, When
from django.db.models.functions import TruncDate, TruncSecond

from quotas.database import shifted

YEARS = range(1970, 9999)  # what every database and every zone can tell apart


def moment_of(text: str, zone: ZoneInfo, *, is_end: bool = False) -> dt.datetime:
    """Return the moment a text means: an ISO 8601 time with its offset, or a day, which begins at its midnight.

    As an end a day is meant with all its hours: the midnight after it. Raises ValueError.
    """
    if len(text) == len("2026-11-29"):
        day = dt.date.fromisoformat(text)
        _check_year(day.year)
        return dt.datetime.combine(day + dt.timedelta(days=is_end), dt.time(), tzinfo=zone).astimezone(dt.UTC)
    moment = dt.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without its offset")
    _check_year(moment.year)
    return moment.astimezone(dt.UTC)


def _check_year(year: int) -> None:
    if year not in YEARS:
        raise ValueError("a year out of range")


def day_of(column: str, zone: ZoneInfo, first: dt.datetime, last: dt.datetime) -> TruncDate:
    """Return an expression: the zone's day on which a column's moment lies, for moments from `first` to `last`.

    The offsets are worked out here: MariaDB and MySQL know no zone unless somebody has loaded their tables.
    """
    *earlier, (_, offset) = _offsets(zone, first, last)
    second = TruncSecond(column, tzinfo=dt.UTC)  # SQLite would round the last millisecond of a day into the next one
    cases = [When(**{f"{column}__lt": until}, then=shifted(second, seconds)) for until, seconds in earlier]
    local = Case(*cases, default=shifted(second, offset), output_field=DateTimeField())
    return TruncDate(local, tzinfo=dt.UTC)


def _offsets(zone: ZoneInfo, first: dt.datetime, last: dt.datetime) -> list[tuple[dt.datetime, float]]:
    """Return the offsets from UTC in seconds in a span of time, each with the moment until which it holds."""
    found = []
    at, day = first, dt.timedelta(days=1)
    while at <= last:
        following = at + day
        if _offset(zone, at) != _offset(zone, following):
            following = _change(zone, at, following)
            found.append((following, _offset(zone, at)))
        at = following
    return [*found, (at, _offset(zone, at))]


def _change(zone: ZoneInfo, before: dt.datetime, after: dt.datetime) -> dt.datetime:
    """Return the second from which the offset of `before` no longer holds."""
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        same = _offset(zone, dt.datetime.fromtimestamp(middle, dt.UTC)) == _offset(zone, before)
        low, high = (middle, high) if same else (low, middle)
    return dt.datetime.fromtimestamp(high, dt.UTC)


def _offset(zone: ZoneInfo, at: dt.datetime) -> float:
    offset = at.astimezone(zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()
