"""Which runs a query means: the same keys in the address of the console's list, in the API, and in bulk operations.

Each filter has its index on PostgreSQL (runs/migrations/0008_list_indexes.py says which). Texts of errors have none:
they are looked up in the newest ERROR_WINDOW failed runs that match the rest of the query, and the page says so.
"""

import datetime as dt
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Q, QuerySet
from django.utils import timezone

from quotas.database import exactly, later
from quotas.days import moment_of
from quotas.models import AMOUNT_MAX, MICRO, Account, Priority
from runs.errors import InvalidFilter, UnknownFilter
from runs.ids import first_id_at
from runs.listing import with_metadata, with_tag
from runs.models import Run
from runs.states import RunState

UTC = ZoneInfo("UTC")
ERROR_WINDOW = 2_000
TAG_WINDOW = 10_000
DEAR_MAX = 2_000
TEXT_MAX = 300
IDS_MAX = 200  # runs named one by one
OF_PAYLOAD = frozenset({"error", "tag", "metadata"})  # filters that look into what pages mask
AGO = re.compile(r"(\d{1,5})([mhd])")
UNITS = {"m": "minutes", "h": "hours", "d": "days"}
LOWEST, HIGHEST = "0" * 12 + "7" + "0" * 3 + "8" + "0" * 15, "f" * 12 + "7" + "f" * 3 + "b" + "f" * 15

Rows = QuerySet[Run]
Narrow = Callable[[Rows, str], Rows]


def runs_matching(query: Mapping[str, str], *, zone: ZoneInfo = UTC) -> Rows:
    """Return the runs a query means, newest first; an empty value narrows nothing.

    Keys: `state` (one, or several with commas), `agent`, `account` (its name), `queue`, `priority`, `session`, `tag`,
    `metadata` (`key` or `key=value`), `from` and `to` (when it was submitted: a day in `zone`, a time with its offset,
    `today`, or how long ago: `90m`, `24h`, `7d`), `min_cost` (credits), `waiting_over` (seconds in the queue),
    `error_class`, `error` (words of its text), `case` (a number) and `fingerprint` (of its dead letter's case),
    `worker`, `ids` (with commas) and `q` (see `searched_as`). Raises UnknownFilter and InvalidFilter.
    """
    for key, value in query.items():
        if key not in KEYS:
            raise UnknownFilter(parameter=ascii(key[:60]), known=", ".join(KEYS))
        if "\0" in value or (key != "ids" and len(value) > TEXT_MAX):
            raise InvalidFilter(parameter=key, problem=f"must be a text of at most {TEXT_MAX} characters")
    rows = Run.objects.order_by("-pk")
    for key, name in (("from", "pk__gte"), ("to", "pk__lt")):
        if query.get(key):
            rows = rows.filter(**{name: _id_at(key, query[key], zone)})
    for key, narrow in FILTERS.items():  # in this order: the last ones look at what the others have left
        if query.get(key):
            rows = narrow(rows, query[key].strip())
    return rows


def searched_as(term: str) -> str:
    """Return what the words of a search are taken for: "id", "session", "tag", "metadata" or "error".

    The first that fits: the beginning of an id (8 digits or more) that exists, a session, a tag (where they
    have no index, of the newest TAG_WINDOW runs), `key=value` of the metadata, else words of an error.
    """
    first_and_last = id_range(term)
    if first_and_last is not None and Run.objects.filter(pk__range=first_and_last).exists():
        return "id"
    if _session(Run.objects.all(), term).exists():
        return "session"
    if with_tag(_newest(Run.objects.all(), TAG_WINDOW), term).exists():
        return "tag"
    return "metadata" if "=" in term.strip("=") else "error"


def fixed(query: Mapping[str, str]) -> dict[str, str]:
    """Return a query that means the same whenever it is asked: what was searched for, and times by the clock.

    A search is taken for what exists at the moment, and "24h" moves. An operation that reads its targets page by page
    must not find a session where it began with words of an error.
    """
    found = dict(query)
    term = query.get("q", "").strip()
    kind = searched_as(term) if term else "id"
    if kind != "id" and not query.get(kind):
        found[kind] = found.pop("q").strip()
    for key in ("from", "to"):
        text = query.get(key, "").strip()
        if text == "today" or AGO.fullmatch(text):
            found[key] = _moment(text, UTC, is_end=key == "to").isoformat()
    return found


def needs_payload(query: Mapping[str, str]) -> bool:
    """Whether a query looks into what only those see who may see payloads: its matches would tell what is hidden."""
    if any(query.get(key, "").strip() for key in OF_PAYLOAD):
        return True
    term = query.get("q", "").strip()
    return bool(term) and searched_as(term) in OF_PAYLOAD


def _newest(rows: Rows, window: int) -> Rows:
    """Return the newest of the rows, as a range of keys; where tags have an index all of them."""
    if connection.vendor == "postgresql":
        return rows
    oldest = rows.order_by("-pk").values_list("pk", flat=True)[window - 1 : window].first()
    return rows if oldest is None else rows.filter(pk__gte=oldest)


