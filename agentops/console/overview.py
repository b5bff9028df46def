"""The overview's numbers: what runs, what waits, who works, what is set aside, what it costs.

Read from the database (the truth) with bounded counts, at most once a second per process however many look.
"""

import datetime as dt
import threading
import time
from typing import Any

from django.db.models import Count, Min, QuerySet
from django.utils import timezone

from quotas.display import about, span
from quotas.models import Account, Priority
from quotas.selectors import spent_by_account
from runs.models import Run
from runs.states import RunState
from workers.dead_letters import in_state
from workers.models import DeadLetter
from workers.selectors import list_workers

CAP = 10_000  # a count stops here and is shown as "10,000+": no page counts a whole table
FRESH_SECONDS = 1.0

Numbers = dict[str, Any]


def open_dead_letters() -> QuerySet[DeadLetter]:
    """Return the dead letters that wait for a person."""
    return in_state(DeadLetter.objects.all(), DeadLetter.State.OPEN)


def bounded(queryset: QuerySet[Any]) -> int:
    """Count at most CAP + 1 rows."""
    return queryset.order_by()[: CAP + 1].count()


def shown(count: int) -> str:
    """Return a bounded count for people."""
    return f"{CAP:,}+" if count > CAP else f"{count:,}"


def _queued(now: dt.datetime) -> list[Numbers]:
    rows = []
    for priority in Priority.values:
        waiting = Run.objects.filter(state=RunState.QUEUED, priority=priority)
        facts = waiting.order_by("queued_at")[: CAP + 1].aggregate(count=Count("pk"), oldest=Min("queued_at"))
        oldest = facts["oldest"]
        wait = None if oldest is None else (now - oldest).total_seconds()
        rows.append({"priority": priority, "count": shown(facts["count"]), "oldest_wait": span(wait)})
    return rows


def _read() -> Numbers:
    now = timezone.now()
    workers = list(list_workers(alive=True).values_list("running_count", "concurrency")[: CAP + 1])
    accounts = list(Account.objects.order_by("pk")[:CAP])
    return {
        "at": now.isoformat(),
        "running": shown(bounded(Run.objects.filter(state=RunState.RUNNING))),
        "queued": _queued(now),
        "queued_total": shown(bounded(Run.objects.filter(state=RunState.QUEUED))),
        "workers_alive": shown(len(workers)),
        "slots": f"{sum(w[0] for w in workers):,} of {sum(w[1] for w in workers):,}",
        "dead_letters": shown(bounded(open_dead_letters())),
        "held": about(sum(account.held for account in accounts)),
        "spent": about(sum(spent_by_account(accounts, now).values())),
    }


class _Latest:
    """The last numbers of this process and when they were read (monotonic seconds)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._numbers: Numbers = {}

    def get(self) -> Numbers:
        with self._lock:
            if time.monotonic() - self._read_at > FRESH_SECONDS:
                self._numbers = _read()
                self._read_at = time.monotonic()
            return self._numbers


_latest = _Latest()
SECTIONS = {
    "runs.view_run": ("running", "queued", "queued_total"),
    "workers.view_workerprocess": ("workers_alive", "slots"),
    "workers.view_deadletter": ("dead_letters",),
    "quotas.view_account": ("held", "spent"),
}


def numbers_for(user: Any) -> Numbers:
    """Return the numbers this user may see; `at` is always there."""
    numbers = _latest.get()
    allowed = {"at"}
    for permission, keys in SECTIONS.items():
        if user.has_perm(permission):
            allowed.update(keys)
    return {key: value for key, value in numbers.items() if key in allowed}


def recent_runs(limit: int = 12) -> QuerySet[Run]:
    """Return the newest runs with what a list shows, no large text."""
    return (
        Run.objects.select_related("account")
        .only("id", "agent", "account__name", "state", "cost", "submitted_at")
        .order_by("-id")[:limit]
    )
