"""Counters of what any process of ours does: runs that end, events that reach their viewers, errors of the stores.

Each process counts for itself and Prometheus adds up. Every name and its meaning: docs/metrics.md.
"""

import datetime as dt

from django.db import Error
from django.utils import timezone
from prometheus_client import Counter, Gauge, Histogram
from redis.exceptions import RedisError

from runs.agents import find_agent, list_agents
from runs.states import TERMINAL

HOUR_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
OTHER = "other"  # the label of every agent that this process does not know

runs_ended = Counter("agentops_runs_ended", "Runs that came to their end in this process", ["agent", "outcome"])
run_seconds = Histogram("agentops_run_seconds", "From submitted to ended", ["agent"], buckets=HOUR_BUCKETS)
viewers = Gauge("agentops_viewers", "Event streams and sockets that follow a run now")
viewer_lag = Histogram(
    "agentops_viewer_lag_seconds", "Age of live events when they reach the web", buckets=HOUR_BUCKETS
)
database_errors = Counter("agentops_database_errors", "Units of database work that failed")
redis_errors = Counter("agentops_redis_errors", "Redis round trips that failed")


def agent_label(name: str) -> str:
    """Return the agent's name if this process knows it, else "other": labels must not grow with what callers write."""
    return OTHER if find_agent(name) is None else name


def show_agents() -> None:
    """Show a zero for every agent and outcome: the first increase of a series that was not there is seen by nobody."""
    for spec in list_agents():
        for outcome in TERMINAL:
            runs_ended.labels(spec.name, str(outcome))


def count_end(agent: str, outcome: str, seconds: float) -> None:
    """Count one ended run; `seconds` from its submit to its end."""
    label = agent_label(agent)
    runs_ended.labels(label, outcome).inc()
    run_seconds.labels(label).observe(max(0.0, seconds))


def count_error(error: BaseException) -> None:
    """Count a failed piece of work by the store that failed it; what came from neither counts as the database's."""
    (redis_errors if isinstance(error, RedisError) else database_errors).inc()


def count_store_error(error: BaseException) -> None:
    """Count an error that a request met, if a store raised it."""
    if isinstance(error, Error | RedisError):
        count_error(error)


def observe_lag(at: str) -> None:
    """Note how old a live event is (`at` in ISO 8601) when it is handed to its viewers."""
    age = timezone.now() - dt.datetime.fromisoformat(at)
    viewer_lag.observe(max(0.0, age.total_seconds()))
