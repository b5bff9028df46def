"""Reads what the overview judges: Redis in two round trips and a few, the database by bounded statements."""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.utils import timezone
from redis.exceptions import RedisError

from agentops.console.latest import Latest
from agentops.console.problems import DEAF_SECONDS, LETTERS, LETTERS_MINUTES, Condition, Problem, Redis, problems_of
from quotas.database import later
from runs import broker, keys, running
from runs.controls import maintenance, paused_queues, queue_names
from runs.models import Run
from runs.states import RunState
from workers.alive import MOST, Fleet, fleet_now, heard_late, is_draining
from workers.heartbeat import alive_seconds
from workers.models import DeadLetter, WorkerProcess

FRESH_SECONDS = 5.0


def _read_redis() -> Redis:
    try:
        return _asked()
    except RedisError as error:
        return Redis(away=str(error).rstrip(".") or type(error).__name__)


def _asked() -> Redis:
    client = broker.client()
    queues = queue_names()
    pipe = client.pipeline(transaction=False)
    pipe.exists(keys.sweeper())
    pipe.get(keys.drift())
    for queue in queues:
        pipe.zcard(keys.slots(queue))
    streams = [stream for queue in queues for stream in keys.ready_streams(queue)]
    for stream in streams:
        pipe.xinfo_consumers(stream, keys.GROUP)
    sweeps, drift, *replies = pipe.execute(raise_on_error=False)
    for reply in (sweeps, drift, *replies[: len(queues)]):
        if isinstance(reply, Exception):
            raise reply
    silent: dict[str, float] = {}
    for consumers in replies[len(queues) :]:
        for one in () if isinstance(consumers, Exception) else consumers:  # a stream without a group: nobody read it
            name, seconds = one["name"].decode("utf-8", "replace"), one["idle"] / 1000
            silent[name] = min(seconds, silent.get(name, seconds))
    return Redis(
        parked=sum(row["parked"] for queue in queues for row in running.list_waiting(client, queue)),
        sweeps=bool(sweeps),
        silent=silent,
        drift=json.loads(drift or "{}"),
        slots={queue: int(used) for queue, used in zip(queues, replies, strict=False)},
    )


def _deaf(fleet: Fleet, silent: Mapping[str, float], paused: Mapping[str, object]) -> list[str]:
    """Return the workers that have a place free, something to read, and read nothing."""
    return [
        worker.name
        for worker in fleet.alive
        if silent.get(worker.name, 0.0) > DEAF_SECONDS
        and worker.running_count < worker.concurrency
        and not is_draining(worker)
        and any(queue not in paused for queue in worker.queues)
    ]


def _switches() -> dict[str, Any]:
    """Return what a condition says of pauses and maintenance: at most a second old, and this process's own at once."""
    closed = maintenance()
    return {
        "paused": {queue: (row.reason, row.paused_at) for queue, row in paused_queues().items()},
        "maintenance": "" if closed is None else closed.message,
    }


def _read() -> tuple[Condition, list[Problem]]:
    now = timezone.now()
    fleet, redis, paused = fleet_now(now), redis_facts.get(), paused_queues()
    silent = WorkerProcess.objects.filter(stopped_at=None, heartbeat_at__lte=later(-alive_seconds()))
    waits = {}
    for queue in queue_names():
        rows = Run.objects.filter(state=RunState.QUEUED, queue=queue).order_by("queued_at")
        oldest = rows.values_list("queued_at", flat=True).first()
        if oldest is not None:
            waits[queue] = max(0.0, (now - oldest).total_seconds())
    since = now - dt.timedelta(minutes=LETTERS_MINUTES)
    newest = DeadLetter.objects.order_by("-pk").values_list("buried_at", flat=True)[: LETTERS + 1]
    condition = Condition(
        redis=redis,
        workers_alive=len(fleet.alive),
        lost=list(silent.order_by("-heartbeat_at").values_list("name", flat=True)[:MOST]),
        late=[worker.name for worker in fleet.alive if fleet.silence_of(worker) > heard_late()],
        deaf=_deaf(fleet, redis.silent, paused),
        waits=waits,
        unserved=[queue for queue in waits if queue not in paused and not fleet.serving(queue)],
        new_letters=sum(at >= since for at in newest),
        **_switches(),
    )
    return condition, problems_of(condition)


redis_facts = Latest(_read_redis, FRESH_SECONDS)
condition = Latest(_read, FRESH_SECONDS)


def problems_now() -> list[Problem]:
    """Return what is wrong, with pauses and maintenance as the banner beside it says them."""
    known, _ = condition.get()
    return problems_of(replace(known, **_switches()))
