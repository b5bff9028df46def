"""What a submit says about the life of its run: when it begins, how long it may take, how often it is tried."""

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from runs.agents import ATTEMPTS_MAX, LIMIT_MAX_SECONDS, AgentSpec
from runs.errors import InvalidRequest
from runs.models import OnLost, Run

DELAY_MAX = dt.timedelta(days=366)
ON_BUSY = ("reject", "enqueue", "replace")


@dataclass(frozen=True, slots=True)
class Timing:
    """When a run may begin and when it must be over, as a submit says it."""

    delay: float | None = None
    start_at: dt.datetime | None = None
    deadline_seconds: float | None = None

    @classmethod
    def checked(cls, *, delay: float | None, start_at: dt.datetime | None, deadline_seconds: float | None) -> "Timing":
        """Return the timing, or raise InvalidRequest."""
        if delay is not None and start_at is not None:
            raise InvalidRequest(field="start_at", problem="give delay or start_at, not both")
        if delay is not None and not 0 <= delay <= DELAY_MAX.total_seconds():
            raise InvalidRequest(field="delay", problem=f"seconds from 0 to {DELAY_MAX.total_seconds():.0f}")
        if start_at is not None and start_at.tzinfo is None:
            raise InvalidRequest(field="start_at", problem="a time with its offset from UTC is needed")
        if deadline_seconds is not None and not 0 < deadline_seconds <= DELAY_MAX.total_seconds():
            raise InvalidRequest(
                field="deadline_seconds", problem=f"seconds above 0, at most {DELAY_MAX.total_seconds():.0f}"
            )
        return cls(delay, start_at, deadline_seconds)

    def apply(self, run: Run, now: dt.datetime) -> None:
        """Write the timing into a new run, by the database's clock. Raises InvalidRequest."""
        at = self.start_at if self.delay is None else now + dt.timedelta(seconds=self.delay)
        if at is not None and at > now + DELAY_MAX:
            raise InvalidRequest(field="start_at", problem=f"at most {DELAY_MAX.days} days from now")
        run.not_before = at if at is not None and at > now else None
        if self.deadline_seconds is not None:
            run.deadline_at = now + dt.timedelta(seconds=self.deadline_seconds)
            if run.not_before is not None and run.not_before >= run.deadline_at:
                raise InvalidRequest(field="deadline_seconds", problem="the run would be over before it may begin")


def columns_of(
    spec: AgentSpec, *, time_limit: float | None, max_attempts: int | None, on_lost: str | None
) -> dict[str, Any]:
    """Return the limits and policies of a run: the agent's, or the submit's where the agent allows it."""
    lost = _allowed(spec, "on_lost", on_lost) or spec.policy
    if lost not in OnLost.values:
        raise InvalidRequest(field="on_lost", problem=f"one of {', '.join(OnLost.values)}")
    return {
        "time_limit_seconds": _time_limit(spec, time_limit),
        "queue_wait_seconds": spec.queue_wait_seconds or settings.QUEUE_WAIT_SECONDS,
        "wall_clock_seconds": spec.wall_clock_seconds or settings.WALL_CLOCK_SECONDS,
        "no_progress_seconds": spec.no_progress_seconds,
        "on_lost": lost,
        "max_attempts": _attempts(spec, _allowed(spec, "max_attempts", max_attempts), lost),
    }


def _time_limit(spec: AgentSpec, asked: float | None) -> float:
    if _allowed(spec, "time_limit", asked) is None:
        return spec.time_limit_seconds
    if asked is None or not 0 < asked <= LIMIT_MAX_SECONDS:
        raise InvalidRequest(field="time_limit", problem=f"seconds above 0, at most {LIMIT_MAX_SECONDS:.0f}")
    return float(asked)


def _attempts(spec: AgentSpec, asked: int | None, on_lost: str) -> int:
    if asked is None:
        return spec.attempts_by(on_lost)
    if not 1 <= asked <= ATTEMPTS_MAX:
        raise InvalidRequest(field="max_attempts", problem=f"1 to {ATTEMPTS_MAX}")
    return asked


def _allowed(spec: AgentSpec, name: str, asked: Any) -> Any:
    if asked is not None and name not in spec.allow:
        raise InvalidRequest(field=name, problem=f"the agent {spec.name} does not allow it")
    return asked
