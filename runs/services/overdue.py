"""Runs whose time is over: running ones are asked to stop, waiting ones fail (protocol 10: time limits, queue wait)."""

from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Now

from quotas.database import database_time, later
from runs import limits
from runs.models import Run
from runs.outcomes import Cause, ErrorClass, Failed
from runs.states import REFUSE, RunState

PAGE = 100
OWNER_FIRST_SECONDS = 1.0  # an owner that is well has stopped its handler by then


def ask_to_stop(limit: int = PAGE) -> int:
    """Mark running runs whose time is over; the lease beat tells their owners. Returns how many."""
    past = later(-OWNER_FIRST_SECONDS)
    rows = (
        Run.objects.annotate(db_now=Now())
        .defer("input_json", "result_json")
        .filter(Q(stop_at__lt=past) | Q(quiet_at__lt=past), state=RunState.RUNNING, stop_requested="")
        .order_by("stop_at")[:limit]
    )
    asked = 0
    for row in rows:
        limit_passed = limits.passed(row, database_time(row))
        if limit_passed is not None:
            asked += Run.objects.filter(
                pk=row.pk, fence=row.fence, state=RunState.RUNNING, stop_requested="", quiet_at=row.quiet_at
            ).update(stop_requested=limit_passed.value, stop_requested_at=Now())
    return asked


def ignored(grace_seconds: float, limit: int = PAGE) -> list[tuple[UUID, int]]:
    """Return (run id, fence) of running runs that were asked to stop longer ago than their owner's grace."""
    rows = Run.objects.filter(state=RunState.RUNNING, stop_requested_at__lt=later(-grace_seconds))
    return list(rows.order_by("stop_requested_at").values_list("pk", "fence")[:limit])


def waited_too_long(limit: int = PAGE) -> list[Run]:
    """Return queued and scheduled runs (parked and blocked ones too) whose queue wait is over."""
    waiting = [str(state) for state in REFUSE.sources]
    rows = Run.objects.defer("input_json", "result_json").filter(state__in=waiting, waits_until__lt=Now())
    return list(rows.order_by("waits_until")[:limit])


def wait_error(run: Run, *, known: bool = True) -> Failed:
    """Return what a run fails with that nobody started in time. `known`: whether a live worker knows its agent."""
    if not known and run.state == RunState.QUEUED:
        message = f"No worker knew the agent {run.agent} within {run.queue_wait_seconds:g} s."
        return Failed(ErrorClass.UNKNOWN_AGENT, "UnknownAgent", message, cause=Cause.UNKNOWN_AGENT.value)
    if run.deadline_at is not None and run.waits_until is not None and run.waits_until >= run.deadline_at:
        message = "The deadline of the submit passed before the run could begin."
    elif run.blocked_by_session is not None:
        message = f"The session {run.session} was not free within {run.queue_wait_seconds:g} s."
    else:
        message = f"No worker started the run within {run.queue_wait_seconds:g} s."
    return Failed(ErrorClass.QUEUE_TIMEOUT, "QueueTimeout", message, cause=Cause.QUEUE_TIMEOUT.value)
