"""The runs that ended lately, by the minute: outcomes, waits and run times. Read by one index, bounded, kept a moment.

A rate comes from rows, not from counters: it is the same in every process and right after a restart.
"""

import datetime as dt
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from agentops.console.latest import Latest
from quotas.display import NOTHING
from runs.models import Run
from runs.states import RunState

MINUTES = 60
MOST = 20_000  # runs that are read at once
FRESH_SECONDS = 10.0
OUTCOMES = tuple(
    str(state) for state in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.INTERRUPTED)
)
FAILURES = (str(RunState.FAILED), str(RunState.INTERRUPTED))
COLUMNS = ("state", "finished_at", "queued_at", "started_at")


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of values in any order; None of none."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def wait_of(queued_at: dt.datetime, started_at: dt.datetime | None) -> float | None:
    """Return the seconds a run waited before it was started; None of one that was not, or was queued again since."""
    seconds = None if started_at is None else (started_at - queued_at).total_seconds()
    return None if seconds is None or seconds < 0 else seconds


def time_of(started_at: dt.datetime | None, finished_at: dt.datetime) -> float | None:
    """Return the seconds from a run's first start to its end, pauses between attempts included."""
    return None if started_at is None else max(0.0, (finished_at - started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest rows of a span; `since` is where what was read begins, later than asked where there were too many."""

    rows: list[Any]
    since: dt.datetime
    is_cut: bool


def newest(rows: QuerySet[Run], since: dt.datetime, most: int, columns: Sequence[str]) -> Newest:
    """Return the newest ended runs of `rows`. The first two of `columns` are `state` and `finished_at`."""
    found: list[Any] = list(
        rows.filter(finished_at__gte=since).order_by("-finished_at").values_list(*columns)[: most + 1]
    )
    is_cut = len(found) > most
    # Of the moment at which it was cut off some rows may be missing.
    return Newest(found[:most], found[most - 1][1] if is_cut else since, is_cut)


def _charts() -> dict[str, Any]:
    now = timezone.now()
    first = now.replace(second=0, microsecond=0) - dt.timedelta(minutes=MINUTES - 1)
    found = newest(Run.objects.all(), first, MOST, COLUMNS)
    return by_minute(found, first) | {"at": now.isoformat()}


def by_minute(found: Newest, first: dt.datetime) -> dict[str, Any]:
    """Return the series of the MINUTES minutes from `first` on, None where nothing was read, and the whole's figures.

    {minutes: [epoch seconds], <outcome>: [runs], wait_p50, wait_p95, run_p50, run_p95: [seconds], failure_rate, note}
    """
    counts: list[Counter[str]] = [Counter() for _ in range(MINUTES)]
    waits: list[list[float]] = [[] for _ in range(MINUTES)]
    times: list[list[float]] = [[] for _ in range(MINUTES)]
    for state, finished_at, queued_at, started_at in found.rows:
        minute = min(MINUTES - 1, max(0, int((finished_at - first).total_seconds() // 60)))
        counts[minute][state] += 1
        for seconds, kept in ((wait_of(queued_at, started_at), waits), (time_of(started_at, finished_at), times)):
            if seconds is not None:
                kept[minute].append(seconds)
    # A minute that was read in part would look like a drop.
    unread = math.ceil((found.since - first).total_seconds() / 60) if found.is_cut else 0
    series: dict[str, Any] = {"minutes": [int(first.timestamp()) + 60 * n for n in range(MINUTES)]}
    series |= {name: [None if n < unread else counts[n][name] for n in range(MINUTES)] for name in OUTCOMES}
    for name, kept in (("wait", waits), ("run", times)):
        for word, share in (("p50", 0.5), ("p95", 0.95)):
            rounded = [_rounded(percentile(minute, share)) for minute in kept]
            series[f"{name}_{word}"] = [None if n < unread else rounded[n] for n in range(MINUTES)]
    note = f"More than {MOST:,} runs ended: only the newest are shown." if found.is_cut else ""
    failed = sum(minute[state] for minute in counts for state in FAILURES)
    return series | {"failure_rate": _share(failed, len(found.rows)), "note": note}


def _share(some: int, of: int) -> str:
    """Return a part of runs for people."""
    return f"{some / of:.1%} of {of:,}" if of else NOTHING


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


charts = Latest(_charts, FRESH_SECONDS)
