"""Why a run is not moving, with all that is known of workers and streams: what answers `runs.why.why_not_moving`.

The first reason that holds is given, in the order of `runs.why.WhyCode`: what a person has to change comes before
what passes by itself. Bounded: at most eight statements and three round trips to Redis, none of which grows with
the number of runs.
"""

import datetime as dt
from typing import Any

from django.db.models.functions import Now
from redis.exceptions import RedisError

from runs.controls import queue_names
from runs.models import Run
from runs.selectors import LIST_DEFER
from runs.states import RunState
from runs.why import Why, WhyCode, why_not_moving, why_paused, why_scheduled, with_maintenance
from workers import why_queued, why_running
from workers.alive import Fleet, fleet_now


def explain(run: Run) -> Why | None:
    """Return why an open run is not moving, or None: it moves, or has changed since it was read."""
    now: dt.datetime | None = (
        Run.objects.filter(pk=run.pk, fence=run.fence, state=run.state).values_list(Now(), flat=True).first()
    )
    if now is None:
        return None
    if run.state == RunState.RUNNING:
        return why_running.reason(run, fleet_now(now), now)
    if run.state == RunState.QUEUED:
        return with_maintenance(why_paused(run) or _why_queued(run, fleet_now(now), now))
    if run.state == RunState.SCHEDULED:
        return with_maintenance(_why_scheduled(run, now))
    return None


def _why_scheduled(run: Run, now: dt.datetime) -> Why:
    """Return what it waits for. What only a sweeper is missing for, nobody does where no worker lives."""
    why = why_scheduled(run, now)
    if why.code not in {WhyCode.DUE, WhyCode.SESSION_FREE}:
        return why
    fleet = fleet_now(now)
    return why if fleet.alive else why_queued.no_worker(run, fleet)


def _why_queued(run: Run, fleet: Fleet, now: dt.datetime) -> Why:
    """Return what the workers lack, else what Redis says of the run's entry."""
    lacking = why_queued.lacking_worker(run, fleet)
    if lacking is not None:
        return lacking
    try:
        return why_queued.of_entry(run, fleet, now)
    except RedisError:
        return why_queued.redis_away(run, fleet)


def why_of_oldest() -> list[dict[str, Any]]:
    """Return {queue, run, code, text} of the run that has waited longest in each queue where one waits."""
    found = []
    for queue in queue_names():
        waiting = Run.objects.select_related("account").defer(*LIST_DEFER).filter(state=RunState.QUEUED, queue=queue)
        run = waiting.order_by("queued_at").first()
        why = None if run is None else why_not_moving(run)
        if run is not None and why is not None:
            found.append({"queue": queue, "run": str(run.pk), "code": str(why.code), "text": why.text})
    return found
