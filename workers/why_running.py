"""Why a running run is not moving: its owner is gone or silent, it was asked to stop, or its handler says nothing."""

import datetime as dt
from typing import Any

import orjson
from django.conf import settings
from redis.exceptions import RedisError

from quotas.display import moment, span
from runs import broker, keys
from runs.limits import Limit, passed
from runs.models import OnLost, Run
from runs.why import Why, WhyCode, iso, seconds_to
from workers.alive import Fleet

SILENT_SECONDS = 30.0  # without an event, from which on it is worth a word; half a limit of no progress, if less
LIMITS: dict[str, str] = {
    Limit.TIME_LIMIT: "time limit",
    Limit.WALL_CLOCK: "wall clock",
    Limit.DEADLINE: "deadline",
    Limit.NO_PROGRESS: "limit of no progress",
}


def reason(run: Run, fleet: Fleet, now: dt.datetime) -> Why | None:
    """Return the reason, or None while its owner renews its lease and its handler says something."""
    return _lease(run, fleet, now) or _asked(run, now) or _handler(run, now)


def _lease(run: Run, fleet: Fleet, now: dt.datetime) -> Why | None:
    """Return that the owner does not renew: a healthy one never gets below half a lease (protocol 8.2)."""
    if run.lease_expires_at is None:
        return None
    left = (run.lease_expires_at - now).total_seconds()
    if left >= settings.LEASE_SECONDS / 2:
        return None
    is_alive = run.worker in fleet.by_name
    others = sum(worker.name != run.worker for worker in fleet.alive)
    then, said = _then(run)
    facts: dict[str, Any] = {
        "worker": run.worker,
        "worker_alive": is_alive,
        "lease_expires_at": iso(run.lease_expires_at),
        "seconds": seconds_to(run.lease_expires_at, now),
        "policy": run.on_lost,
        "then": then,
        "other_workers": others,
    }
    nobody = "" if others else " No other worker is alive to see to that."
    who = f"Its worker {run.worker} {'is silent' if is_alive else 'is gone'}"
    if left <= 0:
        text = f"{who} and its lease expired {span(round(-left))} ago: at the next look of a sweeper {said}."
        return Why(WhyCode.LEASE_EXPIRED, text + nobody, facts)
    text = f"{who}: its lease was not renewed and expires in {span(facts['seconds'])}, then {said}."
    return Why(WhyCode.OWNER_SILENT, text + nobody, facts)


def _then(run: Run) -> tuple[str, str]:
    """Return what a takeover makes of the run (protocol 8.3): a word, and how a sentence says it."""
    if run.cancel_requested_at is not None:
        return "cancelled", "it is cancelled, as was asked"
    if run.stop_requested:
        return "timeout", "it ends as timed out, or is tried again where its agent says so"
    if run.on_lost != OnLost.RERUN:
        return "interrupted", "it is interrupted, and what it spent is settled"
    if run.attempt < run.max_attempts:
        return "rerun", f"attempt {run.attempt + 1} of {run.max_attempts} is scheduled"
    return "failed", f"it fails, because that was attempt {run.attempt} of {run.max_attempts}"


def _asked(run: Run, now: dt.datetime) -> Why | None:
    """Return that it was asked to stop, and what happens if it does not."""
    grace = settings.HANDLER_GRACE_SECONDS
    facts: dict[str, Any] = {"worker": run.worker, "grace_seconds": grace}
    if run.cancel_requested_at is not None:
        ago = max(0.0, (now - run.cancel_requested_at).total_seconds())
        facts |= {"cancel_requested_at": iso(run.cancel_requested_at), "seconds": round(ago, 1)}
        text = (
            f"Cancel was requested {span(round(ago))} ago and its worker has not confirmed it yet; "
            f"a handler that does not stop is abandoned {span(grace)} after its worker told it to."
        )
        return Why(WhyCode.CANCEL_REQUESTED, text, facts)
    if run.stop_requested:
        limit = LIMITS.get(run.stop_requested, run.stop_requested)
        ago = max(0.0, (now - (run.stop_requested_at or now)).total_seconds())
        facts |= {"limit": run.stop_requested, "stop_requested_at": iso(run.stop_requested_at)}
        text = (
            f"Its {limit} passed, and its worker was asked {span(round(ago))} ago to stop it; "
            f"a sweeper ends it {span(grace)} and a beat after that."
        )
        return Why(WhyCode.STOP_REQUESTED, text, {**facts, "seconds": round(ago, 1)})
    return None


def _handler(run: Run, now: dt.datetime) -> Why | None:
    """Return that its handler says nothing, and which limit ends that."""
    last = _last_event(run)
    silence = None if last is None else (now - last).total_seconds()
    limit = run.no_progress_seconds
    if silence is None and run.quiet_at is not None and limit is not None:
        silence = (now - run.quiet_at).total_seconds() + limit
    if silence is None or silence < min(SILENT_SECONDS, (limit or 2 * SILENT_SECONDS) / 2):
        return None
    facts: dict[str, Any] = {"worker": run.worker, "silent_seconds": round(silence, 1), "attempt": run.attempt}
    text = f"Its handler has sent no event for {span(round(silence))}"
    ends = [(at, which) for at, which in ((run.quiet_at, Limit.NO_PROGRESS), (run.stop_at, None)) if at is not None]
    if not ends:
        return Why(WhyCode.HANDLER_SILENT, f"{text}; nothing limits that.", facts)
    at, which = min(ends, key=lambda end: end[0])
    which = which or passed(run, at) or Limit.TIME_LIMIT
    facts |= {"limit": str(which), "ends_at": iso(at), "seconds": seconds_to(at, now)}
    text = f"{text}; its {LIMITS[which]} ends the attempt at {moment(at)} (in {span(facts['seconds'])})."
    return Why(WhyCode.HANDLER_SILENT, text, facts)


def _last_event(run: Run) -> dt.datetime | None:
    """Return when the newest event of its log came; None without a log, and while Redis is away."""
    try:
        rows: Any = broker.brief_client().xrevrange(keys.log(run.pk), count=1)
        return dt.datetime.fromisoformat(orjson.loads(rows[0][1][b"e"])["at"]) if rows else None
    except (RedisError, KeyError, ValueError):
        return None
