"""The machine and what runs on it: settings, agents, disk, web, workers, and what operators hold back."""

import shutil
from collections.abc import Iterable, Iterator

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from agentops.diagnosis.finding import Finding, Level, judged
from agentops.embedded import answers_http
from quotas.display import moment
from runs.agents import list_agents
from runs.models import Maintenance, QueuePause
from workers.models import WorkerProcess
from workers.selectors import list_workers

DISK_LOW, DISK_OUT = 2**30, 200 * 2**20  # bytes


def examine() -> Iterator[Finding]:
    yield from _settings()
    yield from _agents()
    yield _disk()
    yield _web()
    yield from _workers()
    yield from _held_back()


def _settings() -> Iterator[Finding]:
    messages = [message for message in checks.run_checks() if not message.is_silenced()]
    for message in messages:
        level: Level = "fail" if message.is_serious() else "warn"
        yield Finding("settings", level, f"{message.id}: {message.msg}", message.hint or "")
    if not messages:
        yield Finding("settings", "ok", f"all checks pass; data folder {settings.DATA_DIR}")


def _agents() -> Iterator[Finding]:
    try:
        names = [spec.name for spec in list_agents()]
    except (ImproperlyConfigured, ImportError, SyntaxError) as error:
        yield Finding("agents", "fail", str(error), "Correct the module, or AGENTOPS_APPS.")
    else:
        yield Finding("agents", "ok", ", ".join(names) or "none")


def _disk() -> Finding:
    place = settings.DATA_DIR if settings.DATA_DIR.exists() else settings.BASE_DIR
    free = shutil.disk_usage(place).free
    fact = f"{free / 2**30:.1f} GiB free at {place}"
    if free < DISK_OUT:
        return Finding("disk", "fail", fact, "Make room now: the next write may fail.")
    return judged("disk", fact, well=free > DISK_LOW, advice="Make room soon.", otherwise="warn")


def _web() -> Finding:
    url = settings.INSTANCE.get("url")
    if not url or not settings.INSTANCE.get("running"):
        return Finding("web", "warn", f"nothing runs in {settings.DATA_DIR}", "Start it: ./run up.")
    well = answers_http(f"{url}/readyz") or answers_http(f"{url}/healthz")
    return judged("web", f"{url} {'answers' if well else 'is silent'}", well=well, advice="Look at logs/web.log.")


def _workers() -> Iterator[Finding]:
    try:
        rows = list(list_workers(alive=True))
    except DatabaseError:
        return  # said under "database" or "migrations"
    yield judged(
        "workers",
        f"{len(rows)} alive",
        well=bool(rows),
        advice="Start one: ./run up, or ./run runworker_streams.",
        otherwise="fail" if settings.INSTANCE.get("running") else "warn",
    )
    if rows:
        yield from _unserved(rows)


def _unserved(alive: Iterable[WorkerProcess]) -> Iterator[Finding]:
    """Tell of the queues of known agents from which no live worker takes; one that drains takes nothing."""
    taking = [row for row in alive if row.drain_requested_at is None and row.draining_since is None]
    served = {queue for row in taking for queue in row.queues}
    try:
        wanted = {spec.queue for spec in list_agents()}
    except (ImproperlyConfigured, ImportError, SyntaxError):
        return  # said under "agents"
    for queue in sorted(wanted - served):
        advice = f"Start a worker: ./run runworker_streams --queues {queue}"
        yield Finding("workers", "warn", f"no live worker takes from the queue {queue}", advice)


def _held_back() -> Iterator[Finding]:
    try:
        pauses, maintenance = list(QueuePause.objects.order_by("queue")), Maintenance.objects.first()
    except DatabaseError:
        return  # said under "database" or "migrations"
    for row in pauses:
        fact = f"the queue {row.queue} is paused by {row.paused_by} since {moment(row.paused_at)}: {row.reason}"
        yield Finding("queues", "warn", fact, f"When its time is over: ./run queues resume {row.queue}")
    if maintenance is not None:
        since = f"on, by {maintenance.set_by} since {moment(maintenance.set_at)}: no new runs are accepted"
        yield Finding("maintenance", "warn", since, "When it is over: ./run maintenance off")
