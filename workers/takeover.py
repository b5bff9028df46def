"""Takeover of lost runs, with a memory: nobody takes over on the first look (protocol 8.2).

A run is taken over when its lease has lapsed by the database's clock and the very same (run, fence, lease) was seen
for half a lease on this process's monotonic clock. A failed database call, or a step of the database's clock, empties
the memory: an outage or a clock that jumps takes nothing over.
"""

import datetime as dt
import time
from uuid import UUID

import redis
import structlog
from django.db import DatabaseError
from django.db.models.functions import Now
from redis.exceptions import RedisError

from quotas.database import database_time, in_transaction, later
from quotas.errors import Busy
from runs import lifecycle, scripts
from runs.models import Run, Transition
from runs.services import take_over
from runs.services.leaving import Lost
from runs.states import RunState
from workers import metrics, stream

log = structlog.get_logger(__name__)
CLOCK_STEP_SECONDS = 2.0
PASS_MAX = 200
Seen = tuple[UUID, int, dt.datetime]


class Takeover:
    """One process's memory of lapsing leases. `run_once` is one look."""

    def __init__(self, client: "redis.Redis", *, lease: float, actor: str) -> None:
        self._client = client
        self._lease = lease
        self._actor = actor
        self._remembered: dict[Seen, float] = {}
        self._clocks: tuple[dt.datetime, float] | None = None

    def run_once(self) -> int:
        """Look at lapsing leases; give the runs of those that lapsed for certain their next state. Returns how many."""
        try:
            rows = self._lapsing()
        except DatabaseError:
            self._remembered.clear()
            raise
        now = time.monotonic()
        seen = {(row.pk, row.fence, row.lease_expires_at): row for row in rows if row.lease_expires_at}
        self._remembered = {key: self._remembered.get(key, now) for key in seen}
        ripe = [
            Lost(run_id, fence, expires)
            for (run_id, fence, expires), row in seen.items()
            if expires < database_time(row) and now - self._remembered[run_id, fence, expires] >= self._lease / 2
        ]
        return sum(self._try(lost, seen[lost.run_id, lost.fence, lost.lease_expires_at]) for lost in ripe)

    def _try(self, lost: Lost, row: Run) -> int:
        """Take over one run; a locked account or row of one holds up no other."""
        try:
            return self._take(lost, row)
        except Busy as error:
            log.warning("takeover.busy", run_id=str(lost.run_id), error=str(error))
            return 0
        except DatabaseError:
            self._remembered.clear()
            raise

    def _lapsing(self) -> list[Run]:
        """Return running rows that no healthy owner would let come so near their end, and check the clocks."""
        rows: list[Run] = list(
            Run.objects.annotate(db_now=Now())
            .defer("input_json", "result_json")
            .filter(state=RunState.RUNNING, lease_expires_at__lt=later(self._lease / 2))
            .order_by("lease_expires_at")[:PASS_MAX]
        )
        if rows:
            clocks = (database_time(rows[0]), time.monotonic())
            if self._clocks is not None:
                step = (clocks[0] - self._clocks[0]).total_seconds() - (clocks[1] - self._clocks[1])
                if abs(step) > CLOCK_STEP_SECONDS:
                    log.warning("takeover.clock_step", seconds=round(step, 3))
                    self._remembered.clear()
            self._clocks = clocks
        else:
            self._clocks = None
        return rows

    def _take(self, lost: Lost, row: Run) -> int:
        moved = in_transaction(lambda: take_over(lost, actor=self._actor))
        if moved is None:
            return 0
        metrics.takeovers.inc()
        log.warning("run.taken_over", run_id=str(lost.run_id), worker=row.worker, event_name=moved.kind)
        try:
            self._announce(moved, row)
        except RedisError as error:
            log.warning("announce.postponed", run_id=str(lost.run_id), error=str(error))
        return 1

    def _announce(self, moved: Transition, row: Run) -> None:
        lifecycle.announce(self._client, [moved])
        scripts.execute(self._client, lambda pipe: stream.ack_named(pipe, row.queue, row.pk))
