"""The lease beat: a thread of its own renews all runs of this worker in one transaction (protocol 7).

Its own thread, because a handler that blocks the event loop must not cost the neighbours their leases. The row is
renewed first; Redis follows it, for the runs whose row was renewed in this beat only.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis
import structlog
from django.db import DatabaseError, close_old_connections, connection, transaction
from django.db.models import Q
from redis.exceptions import RedisError

from quotas.database import can_skip_locked, later
from quotas.prices import PriceTable
from runs import keys
from runs.models import Run
from runs.services.attempts import update_attempts
from runs.states import RunState
from workers import metrics, parking
from workers.config import WorkerConfig
from workers.executor import Stop
from workers.heartbeat import Heartbeat
from workers.owned import OwnedRun, OwnedRuns

log = structlog.get_logger(__name__)
AGAIN_PART = 8  # of a beat: how soon one that failed is tried again


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who is told of a run that was asked to stop, and of one that is not ours any more. Called in the thread.

    With every heartbeat one of `drain` and `undrain` is called, as the worker's row has it.
    """

    stop: Callable[[OwnedRun, Stop], None]
    drain: Callable[[], None]
    lost: Callable[[OwnedRun], None]
    undrain: Callable[[], None] = lambda: None


class LeaseKeeper(threading.Thread):
    """Renews until stopped. `beat_once` is one renewal; tests call it directly."""

    def __init__(
        self, config: WorkerConfig, owned: OwnedRuns, client: "redis.Redis", listeners: Listeners, heartbeat: Heartbeat
    ) -> None:
        super().__init__(name="lease-beat", daemon=True)
        self._config = config
        self._owned = owned
        self._client = client
        self._listeners = listeners
        self._heartbeat = heartbeat
        self._stop_event = threading.Event()
        self.last_beat = time.monotonic()

    def run(self) -> None:
        due = time.monotonic() + self._config.beat
        while not self._stop_event.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._config.beat  # from its start: what the beat itself takes is not added
            try:
                if not self.beat_once():
                    # A session that the database ended is found by its first use; a lease is only a few beats long.
                    due = min(due, time.monotonic() + self._config.beat / AGAIN_PART)
                PriceTable.refresh()
                if self._heartbeat.beat_if_due(running=len(self._owned.all())):
                    is_asked = self._heartbeat.is_asked_to_drain()
                    (self._listeners.drain if is_asked else self._listeners.undrain)()
            except DatabaseError as error:
                log.warning("beat.postponed", worker=self._config.consumer, error=str(error))
            except Exception:
                log.exception("beat.failed", worker=self._config.consumer)
        connection.close()

    def stop(self) -> None:
        self._stop_event.set()

    def beat_once(self) -> bool:
        """Renew every lease, store usage and progress, pass on cancel requests, and find out what was lost.

        Returns whether the database took the renewals.
        """
        held = self._owned.all()
        close_old_connections()
        try:
            self._be_impatient()
            sent = time.monotonic()
            renewed = _renew(held, self._config.lease) if held else {}
        except DatabaseError as error:
            metrics.database_errors.inc()
            log.warning("beat.postponed", worker=self._config.consumer, error=str(error))
            return False
        self.last_beat = time.monotonic()
        for owned in held:
            if owned.run_id in renewed:
                owned.renewed_at = sent
        for owned in held:
            reason = renewed.get(owned.run_id)
            if reason is not None:
                self._listeners.stop(owned, reason)
        missing = [owned for owned in held if owned.run_id not in renewed]
        for owned in _gone(missing):
            if not owned.ending:  # else it is this worker that has moved the row, or will be told so by its finaliser
                self._listeners.lost(owned)
        self._follow([owned for owned in held if owned.run_id in renewed])
        return True

    def _be_impatient(self) -> None:
        """On SQLite, wait for the writer at most LEASE/6: a beat that waits longer is a beat that is missed."""
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {round(self._config.lease / 6 * 1000)}")

    def _follow(self, renewed: Sequence[OwnedRun]) -> None:
        """Keep what renewed rows have in Redis: entries young, without counting a delivery; slots and places alive."""
        if not renewed:
            return
        pipe = self._client.pipeline(transaction=False)
        for owned in renewed:
            entry = owned.entry
            pipe.xclaim(entry.stream, keys.GROUP, self._config.consumer, 0, [entry.id], justid=True)
            if entry.slot:
                _refresh_slot(pipe, entry.queue, entry.slot, self._config.lease)
            if owned.limits:
                parking.keep(pipe, owned.run, owned.limits, self._config.lease)
        try:
            pipe.execute(raise_on_error=False)
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("beat.redis_away", worker=self._config.consumer, error=str(error))


