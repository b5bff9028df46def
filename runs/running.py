"""Limits on how many runs are at work at once: an agent's, and an account's (protocol 6.4).

Both are per queue: keys of different queues cannot be in one script on a cluster.
"""

from dataclasses import dataclass
from typing import Any

import redis
from django.db.models import OuterRef, Subquery

from quotas.models import Account
from runs import keys, ready
from runs.agents import find_agent
from runs.models import Run

TURN_STEP = 10**13  # above every time in milliseconds, and so that a turn is exact in a double
# Read with the run's row: a limit counts from the next claim on, and costs no statement.
ACCOUNT_LIMIT = {
    "account_max_running": Subquery(Account.objects.filter(pk=OuterRef("account_id")).values("max_running"))
}
AGENT, ACCOUNT = "agent:", "account:"


@dataclass(frozen=True, slots=True)
class RunningLimit:
    """A limit that a run counts against, and how many of its runs may be at work."""

    name: str
    most: int


def limits_of(run: Run, account_max: int | None) -> tuple[RunningLimit, ...]:
    """Return the limits of a run; `account_max` is its account's."""
    spec = find_agent(run.agent)
    found = [
        (AGENT + run.agent, None if spec is None else spec.max_running),
        (f"{ACCOUNT}{run.account_id}", account_max),
    ]
    return tuple(RunningLimit(name, most) for name, most in found if most is not None)


def annotated_limits(run: Run) -> tuple[RunningLimit, ...]:
    """Return the limits of a run that was read with ACCOUNT_LIMIT."""
    return limits_of(run, run.account_max_running)  # type: ignore[attr-defined]


def young_ms(lease: float) -> int:
    """Return how long after a loss of Redis no place is given: all owners have had a beat by then (protocol 6.2)."""
    return round((lease / 3 + 1) * 1000)


def turn_of(run: Run) -> int:
    """Return a run's turn among those that wait for the same limit: by priority, then by how long it has waited."""
    return keys.PRIORITIES.index(run.priority) * TURN_STEP + int(run.queued_at.timestamp() * 1000)


def facts_of(run: Run, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return what the scripts have to know of a run under limits, in their order (runs/lua/parking.lua)."""
    return (keys.ready(run.queue, run.priority), ready.MESSAGE_VERSION, run.traceparent, *names)


def known_limits(client: "redis.Redis", queue: str) -> dict[str, int]:
    """Return {limit: how many it lets be at work} of the queue's limits for which somebody waits."""
    found: dict[bytes, bytes] = client.hgetall(keys.limits(queue))  # type: ignore[assignment]
    return {name.decode(): int(most) for name, most in found.items()}


def list_waiting(client: "redis.Redis", queue: str) -> list[dict[str, Any]]:
    """Return {queue, limit, most, running, parked} of each limit for which somebody waits, by name."""
    limits = sorted(known_limits(client, queue).items())
    if not limits:
        return []
    pipe = client.pipeline(transaction=False)
    for name, _ in limits:
        pipe.zcard(keys.limit_places(queue, name))
        pipe.zcard(keys.parked(queue, name))
    counts = [int(count) for count in pipe.execute()]
    return [
        {"queue": queue, "limit": name, "most": most, "running": counts[2 * at], "parked": counts[2 * at + 1]}
        for at, (name, most) in enumerate(limits)
    ]
