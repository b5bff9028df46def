"""What an account's runs have cost, summed up by agent, session, tag, day, run or attempt (docs/money.md).

Settled amounts are sums of ledger lines, so they agree with the ledger to the unit. Of runs that retention deleted the
ledger keeps agent, day and run; by session, tag and attempt their lines count under no key. What open runs have cost
so far is in no line yet: it is told apart, as `accrued`, and falls on the day of the question.
"""

import datetime as dt
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Count, F, Max, Min, Q, QuerySet, Sum
from django.db.models.expressions import Expression
from django.utils import timezone

from quotas.database import by_bytes, exactly
from quotas.days import day_of
from quotas.ledger import Asked, lines_of
from quotas.models import Account, LedgerEntry
from quotas.periods import period_start
from runs.listing import JOINED, sums_by, with_tag
from runs.models import Attempt, Run
from runs.states import OPEN

BY = ("agent", "session", "tag", "day", "run", "attempt")
AMOUNTS = ("settled", "manual", "accrued", "runs")
NEWEST_FIRST = frozenset({"day", "run", "attempt"})
PIECE = 200
DAYS = 366  # the longest span a question may have
DAYS_BEFORE = 31  # the span where nothing says otherwise
SETTLE = LedgerEntry.Kind.SETTLE
SUMS = {
    "settled": Sum("amount", filter=Q(kind=SETTLE), default=0),
    "runs": Count("pk", filter=Q(kind=SETTLE)),
    "manual": Sum("amount", filter=~Q(kind=SETTLE), default=0),
}


@dataclass(frozen=True, slots=True)
class Question:
    """Whose runs, and which: each condition that is None does not count. `start` belongs to it, `end` does not."""

    account: Account
    start: dt.datetime | None = None
    end: dt.datetime | None = None
    agent: str | None = None
    session: str | None = None
    tag: str | None = None


@dataclass(slots=True)
class Total:
    """What lies under one key, in micro-units. `manual` are grants, adjustments and write-offs; `runs` have settled."""

    key: str | None
    settled: int = 0
    manual: int = 0
    accrued: int = 0
    runs: int = 0

    def __bool__(self) -> bool:
        return bool(self.settled or self.manual or self.accrued or self.runs)


class Page(NamedTuple):
    """Totals in the order of their keys, and the key after which the next page goes on, if there is more."""

    results: list[Total]
    next: str | None


class SpanTooLong(ValueError):
    """A question is about more days than are added up in one request."""


def span_of(
    account: Account, start: dt.datetime | None, end: dt.datetime | None
) -> tuple[dt.datetime, dt.datetime | None]:
    """Return the span that is added up: every line of an account's life is too many for one request.

    Without `start` it begins with the account's current period, or DAYS_BEFORE days before its end where there is none
    or an `end` is given. Without `end` it goes on until now, whenever that is. Raises SpanTooLong above DAYS days.
    """
    now, zone = timezone.now(), ZoneInfo(account.timezone)
    until = end or now
    if start is None:
        begun = period_start(account, now) if end is None else None
        start = begun or until - dt.timedelta(days=DAYS_BEFORE)
    # Between two moments of one zone Python counts days of its calendar: that of a clock change is one, too.
    if until.astimezone(zone) - start.astimezone(zone) > dt.timedelta(days=DAYS):
        raise SpanTooLong
    return start, end


def lines_for(question: Question) -> QuerySet[LedgerEntry]:
    """Return the ledger lines a question is about. What is carried into another period is not spent again."""
    asked = Asked(agent=question.agent, start=question.start, end=question.end)
    lines = lines_of(question.account, asked).exclude(kind=LedgerEntry.Kind.CARRY).order_by()
    if question.session is None and question.tag is None:
        return lines
    return lines.filter(run_id__in=_runs(question).values("pk"))