def _refresh_slot(pipe: "redis.client.Pipeline", queue: str, slot: str, seconds: float) -> None:
    """Set a slot's expiry by the server's own clock; re-inserts it after a loss of Redis."""
    pipe.eval(
        "local t=redis.call('TIME') return redis.call('ZADD',KEYS[1],t[1]*1000+math.floor(t[2]/1000)+ARGV[1],ARGV[2])",
        1,
        keys.slots(queue),
        round(seconds * 1000),
        slot,
    )


def _renew(held: Sequence[OwnedRun], lease: float) -> dict[UUID, Stop | None]:
    """Renew in one transaction. Returns {run id: why it has to stop, or None} of the rows that are ours.

    Rows somebody has locked are passed over: they are decided on this moment, and absence from here is no loss.
    """
    mine = Q()
    for owned in held:
        mine |= Q(pk=owned.run_id, fence=owned.fence, claim_token=owned.token)
    with transaction.atomic():
        rows = {
            pk: Stop.CANCEL if cancel is not None else _reason(asked)
            for pk, cancel, asked in Run.objects.select_for_update(skip_locked=can_skip_locked())
            .filter(mine, state=RunState.RUNNING)
            .order_by("pk")
            .values_list("pk", "cancel_requested_at", "stop_requested")
        }
        Run.objects.filter(pk__in=list(rows)).update(lease_expires_at=later(lease))
        _store_quiet([owned for owned in held if owned.run_id in rows])
        news = _store_usage([owned for owned in held if owned.run_id in rows])
    for owned, mark in news:
        owned.stored_usage = mark  # only now: what a failed commit took back must be written again
    return rows


def _reason(asked: str) -> Stop | None:
    """Return why a row asks its owner to stop. A word of a later version is a limit that we do not know."""
    try:
        return Stop(asked) if asked else None
    except ValueError:
        return Stop.TIME_LIMIT


def _store_quiet(held: Sequence[OwnedRun]) -> None:
    """Write when a run's silence will count as no progress, for those that have such a limit."""
    for owned in held:
        limit = owned.run.no_progress_seconds
        if limit is not None:
            Run.objects.filter(pk=owned.run_id).update(quiet_at=later(limit - owned.buffer.silent_for()))


def _store_usage(held: Sequence[OwnedRun]) -> list[tuple[OwnedRun, tuple[int, int]]]:
    """Store cost, usage and progress of the attempts that have news: absolute totals (money 5). Returns their marks."""
    news = []
    for owned in held:
        usage, cost = owned.ctx.usage.snapshot()
        mark = (cost, hash((str(usage), str(owned.ctx.progress_now))))
        if mark != owned.stored_usage:
            news.append((owned, usage, cost, mark))
    if not news:
        return []
    which = Q()
    for owned, *_ in news:
        which |= Q(run_id=owned.run_id, fence=owned.fence)
    update_attempts(
        which,
        [owned.run_id for owned, *_ in news],
        {
            "usage": [usage for _, usage, _, _ in news],
            "cost": [cost for _, _, cost, _ in news],
            "price_book": [owned.ctx.usage.price_book for owned, *_ in news],
            "progress": [owned.ctx.progress_now for owned, *_ in news],
        },
    )
    return [(owned, mark) for owned, _, _, mark in news]


def _gone(missing: Sequence[OwnedRun]) -> list[OwnedRun]:
    """Return those that a plain read shows to be somebody else's by now (protocol 7.2)."""
    if not missing:
        return []
    rows = {
        row["pk"]: row
        for row in Run.objects.filter(pk__in=[owned.run_id for owned in missing]).values(
            "pk", "fence", "claim_token", "state"
        )
    }
    return [owned for owned in missing if not _is_mine(rows.get(owned.run_id), owned)]


def _is_mine(row: Mapping[str, Any] | None, owned: OwnedRun) -> bool:
    return (
        row is not None
        and row["fence"] == owned.fence
        and row["claim_token"] == owned.token
        and row["state"] == RunState.RUNNING
    )
