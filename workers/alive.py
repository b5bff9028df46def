"""The workers that are alive by the database's clock, in one read: who serves a queue, knows an agent, drains."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from django.conf import settings

from quotas.database import later
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess

MOST = 1000  # workers that are looked at
SILENT_BEATS = 1.5  # heartbeats after which one that is alive by the rule is not heard of


@dataclass(frozen=True)
class Fleet:
    """The workers with a fresh heartbeat at `now`."""

    now: dt.datetime
    alive: list[WorkerProcess] = field(default_factory=list)

    def serving(self, queue: str) -> list[WorkerProcess]:
        return [worker for worker in self.alive if queue in worker.queues]

    def knowing(self, queue: str, agent: str) -> list[WorkerProcess]:
        return [worker for worker in self.serving(queue) if agent in worker.agents]

    @cached_property
    def by_name(self) -> dict[str, WorkerProcess]:
        return {worker.name: worker for worker in self.alive}

    def silence_of(self, worker: WorkerProcess) -> float:
        """Return the seconds since its last heartbeat."""
        return max(0.0, (self.now - worker.heartbeat_at).total_seconds())


def fleet_now(now: dt.datetime) -> Fleet:
    """Return the workers that are alive. One statement."""
    fresh = WorkerProcess.objects.filter(stopped_at=None, heartbeat_at__gt=later(-alive_seconds()))
    return Fleet(now, list(fresh.order_by("pk")[:MOST]))


def last_heard() -> WorkerProcess | None:
    """Return the worker whose heartbeat is the latest of all, alive or not."""
    return WorkerProcess.objects.order_by("-heartbeat_at").first()


def is_draining(worker: WorkerProcess) -> bool:
    """Whether it takes nothing more, or will not from its next beat on."""
    return worker.draining_since is not None or worker.drain_requested_at is not None


def heard_late() -> float:
    """Return the seconds after which a heartbeat is overdue."""
    return float(settings.HEARTBEAT_SECONDS * SILENT_BEATS)


def names_of(workers: list[WorkerProcess], of: Callable[[WorkerProcess], list[str]], most: int = 5) -> str:
    """Return the first few of the distinct names that the workers have: "a, b and 3 more"."""
    names = sorted({name for worker in workers for name in of(worker)})
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
