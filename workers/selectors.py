"""Reading of the working side: queue depths, workers alive, what they run."""

import datetime as dt
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from runs import broker, keys, ready, running
from runs.agents import list_agents
from runs.models import Run
from runs.states import RunState
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess


def queue_names() -> list[str]:
    """Return the queues of the settings and of all known agents."""
    return list(dict.fromkeys([*settings.QUEUES, *(spec.queue for spec in list_agents())]))


def queue_status() -> dict[str, Any]:
    """Return what waits and what runs: {queues: [...], parked: [...], slots, workers_alive, redis}.

    A queue's row is {queue, priority, waiting, in_flight, oldest_wait_seconds}: from Redis, or with `redis` "away"
    from the database, where `in_flight` are the running runs. `parked` has a row {queue, limit, most, running, parked}
    for each limit on runs at work that somebody waits for; those are not in `waiting`.
    """
    client = broker.client()
    rows: list[dict[str, Any]] = []
    parked: list[dict[str, Any]] = []
    slots: dict[str, int] = {}
    redis_state = "ok"
    for queue in queue_names():
        try:
            for priority, depth in ready.depths(client, queue).items():
                waiting = max(0, depth["length"] - depth["pending"])
                rows.append(
                    {
                        "queue": queue,
                        "priority": priority,
                        "waiting": waiting,
                        "in_flight": depth["pending"],
                        "oldest_wait_seconds": _oldest_wait(queue, priority) if waiting else None,
                    }
                )
            slots[queue] = int(client.zcard(keys.slots(queue)))
            parked += running.list_waiting(client, queue)
        except RedisError:
            redis_state = "away"
            rows += _from_rows(queue)
    return {
        "queues": rows,
        "parked": parked,
        "slots": {"limit": settings.GLOBAL_SLOTS or None, "used": slots},
        "workers_alive": list_workers(alive=True).count(),
        "redis": redis_state,
    }


def _from_rows(queue: str) -> list[dict[str, Any]]:
    return [
        {
            "queue": queue,
            "priority": priority,
            "waiting": Run.objects.filter(state=RunState.QUEUED, queue=queue, priority=priority).count(),
            "in_flight": Run.objects.filter(state=RunState.RUNNING, queue=queue, priority=priority).count(),
            "oldest_wait_seconds": _oldest_wait(queue, priority),
        }
        for priority in keys.PRIORITIES
    ]


def _oldest_wait(queue: str, priority: str) -> float | None:
    """Return the age in seconds of the longest-waiting queued run."""
    at = (
        Run.objects.filter(state=RunState.QUEUED, queue=queue, priority=priority)
        .order_by("queued_at")
        .values_list("queued_at", flat=True)
        .first()
    )
    return None if at is None else max(0.0, round((timezone.now() - at).total_seconds(), 3))


def list_workers(*, alive: bool = True) -> QuerySet[WorkerProcess]:
    """Return worker processes, newest first: those with a fresh heartbeat, or all."""
    rows = WorkerProcess.objects.order_by("-pk")
    if not alive:
        return rows
    fresh = timezone.now() - dt.timedelta(seconds=alive_seconds())
    return rows.filter(stopped_at=None, heartbeat_at__gt=fresh)


def running_on(worker: str) -> QuerySet[Run]:
    """Return the runs a worker owns, without their large texts."""
    rows = Run.objects.defer("input_json", "result_json").filter(worker=worker, state=RunState.RUNNING)
    return rows.order_by("started_at")