def lines_of_session(lines: QuerySet[LedgerEntry], account: Account, session: str) -> QuerySet[LedgerEntry]:
    """Narrow ledger lines to the runs of a session that are still kept."""
    return lines.filter(run_id__in=_runs(Question(account, session=session)).values("pk"))


def total_of(question: Question) -> Total:
    """Return the sum of all there is."""
    accrued = sum(cost for _, cost in _accrued(question, "run"))
    return Total(None, accrued=accrued, **_whole(lines_for(question)))


def spending(question: Question, by: str, *, after: str | None = None, limit: int = PIECE) -> Page:
    """Return a page of totals by one of BY, in the order of their keys; days, runs and attempts newest first.

    The first page (`after` is None) begins with what belongs to no key, if there is anything. Raises ValueError for an
    `after` that is no key.
    """
    found = {total.key: total for total in _settled(question, by, after, limit + 1)}
    keyless = _keyless(question, by) if after is None else Total(None)
    for key, cost in _accrued(question, by):
        if key is None:
            keyless.accrued += cost if after is None else 0
        elif after is None or _is_past(by, key, after):
            found.setdefault(key, Total(key)).accrued += cost
    keys = sorted((key for key in found if key is not None), key=partial(_rank, by), reverse=by in NEWEST_FIRST)
    totals = [found[key] for key in keys[:limit]]
    return Page([keyless, *totals] if keyless else totals, keys[limit - 1] if len(keys) > limit else None)


def rows_of(question: Question, by: str) -> Iterator[list[list[Any]]]:
    """Yield all totals as lists of rows: key, settled, manual, accrued, runs. Never more than a piece in memory.

    Everything is asked for once, and read by one cursor: to be taken in one go, on one thread.
    """
    totals = _all(question, by)
    while piece := [list(asdict(total).values()) for total in islice(totals, PIECE)]:
        yield piece


def _all(question: Question, by: str) -> Iterator[Total]:
    accrued: Counter[str | None] = Counter()
    for name, cost in _accrued(question, by):
        accrued[name] += cost
    keyless = _keyless(question, by)
    keyless.accrued = accrued.pop(None, 0)
    if keyless:
        yield keyless

    def rank(total: Total) -> Any:
        return _rank(by, str(total.key))

    is_newest_first = by in NEWEST_FIRST
    of_open = sorted((Total(name, accrued=cost) for name, cost in accrued.items()), key=rank, reverse=is_newest_first)
    merged = heapq.merge(_settled(question, by, None, None), of_open, key=rank, reverse=is_newest_first)
    for _, (total, *others) in groupby(merged, key=attrgetter("key")):
        total.accrued += sum(other.accrued for other in others)
        yield total


def _rank(by: str, key: str) -> Any:
    return UUID(key) if by == "run" else _attempt_of(key) if by == "attempt" else key


def _is_past(by: str, key: str, after: str) -> bool:
    one, other = _rank(by, key), _rank(by, after)
    return bool(one < other if by in NEWEST_FIRST else one > other)


def _attempt_of(key: str) -> tuple[UUID, int]:
    run, _, fence = key.partition("/")
    return UUID(run), int(fence)


def _runs(question: Question) -> QuerySet[Run]:
    rows = Run.objects.filter(account=question.account)
    if question.agent is not None:
        rows = rows.filter(exactly("agent", question.agent))
    if question.session is not None:
        rows = rows.filter(exactly("session", question.session))
    return rows if question.tag is None else with_tag(rows, question.tag)


