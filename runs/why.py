"""Why a run is not moving: a code, one plain sentence or two, and the facts they are made of.

The reasons that a run's row and its session tell are here. The whole answer needs workers and streams: `workers.why`
gives it, and says so by `answered_by` when its app is ready.
"""

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from quotas.display import moment, span
from runs import controls
from runs.models import Run
from runs.states import RETAKE, RunState


class WhyCode(StrEnum):
    """Every reason. Of several that apply to a state the first of this order is given."""

    # scheduled
    BEHIND_SESSION = "behind_session"
    SESSION_FREE = "session_free"
    RETRY_BACKOFF = "retry_backoff"
    SCHEDULED = "scheduled"
    DUE = "due"
    # queued; no_worker is said of a due run as well, because nobody is there to queue it
    QUEUE_PAUSED = "queue_paused"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    UNKNOWN_AGENT = "unknown_agent"
    WORKERS_DRAINING = "workers_draining"
    WORKERS_SILENT = "workers_silent"
    REDIS_AWAY = "redis_away"
    LIMIT_REACHED = "limit_reached"
    NOT_DISPATCHED = "not_dispatched"
    DELIVERED = "delivered"
    HOLD_LAPSED = "hold_lapsed"
    SLOTS_BUSY = "slots_busy"
    IN_LINE = "in_line"
    # running
    LEASE_EXPIRED = "lease_expired"
    OWNER_SILENT = "owner_silent"
    CANCEL_REQUESTED = "cancel_requested"
    STOP_REQUESTED = "stop_requested"
    HANDLER_SILENT = "handler_silent"


@dataclass(frozen=True, slots=True)
class Why:
    """One reason. `facts` hold numbers, names and ISO times; which ones, docs/api.md tells for each code."""

    code: WhyCode
    text: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return {code, text, facts}."""
        return {"code": str(self.code), "text": self.text, "facts": self.facts}


Explain = Callable[[Run], Why | None]
_explaining: list[Explain] = []


def answered_by(explain: Explain) -> None:
    """Have `explain` answer from here on; it is asked about open runs only."""
    _explaining[:] = [explain]


def why_not_moving(run: Run) -> Why | None:
    """Return why the run is not moving; None while it moves, and once it is over.

    A constant number of statements and round trips, whatever waits. Redis may be away. The run comes with its account.
    """
    return None if run.is_terminal else _explaining[0](run)


def why_scheduled(run: Run, now: dt.datetime) -> Why:
    """Return what a scheduled run waits for: its session, its time, or but a sweeper."""
    if run.blocked_by_session is not None:
        return _behind(run)
    if run.not_before is not None and run.not_before > now:
        return _until(run, now)
    late = 0.0 if run.not_before is None else (now - run.not_before).total_seconds()
    facts = {"not_before": iso(run.not_before), "late_seconds": round(late, 3)}
    return Why(WhyCode.DUE, f"It was due {span(math.floor(late))} ago: a sweeper queues it within seconds.", facts)


def _behind(run: Run) -> Why:
    slot = run.blocked_by_session
    holder = Run.objects.filter(account=run.account_id, session_slot=slot).values_list("pk", "state").first()
    facts: dict[str, Any] = {"session": run.session, **_fails(run)}
    if holder is None:
        text = "Its session is free: a sweeper starts the oldest run that waits for it within seconds."
        return Why(WhyCode.SESSION_FREE, text, facts)
    earlier = Run.objects.filter(
        account=run.account_id,
        blocked_by_session=slot,
        session_number__lt=run.session_number,
        state=RunState.SCHEDULED,
    )
    before = earlier.order_by()[: MANY + 1].count()
    facts |= {"run": str(holder[0]), "state": holder[1], "waiting_before": min(before, MANY)}
    line = f", and {count_of(before, 'run')} of the session before it" if before else ""
    text = f"It waits for the run {holder[0]} of its session, which is {holder[1]}{line}."
    return Why(WhyCode.BEHIND_SESSION, text + said_end(run), facts)


def _until(run: Run, now: dt.datetime) -> Why:
    """Return the reason of a run whose time has not come: a retry's back-off, or what its submit asked for."""
    facts: dict[str, Any] = {"not_before": iso(run.not_before), "seconds": seconds_to(run.not_before, now)}
    when = when_of(run.not_before, now)
    last = run.attempts.order_by("-fence").values_list("error_class", "number", "outcome").first()
    if run.attempt == 1 or last is None:
        return Why(WhyCode.SCHEDULED, f"It begins {when}, as it was submitted.", facts)
    error_class, number, outcome = last
    facts |= {"attempt": run.attempt, "max_attempts": run.max_attempts, "error_class": error_class}
    facts |= {"event": RETAKE.event if outcome == "lost" else "run.retrying"}
    after = "the worker was lost" if outcome == "lost" else f"it failed with {error_class or 'an error'}"
    text = f"Attempt {run.attempt} of {run.max_attempts} begins {when}: in attempt {number} {after}."
    return Why(WhyCode.RETRY_BACKOFF, text, facts)


def why_paused(run: Run) -> Why | None:
    """Return the pause of a queued run's queue, if there is one."""
    pause = controls.paused_queues().get(run.queue)
    if pause is None:
        return None
    facts = {"queue": run.queue, "reason": pause.reason, "paused_at": iso(pause.paused_at), **_fails(run)}
    text = (
        f"The queue {run.queue} is paused since {moment(pause.paused_at)}: {pause.reason.rstrip('.')}. "
        "Nothing is taken from it until somebody resumes it."
    )
    return Why(WhyCode.QUEUE_PAUSED, text + said_end(run), facts)


def with_maintenance(why: Why) -> Why:
    """Return a waiting run's reason, with the word that maintenance is not one where it is on."""
    if controls.maintenance() is None:
        return why
    text = f"{why.text} Maintenance keeps out new runs; it does not hold this one."
    return replace(why, text=text, facts={**why.facts, "maintenance": True})


# -- pieces of sentences -----------------------------------------------------------------------------------------------
MANY = 10_000  # no count of those before it goes further


def count_of(count: int, noun: str) -> str:
    """Return "1 run", "12 runs", "more than 10,000 runs"."""
    if count > MANY:
        return f"more than {MANY:,} {noun}s"
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def when_of(at: dt.datetime | None, now: dt.datetime) -> str:
    """Return "at 2026-11-29 21:03:11 UTC (in 12 s)"."""
    return f"at {moment(at)} (in {span(seconds_to(at, now))})"


def seconds_to(at: dt.datetime | None, now: dt.datetime) -> int:
    """Return the whole seconds until then, rounded up, never below 0."""
    return 0 if at is None else max(0, math.ceil((at - now).total_seconds()))


def iso(at: dt.datetime | None) -> str | None:
    """Return a time as the API writes it."""
    return None if at is None else at.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


def said_end(run: Run) -> str:
    """Return the sentence that tells when a waiting run fails; empty without a limit."""
    return "" if run.waits_until is None else f" It fails at {moment(run.waits_until)} unless it has begun by then."


def _fails(run: Run) -> dict[str, Any]:
    return {"waits_until": iso(run.waits_until)}


def waiting_facts(run: Run) -> dict[str, Any]:
    """Return what is said of every queued run."""
    return {"queue": run.queue, "priority": run.priority, **_fails(run)}
