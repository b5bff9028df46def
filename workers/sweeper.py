"""The sweeper: one holder at a time repairs what crashes and losses left behind (protocol 10).

Runs in a thread of every worker, and as `manage.py sweep`. All duties are conditional, bounded a pass, and safe to run
twice, so a holder that loses its lease in the middle does no harm. Without Redis every worker runs the duties that
need none.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
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
from runs.services import schedule
from runs.states import TERMINAL, RunState
from workers import holder, metrics, stream
from workers.config import SweeperConfig
from workers.departed import Departed
from workers.drift import DriftWatch
from workers.duties import Duties
from workers.holder import Held
from workers.retention import Retention
from workers.takeover import Takeover
from workers.waiting_sets import WaitingSets

log = structlog.get_logger(__name__)
PRUNE = scripts.load(Path(__file__).parent / "lua" / "prune.lua")
LEAST_PAUSE_SECONDS = 0.2
PAGE = 500
CLOSE_PAGE = 16  # logs of up to 8 MiB each are in memory at once
CLOSE_AFTER_SECONDS = 5.0
YOUNG_SECONDS = 60.0
# In the order of a pass: what lets runs begin first, then what ends them, then what tidies up.
ON_ROWS = ("promote", "sessions", "queue_wait", "limits", "holds", "takeover")
TIDYING = ("dead_letters", "close", "dead_entries", "consumers", "workers", "retention", "drift")
DUTIES = ("redis_loss", "relay", "parked", *ON_ROWS, *TIDYING)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did: the duties that were run, and those that failed with what they said.

    `held` is None where Redis did not answer; where somebody else holds the lease nothing was done.
    """

    held: Held | None
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


class Sweeper(threading.Thread):
    """Passes every `sweep` seconds until stopped; `run_once` is one pass, for tests and for impatient callers.

    `only` names the duties to run; all of DUTIES by default.
    """

    def __init__(self, config: SweeperConfig, client: "redis.Redis", only: Collection[str] = DUTIES) -> None:
        super().__init__(name="sweeper", daemon=True)
        self._only = frozenset(only)
        self._sweeps = False  # whether the last pass did anything
        self.passes = 0  # in which it was the holder, or there was no Redis
        self._client = client
        self._me = config.consumer
        self._seconds = config.sweep
        self._queues = tuple(dict.fromkeys([*config.queues, *(spec.queue for spec in list_agents())]))
        self._takeover = Takeover(client, lease=config.lease, actor=config.consumer)
        self._duties = Duties(client, actor=config.consumer, lease=config.lease)
        self._drift = DriftWatch()
        self._relay_after: UUID | None = None
        self._close_after: UUID | None = None
        self._prune_at: dict[str, tuple[str, str]] = {}
        self._index_at: dict[str, int] = {}
        self._stop_event = threading.Event()
        departed = Departed(client, queues=self._queues, lease=config.lease)
        self._all: dict[str, Callable[[], Any]] = {
            "redis_loss": self._after_loss,
            "relay": self._relay,
            "parked": WaitingSets(client, queues=self._queues, lease=config.lease).run_once,
            **{name: getattr(self._duties, name) for name in ON_ROWS if name != "takeover"},
            "takeover": self._takeover.run_once,
            "dead_letters": self._duties.dead_letters,
            "close": self._close,
            "dead_entries": self._dead_entries,
            "consumers": departed.consumers,
            "workers": departed.rows,
            "retention": Retention().run_once,
            "drift": self._drift.run_once,
        }

    def run(self) -> None:
        while not self._stop_event.wait(self._pause()):
            started = time.monotonic()
            close_old_connections()
            try:
                self.run_once()
            except Exception:
                log.exception("sweep.failed", worker=self._me)
            if self._sweeps:
                metrics.sweep_seconds.observe(time.monotonic() - started)
        connection.close()
        with contextlib.suppress(RedisError):
            self.let_go()

    def _pause(self) -> float:
        """Return the seconds to the next pass: fewer where a scheduled run is due before."""
        most = self._seconds * random.uniform(0.8, 1.2)  # noqa: S311  jitter
        if not self._sweeps:
            return most
        try:
            due = schedule.seconds_to_next()
        except DatabaseError:
            return most
        # What is overdue though a pass has just been made is held by somebody, or comes with the next page.
        return most if due is None or due <= 0 else min(most, max(LEAST_PAUSE_SECONDS, due))

    def stop(self) -> None:
        self._stop_event.set()

    def let_go(self) -> None:
        """Give the holder's lease back, if it is ours. Raises RedisError."""
        holder.let_go(self._client, self._me)

    def hold(self) -> Held | None:
        """Take or renew the holder's lease. None where Redis does not answer."""
        try:
            return holder.hold(self._client, self._me)
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("sweep.without_redis", error=str(error))
            return None

    def run_once(self) -> Pass:
        """Run every duty once, if this process is the holder; each duty's failure is its own."""
        done = Pass(self.hold())
        names: tuple[str, ...] = ON_ROWS  # all that can be done without Redis
        if done.held is not None:
            names = DUTIES if done.held.mine else ()
        self._takeover.is_quiet = self._duties.is_quiet = done.held is None
        self._sweeps = bool(names)
        if not names:
            self._drift.hush()
        self.passes += bool(names)
        for name in names:
            if name in self._only:
                self._duty(name, self._all[name], done)
        return done

    def repair(self, passes: int) -> Pass:
        """Run the duties of `only` so many times now, whoever holds the lease: each is safe beside another sweeper."""
        told = Pass(None)
        for _ in range(passes):
            for name in DUTIES:
                if name in self._only and name not in told.failed:
                    self._duty(name, self._all[name], told)
        return told

    def _duty(self, name: str, run: Callable[[], Any], told: Pass) -> None:
        try:
            run()
        except (DatabaseError, Busy) as error:
            self._takeover.forget()  # an outage takes nothing over, whichever duty met it (protocol 8.2)
            metrics.database_errors.inc()
            log.warning("sweep.duty_failed", duty=name, error=str(error))
            told.failed[name] = str(error)
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("sweep.duty_failed", duty=name, error=str(error))
            told.failed[name] = str(error)
        except Exception as error:  # a bug in one duty must not keep the others from theirs
            log.exception("sweep.duty_broke", duty=name)
            told.failed[name] = f"{type(error).__name__}: {error}"
        else:
            told.done.append(name)

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
            log.warning("sweep.close_split", logs=len(rows), error=str(error))
            for run_id, fence, _ in rows:
                self._close_alone(run_id, fence)
        self._ack_named((queue, run_id) for run_id, _, queue in rows)

    def _close_alone(self, run_id: UUID, fence: int) -> None:
        try:
            archive.close_logs(self._client, [(run_id, fence)])
        except (RedisError, Busy):
            raise
        except Exception as error:  # noqa: BLE001
            log.warning("sweep.log_left_open", run_id=str(run_id), error=str(error))

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
