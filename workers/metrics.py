"""Counters of the working side. Served on the worker's own port; names as in docs/metrics.md."""

from prometheus_client import Counter, Gauge, Histogram

from runs.metrics import HOUR_BUCKETS, count_error, database_errors, redis_errors

__all__ = ["count_error", "database_errors", "redis_errors"]

attempt_seconds = Histogram("agentops_attempt_seconds", "Length of attempts", ["agent"], buckets=HOUR_BUCKETS)
wait_seconds = Histogram("agentops_wait_seconds", "From queued to started", ["queue"], buckets=HOUR_BUCKETS)
dispatch_seconds = Histogram(
    "agentops_dispatch_delay_seconds", "From queued to its entry on the ready stream", ["queue"], buckets=HOUR_BUCKETS
)
running = Gauge("agentops_running", "Runs this worker owns now")
places = Gauge("agentops_places", "Runs this worker can own at once")
retries = Counter("agentops_retries", "Attempts after which the run waits for another one", ["event"])
parked = Counter("agentops_parked", "Runs put aside because a limit on runs at work had no place", ["limit"])
takeovers = Counter("agentops_takeovers", "Runs of lost workers given their next state")
relayed = Counter("agentops_relayed", "Committed runs the sweeper dispatched")
fenced_writes = Counter("agentops_fenced_writes", "Writes refused because somebody else owns the run")
abandoned = Counter("agentops_abandoned_handlers", "Handlers that ignored their cancellation")
dead_letters = Counter("agentops_dead_letters", "Dead letters written", ["reason"])
holds = Gauge("agentops_holds", "Open holds, shown by the sweeper's holder", ["state"])
units = Gauge("agentops_units", "Micro-units held, and spent in the current periods, of all accounts", ["kind"])
hold_drift = Gauge("agentops_hold_drift", "By how much account counters differ from their rows", ["kind"])
events_appended = Counter("agentops_events_appended", "Events appended by this worker")
last_read_age = Gauge("agentops_last_read_age_seconds", "Age of the last good read of the ready streams")
last_beat_age = Gauge("agentops_last_beat_age_seconds", "Age of the last acknowledged lease beat")
loop_lag = Gauge("agentops_loop_lag_seconds", "How late the event loop was when last looked at, or is by now")
sweep_seconds = Histogram("agentops_sweep_seconds", "Length of the passes of the sweeper's holder")
bulk_items = Counter("agentops_bulk_items", "Items of bulk operations acted on", ["kind", "result"])
