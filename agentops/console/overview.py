"""The overview's numbers: what runs, what waits, who works, what is set aside, what it costs; and what is wrong.

Read from the database (the truth) with bounded counts, at most once a second per process however many look.
"""

import datetime as dt
from typing import Any

from django.db.models import Count, Min, Q, QuerySet
from django.utils import timezone

from agentops.console import ended
from agentops.console.condition import problems_now, redis_facts
from agentops.console.latest import Latest
from agentops.console.problems import told
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


def _queued(now: dt.datetime) -> tuple[list[Numbers], float | None]:
    """Return a row for each priority, and the longest wait of all in seconds."""
    rows, waits = [], []
    for priority in Priority.values:
        waiting = Run.objects.filter(state=RunState.QUEUED, priority=priority)
        facts = waiting.order_by("queued_at")[: CAP + 1].aggregate(count=Count("pk"), oldest=Min("queued_at"))
        oldest = facts["oldest"]
        wait = None if oldest is None else (now - oldest).total_seconds()
        waits += [] if wait is None else [wait]
        rows.append({"priority": priority, "count": shown(facts["count"]), "oldest_wait": span(wait)})
    return rows, max(waits, default=None)


def _scheduled() -> tuple[int, str]:
    """Return how many runs wait for their session, and how many for another attempt, of the first CAP scheduled."""
    rows = Run.objects.filter(state=RunState.SCHEDULED).order_by("not_before")[: CAP + 1]
    found = rows.aggregate(
        all=Count("pk"),
        blocked=Count("pk", filter=~Q(blocked_by_session=None)),
        again=Count("pk", filter=Q(attempt__gt=1)),
    )
    return found["blocked"], f"{found['again']:,}" + ("+" if found["all"] > CAP else "")


def _read() -> Numbers:
    now = timezone.now()
    workers = list(list_workers(alive=True).values_list("running_count", "concurrency")[: CAP + 1])
    accounts = list(Account.objects.order_by("pk")[:CAP])
    queued, oldest = _queued(now)
    blocked, again = _scheduled()
    redis = redis_facts.get()
    return {
        "at": now.isoformat(),
        "running": shown(bounded(Run.objects.filter(state=RunState.RUNNING))),
        "queued": queued,
        "queued_total": shown(bounded(Run.objects.filter(state=RunState.QUEUED))),
        "oldest_wait": span(oldest),
        "held_back": "unknown" if redis.away else f"{redis.parked + blocked:,}",
        "retrying": again,
        "failure_rate": ended.charts.get()["failure_rate"],
        "workers_alive": shown(len(workers)),
        "slots": f"{sum(w[0] for w in workers):,} of {sum(w[1] for w in workers):,}",
        "dead_letters": shown(bounded(open_dead_letters())),
        "held": about(sum(account.held for account in accounts)),
        "spent": about(sum(spent_by_account(accounts, now).values())),
        "limit": about(sum(account.limit for account in accounts)),
    }


latest = Latest(_read, FRESH_SECONDS)
SECTIONS = {
    "runs.view_run": ("running", "queued", "queued_total", "oldest_wait", "held_back", "retrying", "failure_rate"),
    "workers.view_workerprocess": ("workers_alive", "slots"),
    "workers.view_deadletter": ("dead_letters",),
    "quotas.view_account": ("held", "spent", "limit"),
}


def numbers_for(user: Any) -> Numbers:
    """Return the numbers this user may see, and how it stands (`problems.told`); `at` is always there."""
    numbers = latest.get()
    allowed = {"at"}
    for permission, keys in SECTIONS.items():
        if user.has_perm(permission):
            allowed.update(keys)
    return {key: value for key, value in numbers.items() if key in allowed} | told(problems_now(), user)


def recent_runs(limit: int = 12) -> QuerySet[Run]:
    """Return the newest runs with what a list shows, no large text."""
    return (
        Run.objects.select_related("account")
        .only("id", "agent", "account__name", "state", "cost", "submitted_at")
        .order_by("-id")[:limit]
    )
