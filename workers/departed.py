"""What workers that are gone leave behind: consumers in the groups, rows that never signed off, old rows (10)."""

import time
from collections.abc import Sequence
from pathlib import Path

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError
from django.db.models.functions import Now

from quotas.database import later
from runs import keys, scripts
from runs.models import Run
from runs.states import RunState
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess

log = structlog.get_logger(__name__)
FORGET_CONSUMERS = scripts.load(Path(__file__).parent / "lua" / "forget_consumers.lua")
CONSUMERS_MAX = 500  # of a stream a pass
ROWS_MAX = 100
EVERY_SECONDS = 30.0
SILENT_LEASES = 10
SILENT_LIVES = 10  # times the seconds a heartbeat counts
ROWS_KEPT_SECONDS = 30 * 24 * 3600.0


class Departed:
    """Forgets workers. Nothing here decides about a run: that is the lease's business."""

    def __init__(self, client: "redis.Redis", *, queues: Sequence[str], lease: float) -> None:
        self._client = client
        self._streams = [name for queue in queues for name in keys.ready_streams(queue)] + list(settings.EXTRA_STREAMS)
        self._idle_ms = round(lease * SILENT_LEASES * 1000)
        self._due = {"consumers": 0.0, "rows": 0.0}
        # Beats that were missing at the last look. A database that was away leaves old beats of workers that live.
        self._silent: dict[int, tuple[object, float]] = {}

    def consumers(self) -> int:
        """Delete consumers without anything pending that read nothing for ten leases. Returns how many."""
        if not self._is_due("consumers"):
            return 0

        def fill(pipe: "redis.client.Pipeline") -> None:
            for name in self._streams:
                FORGET_CONSUMERS.call(pipe, [name], [keys.GROUP, self._idle_ms, CONSUMERS_MAX])

        deleted = 0
        for reply in scripts.execute(self._client, fill):
            if isinstance(reply, Exception):
                raise reply
            deleted += int(reply)
        if deleted:
            log.info("sweep.consumers_deleted", consumers=deleted)
        return deleted

    def rows(self) -> int:
        """Mark rows as stopped whose process is silent for long, and delete old ones. Returns how many of both."""
        if not self._is_due("rows"):
            return 0
        try:
            return self._mark_silent() + forget_rows()
        except DatabaseError:
            self._silent.clear()
            raise

    def _mark_silent(self) -> int:
        """Mark a process when two looks, as far apart as a heartbeat counts, have found the same old beat."""
        silent = WorkerProcess.objects.filter(stopped_at=None, heartbeat_at__lt=later(-SILENT_LIVES * alive_seconds()))
        # Asked again in the UPDATE, and not for the very beat: SQLite compares texts, and its own times are shorter.
        now = time.monotonic()
        seen: dict[int, tuple[object, float]] = {}
        ripe = []
        for pk, beat in silent.order_by("heartbeat_at").values_list("pk", "heartbeat_at")[:ROWS_MAX]:
            known = self._silent.get(pk)
            seen[pk] = known if known is not None and known[0] == beat else (beat, now)
            if now - seen[pk][1] >= alive_seconds():
                ripe.append(pk)
        self._silent = seen
        marked = silent.filter(pk__in=ripe).update(stopped_at=Now(), running_count=0) if ripe else 0
        if marked:
            log.warning("sweep.workers_gone", workers=marked)
        return marked

    def _is_due(self, what: str) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + EVERY_SECONDS
        return True


def forget_rows(*, dry_run: bool = False) -> int:
    """Delete rows of workers that stopped a month ago, unless runs still name them as owner. Returns how many."""
    owners = Run.objects.filter(state=RunState.RUNNING).values_list("worker", flat=True)
    old = WorkerProcess.objects.filter(stopped_at__lt=later(-ROWS_KEPT_SECONDS)).exclude(name__in=set(owners))
    ids = list(old.order_by("pk").values_list("pk", flat=True)[:ROWS_MAX])
    return len(ids) if dry_run else WorkerProcess.objects.filter(pk__in=ids).delete()[0]
