"""Reading of the working side: queue depths, workers alive, what they run."""

import datetime as dt
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from runs import broker, events, keys, ready, running
from runs.controls import maintenance, maintenance_facts, pause_facts, paused_queues, queue_names
from runs.models import Run
from runs.states import RunState
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess


def queue_status() -> dict[str, Any]:
    """Return what waits and what runs: {queues, parked, paused, maintenance, slots, workers_alive, redis}.

    A queue's row is {queue, priority, waiting, in_flight, oldest_wait_seconds}: from Redis, or with `redis` "away"
    from the database, where `in_flight` are the running runs. `parked` has a row {queue, limit, most, running, parked}
    for each limit on runs at work that somebody waits for; those are not in `waiting`. `paused` and `maintenance`
    are the facts of `runs.controls`.
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
        "paused": [pause_facts(row) for row in paused_queues().values()],
        "maintenance": None if (now := maintenance()) is None else maintenance_facts(now),
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


def runs_at_work(worker: str, limit: int) -> list[dict[str, Any]]:
    """Return {run, lease_left, lease_age, event_age} of the runs a worker owns, in seconds.

    The age of a lease is the time since its last renewal. `event_age` is None where Redis does not tell.
    """
    rows = list(running_on(worker)[:limit])
    pipe = broker.client().pipeline(transaction=False)
    for run in rows:
        pipe.xrevrange(keys.log(run.pk), count=1)
    try:
        last = pipe.execute(raise_on_error=False) if rows else []
    except RedisError:
        last = [None] * len(rows)
    now = timezone.now()
    found = []
    for run, entries in zip(rows, last, strict=True):
        left = None if run.lease_expires_at is None else (run.lease_expires_at - now).total_seconds()
        age = None if left is None else max(0.0, settings.LEASE_SECONDS - left)
        found.append({"run": run, "lease_left": left, "lease_age": age, "event_age": _event_age(run, entries, now)})
    return found


def _event_age(run: Run, entries: Any, now: dt.datetime) -> float | None:
    if not isinstance(entries, list) or not entries:
        return None
    try:
        event, _ = events.bodies(run.pk, entries)[0]
        return max(0.0, (now - dt.datetime.fromisoformat(event["at"])).total_seconds())
    except (ValueError, TypeError, KeyError, IndexError):  # an entry that is not ours says nothing
        return None
