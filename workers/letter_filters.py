"""What the filters of the dead letter list mean: one table for the list, the plans and bulk operations.

A query is what stands in the list's address. An unknown key or value is refused, never "everything": a bulk operation
acts on what it matches.
"""

from collections.abc import Callable, Mapping
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Q, QuerySet

from quotas.database import exactly
from quotas.days import moment_of
from quotas.models import Account
from runs.errors import InvalidFilter, UnknownFilter
from workers.dead_letters import in_state
from workers.models import DeadLetter

Rows = QuerySet[DeadLetter]
Narrow = Callable[[Rows, str], Rows]
UTC = ZoneInfo("UTC")
TEXT_MAX = 300
ID_DIGITS = 18  # a number of a row, under 2^63
IDS_MAX = 200  # letters named one by one
SEARCHED = 20_000  # the newest letters, in whose messages words are looked for: these have no index


def letters_matching(query: Mapping[str, str]) -> Rows:
    """Return the dead letters a query means, newest first; an empty value narrows nothing.

    Keys: `state_is` (as shown), `reason`, `error_class`, `agent_is`, `case` (its number), `account` (its name), `since`
    and `until` (when it was buried: a day of UTC, or a time with its offset), `ids` (with commas) and `q` (a run's
    whole id, or words of the message of the newest SEARCHED of them). Raises UnknownFilter and InvalidFilter.
    """
    return narrowed(DeadLetter.objects.order_by("-pk"), query)


def narrowed(rows: Rows, query: Mapping[str, str]) -> Rows:
    """Return those of the rows that a query means. Raises UnknownFilter and InvalidFilter."""
    for key, value in query.items():
        if key not in FILTERS:
            raise UnknownFilter(parameter=ascii(key[:60]), known=", ".join(FILTERS))
        if "\0" in value or (key != "ids" and len(value) > TEXT_MAX):
            raise InvalidFilter(parameter=key, problem=f"must be a text of at most {TEXT_MAX} characters")
    for key, narrow in FILTERS.items():  # in this order: words are looked for in what the others have left
        if query.get(key, "").strip():
            rows = narrow(rows, query[key].strip())
    return rows


def _state(rows: Rows, value: str) -> Rows:
    return in_state(rows, _one_of(value, "state_is", DeadLetter.State.values))


def _reason(rows: Rows, value: str) -> Rows:
    return rows.filter(reason=_one_of(value, "reason", DeadLetter.Reason.values))


def _account(rows: Rows, value: str) -> Rows:
    found = Account.objects.filter(name=value).values_list("pk", flat=True).first()
    return rows.none() if found is None else rows.filter(run__account=found)


def _case(rows: Rows, value: str) -> Rows:
    return rows.filter(case=_number(value, "case"))


def _ids(rows: Rows, value: str) -> Rows:
    ids = [_number(one, "ids") for one in value.split(",", IDS_MAX)]
    if len(ids) > IDS_MAX:
        raise InvalidFilter(parameter="ids", problem=f"must be at most {IDS_MAX} ids")
    return rows.filter(pk__in=ids)


def _search(rows: Rows, value: str) -> Rows:
    try:
        return rows.filter(run=UUID(value))
    except ValueError:
        pass
    words = Q()
    for word in value.split():
        words &= Q(message__icontains=word)
    oldest = rows.order_by("-pk").values_list("pk", flat=True)[SEARCHED - 1 : SEARCHED].first()
    return rows.filter(words) if oldest is None else rows.filter(words, pk__gte=oldest)


def _buried(*, is_end: bool) -> Narrow:
    """A day of UTC, the last one with all its hours; or a moment."""
    key, lookup = ("until", "buried_at__lt") if is_end else ("since", "buried_at__gte")

    def narrow(rows: Rows, value: str) -> Rows:
        try:
            return rows.filter(**{lookup: moment_of(value, UTC, is_end=is_end)})
        except (ValueError, OverflowError):
            raise InvalidFilter(parameter=key, problem="is no day, and no time with its offset") from None

    return narrow


def _one_of(value: str, key: str, known: list[str]) -> str:
    if value not in known:
        raise InvalidFilter(parameter=key, problem=f"must be one of {', '.join(known)}")
    return value


def _number(value: str, key: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= ID_DIGITS):
        raise InvalidFilter(parameter=key, problem="must be a number")
    return int(value)


FILTERS: dict[str, Narrow] = {
    "state_is": _state,
    "reason": _reason,
    "error_class": lambda rows, value: rows.filter(exactly("error_class", value)),
    "agent_is": lambda rows, value: rows.filter(exactly("run__agent", value)),
    "case": _case,
    "account": _account,
    "since": _buried(is_end=False),
    "until": _buried(is_end=True),
    "ids": _ids,
    "q": _search,
}
