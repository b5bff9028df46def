"""The limits in time of a run: which of them passes first, and what is said of one that passed."""

import datetime as dt
from enum import StrEnum
from typing import Any

from runs.models import Run


class Limit(StrEnum):
    """A limit in time of a running run, as `Run.stop_requested` names it."""

    TIME_LIMIT = "time_limit"  # of one attempt
    WALL_CLOCK = "wall_clock"  # of all attempts, from the first start
    DEADLINE = "deadline"  # of the submit, whatever state the run is in
    NO_PROGRESS = "no_progress"  # no event of the handler for so long


def first_to_pass(run: Run, now: dt.datetime) -> tuple[Limit, dt.datetime]:
    """Return the limit that an attempt which begins now meets first, and when."""
    begun = run.started_at or now
    found = (Limit.TIME_LIMIT, now + _seconds(run.time_limit_seconds))
    wall = (Limit.WALL_CLOCK, begun + _seconds(run.wall_clock_seconds))
    found = min(found, wall, key=lambda limit: limit[1])
    if run.deadline_at is not None:
        found = min(found, (Limit.DEADLINE, run.deadline_at), key=lambda limit: limit[1])
    return found


def may_begin(run: Run, at: dt.datetime) -> bool:
    """Whether an attempt that begins then has any time left."""
    return first_to_pass(run, at)[1] > at


def at_claim(run: Run, now: dt.datetime) -> dict[str, Any]:
    """Return the columns in which a claim writes down when its attempt's time is over."""
    quiet = run.no_progress_seconds
    return {"stop_at": first_to_pass(run, now)[1], "quiet_at": None if quiet is None else now + _seconds(quiet)}


def passed(run: Run, now: dt.datetime) -> Limit | None:
    """Return the limit of a running run that has passed, of several the first; None if none has."""
    ends = [(at, limit) for at, limit in ((run.stop_at, None), (run.quiet_at, Limit.NO_PROGRESS)) if at and at <= now]
    if not ends:
        return None
    at, limit = min(ends, key=lambda end: end[0])
    return limit or _which(run, at)


def _which(run: Run, stop_at: dt.datetime) -> Limit:
    """Return which limit a stop time belongs to."""
    if run.deadline_at is not None and stop_at >= run.deadline_at:
        return Limit.DEADLINE
    wall = run.started_at is not None and stop_at >= run.started_at + _seconds(run.wall_clock_seconds)
    both = run.attempt == 1 and run.wall_clock_seconds == run.time_limit_seconds
    return Limit.WALL_CLOCK if wall and not both else Limit.TIME_LIMIT


def message_of(limit: Limit, run: Run) -> str:
    """Return the sentence that tells people which limit passed."""
    match limit:
        case Limit.TIME_LIMIT:
            return f"The time limit of {run.time_limit_seconds:g} s passed."
        case Limit.WALL_CLOCK:
            return f"The run was at work for {run.wall_clock_seconds:g} s over all its attempts: its wall clock passed."
        case Limit.DEADLINE:
            return "The deadline of the submit passed."
        case Limit.NO_PROGRESS:
            return f"The handler showed no progress for {run.no_progress_seconds or 0:g} s: no event came from it."


def waiting(run: Run, now: dt.datetime, *, delay: float = 0.0) -> dict[str, Any]:
    """Return the columns of a run that goes back to wait: when it may begin, and until when it must have begun."""
    not_before = now + _seconds(delay) if delay > 0 else None
    if not_before is not None:
        return {"not_before": not_before, "waits_until": run.deadline_at}
    return {"not_before": None, "waits_until": queued_until(run, now)}


def queued_until(run: Run, now: dt.datetime) -> dt.datetime:
    """Return the end of a queue wait that begins now."""
    until = now + _seconds(run.queue_wait_seconds)
    return until if run.deadline_at is None else min(until, run.deadline_at)


def _seconds(seconds: float) -> dt.timedelta:
    return dt.timedelta(seconds=seconds)
