"""The sweeper: one holder at a time repairs what crashes and losses left behind (protocol 10).

Runs in a thread of every worker. All duties are conditional, bounded a pass, and safe to run twice, so a holder that
loses its lease in the middle does no harm. Without Redis every worker runs the duties that need none.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
import structlog
from django.db import DatabaseError, close_old_connections, connection
from redis.exceptions import RedisError, ResponseError

from quotas.database import later
from quotas.errors import Busy
from runs import archive, keys, ready, scripts
from runs.agents import list_agents
from runs.models import Run
from runs.states import TERMINAL, RunState
from workers import metrics, stream
from workers.config import WorkerConfig
from workers.takeover import Takeover

log = structlog.get_logger(__name__)
PRUNE = scripts.load(Path(__file__).parent / "lua" / "prune.lua")
HOLD_MS = 6000
PAGE = 500
CLOSE_PAGE = 16  # logs of up to 8 MiB each are in memory at once
CLOSE_AFTER_SECONDS = 5.0
YOUNG_SECONDS = 60.0
KEEP = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 0"


class Sweeper(threading.Thread):
    """Passes every `sweep` seconds until stopped; `run_once` is one pass, for tests and for impatient callers."""

    def __init__(self, config: WorkerConfig, client: "redis.Redis") -> None:
        super().__init__(name="sweeper", daemon=True)
        self._client = client
        self._me = config.consumer
        self._seconds = config.sweep
        self._queues = tuple(dict.fromkeys([*config.queues, *(spec.queue for spec in list_agents())]))
        self._takeover = Takeover(client, lease=config.lease, actor=config.consumer)
        self._relay_after: UUID | None = None
        self._close_after: UUID | None = None
        self._prune_at: dict[str, tuple[str, str]] = {}
        self._index_at: dict[str, int] = {}
        self._stop_event = threading.Event()

    def run(self) -> None:
        while not self._stop_event.wait(self._seconds * random.uniform(0.8, 1.2)):  # noqa: S311  jitter
            started = time.monotonic()
            close_old_connections()
            try:
                self.run_once()
            except Exception:
                log.exception("sweep.failed", worker=self._me)
            metrics.sweep_seconds.observe(time.monotonic() - started)
        connection.close()

    def stop(self) -> None:
        self._stop_event.set()

    def run_once(self) -> None:
        """Run every duty once, if this process is the holder; each duty's failure is its own."""
        try:
            if not self._hold():
                return
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("sweep.without_redis", error=str(error))
            self._duty("takeover", self._takeover.run_once)
            return
        # The order: what lets runs start, what ends them, what tidies up. Promotion, waking, limits in time and the
        # expiry of holds have their places before `takeover`.
        self._duty("redis_loss", self._after_loss)
        self._duty("relay", self._relay)
        self._duty("takeover", self._takeover.run_once)
        self._duty("close", self._close)
        self._duty("dead_entries", self._dead_entries)

    def _hold(self) -> bool:
        """Take or renew the holder's lease; one that died is replaced when its six seconds are over."""
        key = keys.sweeper()
        if self._client.set(key, self._me, nx=True, px=HOLD_MS):
            return True
        return bool(self._client.eval(KEEP, 1, key, self._me, HOLD_MS))

    def _duty(self, name: str, run: Callable[[], Any]) -> None:
        try:
            run()
        except (DatabaseError, Busy) as error:
            metrics.database_errors.inc()
            log.warning("sweep.duty_failed", duty=name, error=str(error))
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("sweep.duty_failed", duty=name, error=str(error))
        except Exception:  # a bug in one duty must not keep the others from theirs
            log.exception("sweep.duty_broke", duty=name)

    # -- Redis loss ------------------------------------------------------------------------------------------------
    def _after_loss(self) -> None:
        """A queue without its epoch key lost everything: groups at 0, then every queued row, then the key."""
        for queue in self._queues:
            if self._client.exists(keys.epoch(queue)):
                continue
            for name in keys.ready_streams(queue):
                self._make_group(name)
            added = sum(self._dispatch(page) for page in _pages(queue))
            seconds, micros = self._client.time()
            self._client.set(keys.epoch(queue), int(seconds) * 1000 + int(micros) // 1000, nx=True)
            log.warning("sweep.epoch_made", queue=queue, dispatched=added)

    def _make_group(self, name: str) -> None:
        try:
            self._client.xgroup_create(name, keys.GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    # -- relay -----------------------------------------------------------------------------------------------------
    def _relay(self) -> None:
        """Dispatch queued rows whose entry is not there: the youngest first, then a page of the others, in turn."""
        waiting = _queued().filter(queue__in=self._queues)
        added = self._dispatch(waiting.filter(queued_at__gt=later(-YOUNG_SECONDS)).order_by("-pk")[:PAGE])
        older = waiting.order_by("pk")
        if self._relay_after is not None:
            older = older.filter(pk__gt=self._relay_after)
        page = list(older[:PAGE])
        added += self._dispatch(page)
        self._relay_after = page[-1].pk if len(page) == PAGE else None
        if added:
            log.warning("sweep.relayed", runs=added)

    def _dispatch(self, rows: Iterable[Run]) -> int:
        added = ready.dispatch_all(self._client, rows)
        metrics.relayed.inc(added)
        return added

    # -- close -----------------------------------------------------------------------------------------------------
    def _close(self) -> None:
        """Close logs of ended runs that nobody closed, a page by id a pass, and acknowledge what outlived its run."""
        open_logs = Run.objects.filter(
            log_closed_at=None,
            finished_at__lt=later(-CLOSE_AFTER_SECONDS),
            state__in=[str(state) for state in TERMINAL],
        ).order_by("pk")
        if self._close_after is not None:
            open_logs = open_logs.filter(pk__gt=self._close_after)
        rows = list(open_logs.values_list("pk", "fence", "queue")[:CLOSE_PAGE])
        self._close_after = rows[-1][0] if len(rows) == CLOSE_PAGE else None
        if not rows:
            return
        try:
            archive.close_logs(self._client, [(run_id, fence) for run_id, fence, _ in rows])
        except (RedisError, Busy):
            raise
        except Exception as error:  # noqa: BLE001  one log that cannot be stored must not keep the others open
            log.warning("sweep.close_split", logs=len(rows), error=str(error)[:300])
            for run_id, fence, _ in rows:
                self._duty(f"close {run_id}", partial(archive.close_logs, self._client, [(run_id, fence)]))
        self._ack_named((queue, run_id) for run_id, _, queue in rows)

    # -- dead entries ----------------------------------------------------------------------------------------------
    def _dead_entries(self) -> None:
        """Delete entries that can never be delivered, a bounded step of every stream and index a pass."""
        for queue in self._queues:
            for name in keys.ready_streams(queue):
                self._prune(name)
            self._prune_index(queue)

    def _prune(self, name: str) -> None:
        start, pending = self._prune_at.get(name, ("-", "-"))
        reply = scripts.execute(
            self._client, lambda pipe: PRUNE.call(pipe, [name], [keys.GROUP, start, PAGE, pending])
        )[0]
        if isinstance(reply, Exception):
            raise reply
        self._prune_at[name] = (reply[0].decode(), reply[3].decode())
        if reply[1] or reply[2]:
            log.info("sweep.pruned", stream=name, entries=reply[1], pending=reply[2])

    def _prune_index(self, queue: str) -> None:
        """Forget what the index says of runs that have ended or are gone."""
        cursor, named = self._client.hscan(keys.index(queue), self._index_at.get(queue, 0), count=PAGE)
        self._index_at[queue] = int(cursor)
        ids, nonsense = _run_ids(list(named))
        if nonsense:
            self._client.hdel(keys.index(queue), *nonsense)
        alive = set(
            Run.objects.filter(pk__in=ids).exclude(state__in=[str(s) for s in TERMINAL]).values_list("pk", flat=True)
        )
        over = [run_id for run_id in ids if run_id not in alive]
        if over:
            self._ack_named((queue, run_id) for run_id in over)

    def _ack_named(self, pairs: Iterable[tuple[str, UUID]]) -> None:
        scripts.execute(self._client, scripts.each(lambda pipe, pair: stream.ack_named(pipe, *pair), list(pairs)))


def _run_ids(names: Iterable[Any]) -> tuple[list[UUID], list[bytes]]:
    """Return the names that are run ids, and those that are not: nobody will ever ask for them."""
    ids, nonsense = [], []
    for name in names:
        try:
            ids.append(UUID(name.decode("ascii")))
        except ValueError:
            nonsense.append(name)
    return ids, nonsense


def _queued() -> Any:
    return Run.objects.filter(state=RunState.QUEUED).only("pk", "fence", "queue", "priority", "traceparent")


def _pages(queue: str) -> Iterable[list[Run]]:
    """Yield all queued rows of a queue, a page at a time, by primary key."""
    after: UUID | None = None
    while True:
        rows = _queued().filter(queue=queue).order_by("pk")
        page = list(rows[:PAGE] if after is None else rows.filter(pk__gt=after)[:PAGE])
        if not page:
            return
        yield page
        after = page[-1].pk
