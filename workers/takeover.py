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

from quotas.database import database_time, in_transaction, is_connection_lost, later
from quotas.errors import Busy
from runs.models import Run
from runs.services import take_over
from runs.services.leaving import Lost
from runs.states import RunState
from workers import metrics
from workers.aftermath import announce_left, buried

log = structlog.get_logger(__name__)
CLOCK_STEP_SECONDS = 2.0
LOOKS_APART_SECONDS = 10.0  # at least: of short leases a pass may take several
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
        self._looked_at = time.monotonic()
        self.is_quiet = False  # while Redis is away: see workers.duties

    def run_once(self) -> int:
        """Look at lapsing leases; give the runs of those that lapsed for certain their next state. Returns how many."""
        try:
            rows = self._lapsing()
        except DatabaseError:
            self._remembered.clear()
            raise
        now = time.monotonic()
        if now - self._looked_at > max(2 * self._lease, LOOKS_APART_SECONDS):
            self._remembered.clear()  # somebody else swept meanwhile: an outage that there was, we did not see
        self._looked_at = now
        seen = {(row.pk, row.fence, row.lease_expires_at): row for row in rows if row.lease_expires_at}
        self._remembered = {key: self._remembered.get(key, now) for key in seen}
        ripe = [
            Lost(run_id, fence, expires)
            for (run_id, fence, expires), row in seen.items()
            if expires < database_time(row) and now - self._remembered[run_id, fence, expires] >= self._lease / 2
        ]
        return sum(self._try(lost, seen[lost.run_id, lost.fence, lost.lease_expires_at]) for lost in ripe)

    def _try(self, lost: Lost, row: Run) -> int:
        """Take over one run; one that is locked, or odd, holds up no other."""
        try:
            return self._take(lost, row)
        except Exception as error:
            if is_connection_lost(error):
                self._remembered.clear()
                raise
            expected = isinstance(error, Busy)
            log.warning("takeover.left", run_id=str(lost.run_id), error=repr(error), exc_info=not expected)
            return 0

    def forget(self) -> None:
        """Empty the memory: a failed database call elsewhere says as much as one of ours."""
        self._remembered.clear()

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
        left = in_transaction(lambda: buried(take_over(lost, actor=self._actor)))
        if left is None:
            return 0
        metrics.takeovers.inc()
        log.warning("run.taken_over", run_id=str(lost.run_id), worker=row.worker, event_name=left.moved.row.kind)
        if not self.is_quiet:
            announce_left(self._client, left)
        return 1
