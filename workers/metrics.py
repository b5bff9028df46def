"""Counters of the working side. Served on the worker's own port; names as in docs/surfaces.md."""

from prometheus_client import Counter, Gauge, Histogram
from redis.exceptions import RedisError

HOUR_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

runs_ended = Counter("agentops_runs_ended", "Runs ended by this worker", ["agent", "outcome"])
run_seconds = Histogram("agentops_attempt_seconds", "Length of attempts", ["agent"], buckets=HOUR_BUCKETS)
wait_seconds = Histogram("agentops_wait_seconds", "From queued to started", ["queue"], buckets=HOUR_BUCKETS)
running = Gauge("agentops_running", "Runs this worker owns now")
places = Gauge("agentops_places", "Runs this worker can own at once")
retries = Counter("agentops_retries", "Attempts after which the run waits for another one", ["event"])
parked = Counter("agentops_parked", "Runs put aside because a limit on runs at work had no place", ["limit"])
takeovers = Counter("agentops_takeovers", "Runs of lost workers given their next state")
relayed = Counter("agentops_relayed", "Committed runs the sweeper dispatched")
fenced_writes = Counter("agentops_fenced_writes", "Writes refused because somebody else owns the run")
abandoned = Counter("agentops_abandoned_handlers", "Handlers that ignored their cancellation")
dead_letters = Counter("agentops_dead_letters", "Dead letters written", ["reason"])
events_appended = Counter("agentops_events_appended", "Events appended by this worker")
database_errors = Counter("agentops_database_errors", "Units of database work that failed")
redis_errors = Counter("agentops_redis_errors", "Redis round trips that failed")
last_read_age = Gauge("agentops_last_read_age_seconds", "Age of the last good read of the ready streams")
last_beat_age = Gauge("agentops_last_beat_age_seconds", "Age of the last acknowledged lease beat")
loop_lag = Gauge("agentops_loop_lag_seconds", "How late the event loop was when last looked at")
sweep_seconds = Histogram("agentops_sweep_seconds", "Length of sweeper passes")


def count_error(error: BaseException) -> None:
    """Count a failed piece of work by the store that failed it."""
    (redis_errors if isinstance(error, RedisError) else database_errors).inc()
