"""What a run's page and the list say about its time: when it may begin, what it waits for, which limits it has."""

import datetime as dt

from quotas.display import NOTHING, moment, span
from runs.models import Run
from runs.states import RunState


def waits_for(run: Run, now: dt.datetime) -> str:
    """Return what a scheduled run waits for, in few words; empty for every other run."""
    if run.state != RunState.SCHEDULED:
        return ""
    parts = []
    if run.not_before is not None:
        left = (run.not_before - now).total_seconds()
        parts.append(f"not before {moment(run.not_before)} (in {span(left)})" if left > 0 else "due now")
    if run.blocked_by_session is not None:
        parts.append("waiting for its session")
    return ", ".join(parts)


def limit_rows(run: Run) -> list[list[str]]:
    """Return what bounds a run, as rows of name and value; what has no bound is left out where that is usual."""
    rows = [
        ["Attempts", str(run.max_attempts)],
        ["When its worker is lost", str(run.on_lost)],
        ["Time of an attempt", span(run.time_limit_seconds)],
        ["Time of all attempts", span(run.wall_clock_seconds)],
        ["Without an event", "no limit" if run.no_progress_seconds is None else span(run.no_progress_seconds)],
        ["Wait for a worker", span(run.queue_wait_seconds)],
        ["Waits at most until", moment(run.waits_until)],
        ["Deadline", moment(run.deadline_at)],
    ]
    return [row for row in rows if row[1] != NOTHING]
