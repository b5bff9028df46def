"""The machine and what runs on it: settings, agents, disk, web, workers."""

import shutil
from collections.abc import Iterator

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from agentops.diagnosis.finding import Finding, Level, judged
from agentops.embedded import answers_http
from runs.agents import list_agents
from workers.selectors import list_workers

DISK_LOW, DISK_OUT = 2**30, 200 * 2**20  # bytes


def examine() -> Iterator[Finding]:
    yield from _settings()
    yield from _agents()
    yield _disk()
    yield _web()
    yield from _workers()


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
        alive = list_workers(alive=True).count()
    except DatabaseError:
        return  # said under "database" or "migrations"
    yield judged(
        "workers",
        f"{alive} alive",
        well=alive > 0,
        advice="Start one: ./run up, or ./run runworker_streams.",
        otherwise="fail" if settings.INSTANCE.get("running") else "warn",
    )