def id_range(term: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Return the first and last id that begin with the term, or None if it is no beginning of an id."""
    digits = term.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    return uuid.UUID(digits + LOWEST[len(digits) :]), uuid.UUID(digits + HIGHEST[len(digits) :])


def _id_at(key: str, text: str, zone: ZoneInfo) -> uuid.UUID:
    """Return the first id of a moment: ids carry the time of their submit, so that no other index is needed."""
    try:
        return first_id_at(_moment(text.strip(), zone, is_end=key == "to").timestamp())
    except (ValueError, OverflowError):
        problem = "is no day, no time with its offset, and not like today, 90m, 24h or 7d"
        raise InvalidFilter(parameter=key, problem=problem) from None


def _moment(text: str, zone: ZoneInfo, *, is_end: bool) -> dt.datetime:
    now = timezone.now()
    if text == "today":
        text = now.astimezone(zone).date().isoformat()
    ago = AGO.fullmatch(text)
    return moment_of(text, zone, is_end=is_end) if ago is None else now - dt.timedelta(**{UNITS[ago[2]]: int(ago[1])})


def _state(rows: Rows, value: str) -> Rows:
    states = value.split(",")
    if not set(states) <= set(RunState.values):
        raise InvalidFilter(parameter="state", problem=f"must be of {', '.join(RunState.values)}")
    return rows.filter(state=states[0]) if len(states) == 1 else rows.filter(state__in=states)


def _agent(rows: Rows, value: str) -> Rows:
    return rows.filter(agent=value)


def _account(rows: Rows, value: str) -> Rows:
    found = Account.objects.filter(name=value).values_list("pk", flat=True).first()
    return rows.none() if found is None else rows.filter(account=found)


def _queue(rows: Rows, value: str) -> Rows:
    # Every state there is: for the index run_backlog, in which the state comes before the queue.
    return rows.filter(queue=value, state__in=RunState.values)


def _priority(rows: Rows, value: str) -> Rows:
    if value not in Priority.values:
        raise InvalidFilter(parameter="priority", problem=f"must be one of {', '.join(Priority.values)}")
    if value == Priority.NORMAL:
        return rows.filter(priority=value)
    return rows.filter(priority=value).exclude(priority=Priority.NORMAL)  # as the partial index says it


def _session(rows: Rows, value: str) -> Rows:
    # Named by every account there is: sessions are indexed by account.
    return rows.filter(exactly("session", value), account__in=Account.objects.order_by().values("pk"))


def _metadata(rows: Rows, value: str) -> Rows:
    key, has_value, wanted = value.partition("=")
    return with_metadata(rows, key, wanted if has_value else None)


def _min_cost(rows: Rows, value: str) -> Rows:
    try:
        amount = Decimal(value) * MICRO
        least = int(amount)
    except (ArithmeticError, ValueError):  # of a power of ten beyond any amount, too
        least = -1
    if not 0 <= least <= AMOUNT_MAX:
        raise InvalidFilter(parameter="min_cost", problem="must be an amount of credits")
    dear = Run.objects.filter(cost__gte=least, cost__gt=0)  # the second as the partial index says it
    ids = list(dear.order_by("-cost").values_list("pk", flat=True)[: DEAR_MAX + 1])
    # So few are named: what they are of a million no planner knows, and the newest of them may be far down.
    return rows.filter(pk__in=ids) if len(ids) <= DEAR_MAX else rows.filter(cost__gte=least, cost__gt=0)


def _waiting_over(rows: Rows, value: str) -> Rows:
    if not (value.isascii() and value.isdigit() and len(value) <= 8):
        raise InvalidFilter(parameter="waiting_over", problem="must be a number of seconds")
    return rows.filter(state=RunState.QUEUED, queued_at__lte=later(-int(value)))


def _error_class(rows: Rows, value: str) -> Rows:
    return rows.filter(error_class=value).exclude(error_class="")  # as the partial index says it


def _worker(rows: Rows, value: str) -> Rows:
    return rows.filter(exactly("worker", value)).exclude(worker="")  # as the partial index says it


def _case(rows: Rows, value: str) -> Rows:
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise InvalidFilter(parameter="case", problem="must be the number of a case")
    return rows.filter(dead_letter__case=int(value))


def _fingerprint(rows: Rows, value: str) -> Rows:
    return rows.filter(dead_letter__case__fingerprint=value)


def _ids(rows: Rows, value: str) -> Rows:
    try:
        ids = [uuid.UUID(one) for one in value.split(",")]
    except ValueError:
        raise InvalidFilter(parameter="ids", problem="must be ids of runs with commas between") from None
    if len(ids) > IDS_MAX:
        raise InvalidFilter(parameter="ids", problem=f"must be at most {IDS_MAX} ids")
    return rows.filter(pk__in=ids)


def _error(rows: Rows, value: str) -> Rows:
    failed = rows.filter(state=RunState.FAILED)
    oldest = failed.values_list("pk", flat=True)[ERROR_WINDOW - 1 : ERROR_WINDOW].first()
    if oldest is not None:
        failed = failed.filter(pk__gte=oldest)
    return failed.filter(Q(error__message__icontains=value) | Q(error__type__icontains=value))


def _search(rows: Rows, value: str) -> Rows:
    kind = searched_as(value)
    if kind == "id":
        return rows.filter(pk__range=id_range(value))
    return FILTERS[kind](rows, value)


FILTERS: dict[str, Narrow] = {
    "state": _state,
    "agent": _agent,
    "account": _account,
    "queue": _queue,
    "priority": _priority,
    "session": _session,
    "tag": with_tag,
    "metadata": _metadata,
    "min_cost": _min_cost,
    "waiting_over": _waiting_over,
    "error_class": _error_class,
    "case": _case,
    "fingerprint": _fingerprint,
    "worker": _worker,
    "ids": _ids,
    "error": _error,
    "q": _search,
}
KEYS = ("from", "to", *FILTERS)
