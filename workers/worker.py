"""A worker process: fetch, claim, run, finalise, close; and the threads that keep its leases and its ears.

The event loop runs handlers and nothing that blocks; database and Redis work happens in unit threads. The lease beat,
the sweeper and the control listener are threads of their own, so that a handler that blocks the loop harms only
itself.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import structlog
from django.db import DatabaseError, Error, close_old_connections
from redis.exceptions import RedisError

from quotas.errors import Refusal
from runs import broker
from runs.controls import paused_queues
from runs.metrics import show_agents
from runs.pricing import unpriced_models
from workers import metrics
from workers.attempt import Attempts
from workers.bulk.runner import BulkRunner
from workers.claimer import Batch
from workers.closer import close_batch, close_ended
from workers.config import WorkerConfig
from workers.control import ControlListener
from workers.delivery import Deliveries, Started
from workers.draining import Draining
from workers.event_writer import EventWriter
from workers.executor import Stop
from workers.finaliser import Finaliser
from workers.heartbeat import Heartbeat
from workers.leases import LeaseKeeper, Listeners
from workers.models import DeadLetter
from workers.owned import OwnedRun, OwnedRuns
from workers.pings import Pings
from workers.repair import repair_predecessors
from workers.shutdown import Shutdown
from workers.slots import Places
from workers.stream import Consumer, Entry
from workers.sweeper import Sweeper
from workers.units import Units

log = structlog.get_logger(__name__)
UNIT_THREADS = 8
BACKOFF_MAX_SECONDS = 5.0
WATCH_SECONDS = 0.5


class Worker:
    """One process. `run` returns after a drain; everything else is started by it."""

    def __init__(self, config: WorkerConfig, shutdown: Shutdown) -> None:
        self.config = config
        self.shutdown = shutdown
        self.client = broker.client()
        self.units = Units(UNIT_THREADS)
        self.places = Places(config.concurrency)
        self.owned = OwnedRuns()
        self.ended: asyncio.Queue[tuple[UUID, int]] = asyncio.Queue()
        self.writer = EventWriter(self.client, self.owned, self.units, self._lost)
        self.finaliser = Finaliser(self.client, self.units, self.ended)
        self.attempts = Attempts(config, self.owned, self.writer, self.finaliser, self.units)
        self.deliveries = Deliveries(config, self.client)
        # A server that accepts and never answers must not cost the beat the time in which leases are renewed.
        beating = broker.impatient_client(config.lease / 12)
        self.heartbeat = Heartbeat(config, beating)
        self.pings = Pings()
        self.last_read = self.last_tick = time.monotonic()
        self._lag = 0.0  # of the loop, when it last looked
        self._blocking = broker.blocking_client(config.wake_wait)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="wait")  # a blocked read must not hold up a unit
        self._consumer = Consumer(
            self.client,
            name=config.consumer,
            queues=config.queues,
            stale=config.stale,
            beat=config.beat,
            slot_seconds=config.lease,
            slot_limit=config.global_slots,
            extra_streams=config.extra_streams,
        )
        self._attempts: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        told = Listeners(self._stop, self._asked_to_drain, self._lost, self._recalled)
        self.keeper = LeaseKeeper(config, self.owned, beating, told, self.heartbeat)
        self._draining = Draining(config, shutdown, self.heartbeat, self.units, self.owned, self._attempts)

    async def run(self, *, port: int = 0) -> None:
        """Work until a signal, then drain: finish what runs for up to the grace, interrupt the rest, sign off."""
        self._loop = asyncio.get_running_loop()
        await self.units.run(self._register, port)
        sweeper = Sweeper(self.config, self.client)
        control = ControlListener(self._cancel_by_id, self._drain_by_name, self._undrain_by_name)
        bulk = BulkRunner(self.config.consumer)
        for thread in (self.keeper, sweeper, control, bulk):
            thread.start()
        parts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "event writer": self.writer.run,
            "finaliser": self.finaliser.run,
            "closer": lambda: close_ended(self.client, self.units, self.ended),
            "watchdog": self._watch,
            "pings": self.pings.run,
        }
        helpers = [asyncio.create_task(_for_ever(name, part), name=name) for name, part in parts.items()]
        repair = repair_predecessors(self.client, self.units, actor=self.config.consumer)
        helpers.append(asyncio.create_task(repair, name="repair"))
        try:
            await self._fetch()
            while not await self._draining.run():
                await self._fetch()
        finally:
            for task in helpers:
                task.cancel()
            for thread in (bulk, control, sweeper, self.keeper):
                thread.stop()
        await self._sign_off()

    def _register(self, port: int) -> None:
        self.heartbeat.register(port=port)
        self._show()
        log.info("worker.started", worker=self.config.consumer, queues=self.config.queues, port=port)
        longest = self.config.longest_time_limit
        if self.config.drain_grace < longest:
            log.warning(
                "worker.drain_grace_too_short",
                drain_grace=self.config.drain_grace,
                longest_time_limit=longest,
                hint="A stop may cut runs off: raise AGENTOPS_DRAIN_GRACE_SECONDS, or lower the agents' time limits.",
            )
        for model, agents in unpriced_models().items():
            log.warning(
                "worker.model_without_price",
                model=model,
                agents=agents,
                hint=f"Runs that use it are refused or fail: ./run set_price {model} input=… output=… names a price.",
            )
        policy = broker.eviction_policy()
        if policy not in {"", "noeviction"}:
            log.warning(
                "redis.may_evict",
                policy=policy,
                hint="Set `maxmemory-policy noeviction`: any other may delete streams. Runs come back, events do not.",
            )

    # -- fetch -----------------------------------------------------------------------------------------------------
    async def _fetch(self) -> None:
        """Wait for a place, then for a wake, holding nothing; take; handle; start. Reconnects by itself."""
        found, wait = True, 0.1
        while not self.shutdown.draining.is_set():
            await self._first_of(self.places.wait_free())
            try:
                if not found:
                    await self._wait_for_wake()
                if self.shutdown.draining.is_set():
                    return
                entries = await self.units.run(self._take, self.places.free())
                self.last_read, wait = time.monotonic(), 0.1
            except (RedisError, Error) as error:
                metrics.count_error(error)
                log.warning("fetch.reconnecting", worker=self.config.consumer, error=str(error))
                await self._first_of(asyncio.sleep(wait * random.uniform(0.5, 1)))  # noqa: S311  spreading
                wait, found = min(BACKOFF_MAX_SECONDS, wait * 2), True
                continue
            found = bool(entries)
            if entries:
                await self._start(entries)

    async def _wait_for_wake(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._reader, self._consumer.wait, self._blocking, self.config.wake_wait)
        self.last_read = time.monotonic()

    def _take(self, places: Sequence[int]) -> list[Entry]:
        self.deliveries.put_back_due()
        known = {owned.entry.id for owned in self.owned.all()}
        return self._consumer.take(places, known, paused_queues())

    async def _first_of(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for something or for the shutdown, whichever comes first."""
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(waiting),
            asyncio.create_task(self.shutdown.draining.wait()),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    async def _start(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.places.take(entry.place)
        free, begun = await self._handle(entries)
        for owned in begun:
            task = asyncio.create_task(self._attempt(owned), name=f"attempt {owned.run_id}")
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)
        await self._free(free)

    async def _free(self, entries: Sequence[Entry]) -> None:
        """Give back places and slots of entries that started nothing. A slot that cannot be freed now expires."""
        for entry in entries:
            self.places.give_back(entry.place)
        if entries:
            try:
                await self.units.run(self._consumer.free_slots, entries)
            except RedisError as error:
                log.warning("slots.left_to_expire", slots=len(entries), error=str(error))

    async def _handle(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[OwnedRun]]:
        """Handle taken entries, again and again while a store is away: they are ours until they are stale."""
        wait, batch = 0.1, Batch()
        while True:
            try:
                return await self.units.run(self._begin, entries, batch)
            except (Error, RedisError, Refusal) as error:
                metrics.count_error(error)
                log.warning("handle.retried", entries=len(entries), error=str(error))
            # A claim whose answer was lost may have won runs: they are looked for even while we drain.
            if self.shutdown.at_once.is_set() or (self.shutdown.draining.is_set() and not batch.unsure):
                return list(entries), []
            await self._first_of(asyncio.sleep(wait * random.uniform(0.5, 1)))  # noqa: S311  spreading
            wait = min(BACKOFF_MAX_SECONDS, wait * 2)

    def _begin(self, entries: Sequence[Entry], batch: Batch) -> tuple[list[Entry], list[OwnedRun]]:
        """Handle entries and own what was claimed, in the unit's thread: the beat renews it from now on.

        The loop may be blocked by another run's handler for longer than a lease. Returns (entries not started, runs).
        """
        owned: list[OwnedRun] = []
        broken: list[Entry] = []

        def begin(started: Started) -> None:
            try:
                owned.append(self.attempts.own(started))
            except Exception:  # a row of another version: it is left to takeover, its neighbours are not
                log.exception("run.not_begun", run_id=str(started.claimed.run.pk))
                broken.append(started.entry)

        handled = self.deliveries.handle(entries, batch, begin)
        return [*handled.free, *broken], owned

    async def _attempt(self, owned: OwnedRun) -> None:
        """Run one attempt. Its place is given back last."""
        self.pings.changed()
        metrics.running.set(self.places.in_use)
        try:
            await self.attempts.run(owned)
        finally:
            self.places.give_back(owned.entry.place)
            self.pings.changed()
            metrics.running.set(self.places.in_use)

    # -- told by threads: hop to the loop --------------------------------------------------------------------------
    def _stop(self, owned: OwnedRun, reason: Stop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(owned.execution.stop, reason)

    def _cancel_by_id(self, run_id: UUID) -> None:
        owned = self.owned.find(run_id)
        if owned is not None:
            self._stop(owned, Stop.CANCEL)

    def _asked_to_drain(self) -> None:
        """Drain as after a first signal. Asking again changes nothing."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.shutdown.draining.set)

    def _drain_by_name(self, worker: str) -> None:
        if worker == self.config.consumer:
            self._asked_to_drain()

    def _recalled(self) -> None:
        """Have a drain look whether it is still asked for; outside of one nothing comes of it."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._draining.recalled.set)

    def _undrain_by_name(self, worker: str) -> None:
        if worker == self.config.consumer:
            self._recalled()

    def _lost(self, owned: OwnedRun) -> None:
        if not owned.fenced:
            owned.fenced = True
            owned.buffer.close()
            metrics.fenced_writes.inc()
            log.warning("run.lost", run_id=str(owned.run_id), fence=owned.fence)
        self._stop(owned, Stop.LOST)

    async def _watch(self) -> None:
        """Stop runs that lost their lease (7.4) or show no progress, and see how late the loop is."""
        while True:
            due = time.monotonic() + WATCH_SECONDS
            await asyncio.sleep(WATCH_SECONDS)
            self.last_tick = time.monotonic()
            self._lag = max(0.0, self.last_tick - due)
            for owned in self.owned.overdue(self.config.lost_after):
                self._lost(owned)
            for owned in self.owned.silent():
                owned.execution.stop(Stop.NO_PROGRESS)

    def _show(self) -> None:
        """Show what a scrape reads. Ages are computed then: a loop that hangs could not keep them up to date."""
        metrics.places.set(self.config.concurrency)
        metrics.last_read_age.set_function(lambda: time.monotonic() - self.last_good_read)
        metrics.last_beat_age.set_function(lambda: time.monotonic() - self.keeper.last_beat)
        metrics.loop_lag.set_function(lambda: max(self._lag, time.monotonic() - self.last_tick - WATCH_SECONDS))
        show_agents()
        for reason in DeadLetter.Reason:
            metrics.dead_letters.labels(reason)

    @property
    def last_good_read(self) -> float:
        """When the streams were last read, on the monotonic clock; a full worker has no reason to read."""
        return time.monotonic() if not self.places.free() else self.last_read

    # -- end -------------------------------------------------------------------------------------------------------
    async def _sign_off(self) -> None:
        left = []
        while not self.ended.empty():
            left.append(self.ended.get_nowait())
        if left:
            await close_batch(self.client, self.units, left)
        try:
            await self.units.run(self.heartbeat.sign_off)
        except (DatabaseError, RedisError) as error:
            log.warning("sign_off.not_noted", error=str(error))
        self._blocking.close()
        self.units.close()
        self._reader.shutdown(wait=False)
        self.attempts.close()
        log.info("worker.stopped", worker=self.config.consumer)
        close_old_connections()


async def _for_ever(name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a part of the worker until cancelled. None is expected to raise; if one does, the worker goes on with it."""
    while True:
        try:
            await part()
        except Exception:
            log.exception("part.broke", part=name)
        await asyncio.sleep(1)