def _settled(question: Question, by: str, after: str | None, limit: int | None) -> Iterable[Total]:
    """Return the totals of the first keys after `after` that have ledger lines, of all where there is no limit."""
    lines = lines_for(question)
    key: Expression | F
    past: Any
    match by:
        case _ if by in JOINED:
            return (_total(*row) for row in sums_by(by, lines, after=after, limit=limit))
        case "attempt":
            return _attempts(question, after, limit)
        case "run":
            key, past = F("run_id"), None if after is None else UUID(after)
        case "day":
            key, past = _day(question.account, lines), None if after is None else dt.date.fromisoformat(after)
        case _:
            key, past = by_bytes(F("agent")), after
    keyed = lines.annotate(key=key).exclude(key=None)
    if by == "agent":
        keyed = keyed.exclude(key="")
    if past is not None:
        keyed = keyed.filter(**{"key__lt" if by in NEWEST_FIRST else "key__gt": past})
    sums = keyed.values("key").annotate(**SUMS).order_by("-key" if by in NEWEST_FIRST else "key")
    rows = sums.values_list("key", "settled", "runs", "manual")[:limit]
    return (_total(*row) for row in rows.iterator(PIECE))


def _total(key: Any, settled: Any, runs: Any, manual: Any) -> Total:
    return Total(None if key is None else str(key), settled=int(settled), manual=int(manual), runs=int(runs))


def _day(account: Account, lines: QuerySet[LedgerEntry]) -> Expression:
    span = lines.aggregate(first=Min("at"), last=Max("at"))
    now = timezone.now()
    return day_of("at", ZoneInfo(account.timezone), span["first"] or now, span["last"] or now)


def _attempts(question: Question, after: str | None, limit: int | None) -> Iterator[Total]:
    settled = lines_for(question).filter(kind=SETTLE).values("run_id")
    rows = Attempt.objects.filter(run_id__in=settled).order_by("-run_id", "-fence")
    if after is not None:
        run_id, fence = _attempt_of(after)
        rows = rows.filter(Q(run_id__lt=run_id) | Q(run_id=run_id, fence__lt=fence))
    found = rows.values_list("run_id", "fence", "cost")[:limit].iterator(PIECE)
    return (Total(f"{run_id}/{fence}", settled=cost, runs=1) for run_id, fence, cost in found)


def _keyless(question: Question, by: str) -> Total:
    """Return what belongs to no key."""
    lines = lines_for(question)
    match by:
        case "day":
            return Total(None)
        case "run":
            return Total(None, **_whole(lines.filter(run_id=None)))
        case _ if by in JOINED:
            return next((_total(*row) for row in sums_by(by, lines, keyless=True)), Total(None))
        case "attempt":
            whole = _whole(lines)
            kept = Attempt.objects.filter(run_id__in=lines.filter(kind=SETTLE).values("run_id"))
            known = kept.aggregate(cost=Sum("cost", default=0), runs=Count("run_id", distinct=True))
            settled, runs = whole["settled"] - int(known["cost"]), whole["runs"] - known["runs"]
            return Total(None, settled=settled, manual=whole["manual"], runs=runs)
        case _:
            return Total(None, **_whole(lines.filter(agent="")))


def _whole(lines: QuerySet[LedgerEntry]) -> dict[str, int]:
    return {name: int(value) for name, value in lines.aggregate(**SUMS).items()}


def _accrued(question: Question, by: str) -> Iterator[tuple[str | None, int]]:
    """Yield (key, cost) of every attempt of an open run: as many rows as the account has runs in flight, about.

    Nothing, unless now belongs to the question.
    """
    now = timezone.now()
    if (question.start and question.start > now) or (question.end and question.end <= now):
        return
    rows = Attempt.objects.filter(run__in=_runs(question).filter(state__in=[str(state) for state in OPEN]), cost__gt=0)
    today = now.astimezone(ZoneInfo(question.account.timezone)).date().isoformat()
    columns = ("run_id", "fence", "cost", "run__agent", "run__session", "run__tags")
    for run_id, fence, cost, agent, session, tags in rows.values_list(*columns):
        if by == "tag":
            yield from ((tag, cost) for tag in dict.fromkeys(tags) or [None])
        else:
            keys = {"agent": agent, "session": session or None, "day": today}
            keys |= {"run": str(run_id), "attempt": f"{run_id}/{fence}"}
            yield keys[by], cost
