"""A worker process: fetch, claim, run, finalise, close; and the threads that keep its leases and its ears.

The event loop runs handlers and nothing that blocks; database and Redis work happens in unit threads. The lease beat,
the sweeper and the control listener are threads of their own, so that a handler that blocks the loop harms only
itself.
"""

import asyncio
import datetime as dt
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, Error, close_old_connections
from django.utils import timezone
from redis.exceptions import RedisError

from quotas.errors import Refusal
from runs import broker
from runs.agents import get_agent
from runs.outcomes import ErrorClass, Failed, Outcome, Succeeded
from runs.results import dumps
from runs.services.attempts import Finish
from workers import metrics
from workers.claimer import Batch
from workers.closer import close_batch, close_ended
from workers.config import WorkerConfig
from workers.context import Context, Identity
from workers.control import ControlListener
from workers.delivery import Deliveries, Started
from workers.event_buffer import EventBuffer
from workers.event_writer import EventWriter
from workers.executor import Execution, Stop
from workers.finaliser import Finaliser
from workers.heartbeat import Heartbeat
from workers.leases import LeaseKeeper, Listeners
from workers.owned import OwnedRun, OwnedRuns
from workers.pings import Pings
from workers.ports import AttemptIsFenced, WorkerPorts
from workers.shutdown import Shutdown
from workers.slots import Places
from workers.stream import Consumer, Entry
from workers.sweeper import Sweeper
from workers.units import Units

log = structlog.get_logger(__name__)
UNIT_THREADS = 8
ABANDONED_MAX = 1000
BACKOFF_MAX_SECONDS = 5.0
WATCH_SECONDS = 0.5
LEAVE_SECONDS = 5.0


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
        self.deliveries = Deliveries(config, self.client)
        # A server that accepts and never answers must not cost the beat the time in which leases are renewed.
        beating = broker.impatient_client(config.lease / 12)
        self.heartbeat = Heartbeat(config, beating)
        self.pings = Pings()
        self.last_read = time.monotonic()
        self._blocking = broker.blocking_client(config.wake_wait)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="wait")  # a blocked read must not hold up a unit
        # More than places, on demand: an abandoned handler keeps its thread and must not keep another run waiting.
        self._handlers = ThreadPoolExecutor(config.concurrency + ABANDONED_MAX, thread_name_prefix="handler")
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
        self.abandoned: set[asyncio.Task[Any]] = set()  # handlers that ignored their cancellation, while they go on
        self._loop: asyncio.AbstractEventLoop | None = None
        self.keeper = LeaseKeeper(config, self.owned, beating, Listeners(self._cancel, self._lost), self.heartbeat)

    async def run(self, *, port: int = 0) -> None:
        """Work until a signal, then drain: finish what runs for up to the grace, interrupt the rest, sign off."""
        self._loop = asyncio.get_running_loop()
        await self.units.run(self._register, port)
        sweeper, control = Sweeper(self.config, self.client), ControlListener(self._cancel_by_id)
        for thread in (self.keeper, sweeper, control):
            thread.start()
        parts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "event writer": self.writer.run,
            "finaliser": self.finaliser.run,
            "closer": lambda: close_ended(self.client, self.units, self.ended),
            "watchdog": self._watch,
            "pings": self.pings.run,
        }
        helpers = [asyncio.create_task(_for_ever(name, part), name=name) for name, part in parts.items()]
        try:
            await self._fetch()
            await self._drain()
        finally:
            for task in helpers:
                task.cancel()
            for thread in (control, sweeper, self.keeper):
                thread.stop()
        await self._sign_off()

    def _register(self, port: int) -> None:
        self.heartbeat.register(port=port)
        metrics.places.set(self.config.concurrency)
        log.info("worker.started", worker=self.config.consumer, queues=self.config.queues, port=port)

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
                metrics.redis_errors.inc()
                log.warning("fetch.reconnecting", worker=self.config.consumer, error=str(error)[:200])
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
        return self._consumer.take(places, known)

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
                log.warning("slots.left_to_expire", slots=len(entries), error=str(error)[:200])

    async def _handle(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[OwnedRun]]:
        """Handle taken entries, again and again while a store is away: they are ours until they are stale."""
        wait, batch = 0.1, Batch()
        while True:
            try:
                return await self.units.run(self._begin, entries, batch)
            except (Error, RedisError, Refusal) as error:
                metrics.database_errors.inc()
                log.warning("handle.retried", entries=len(entries), error=str(error)[:200])
            if self.shutdown.draining.is_set():
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
                owned.append(self._own(started))
            except Exception:  # a row of another version: it is left to takeover, its neighbours are not
                log.exception("run.not_begun", run_id=str(started.claimed.run.pk))
                broken.append(started.entry)

        handled = self.deliveries.handle(entries, batch, begin)
        return [*handled.free, *broken], owned

    # -- one attempt -----------------------------------------------------------------------------------------------
    async def _attempt(self, owned: OwnedRun) -> None:
        """Run a claimed run's handler and end its attempt, by whatever outcome. The place is given back last."""
        began = time.monotonic()
        self.pings.changed()
        if began - owned.renewed_at > self.config.lost_after:
            owned.execution.stop(Stop.LOST)  # the process stood still between the claim and this line
        try:
            outcome = await owned.execution.run(self._handlers)
            outcome = await self._fit(owned, outcome)
            owned.buffer.close()
            await self.writer.flush([owned], everything=True)
            await self.finaliser.finish(owned.entry, _finish_of(owned, outcome))
            self._count(owned, outcome, time.monotonic() - began)
        except Exception:
            # Nothing above is expected to raise; if it does, the lease lapses and takeover ends the run.
            log.exception("attempt.broke", run_id=str(owned.run_id))
        finally:
            self._abandon(owned.execution)
            self.owned.remove(owned)
            self.places.give_back(owned.entry.place)
            self.pings.changed()
            metrics.running.set(self.places.in_use)

    def _own(self, started: Started) -> OwnedRun:
        run, entry = started.claimed.run, started.entry
        spec = get_agent(run.agent)
        buffer = EventBuffer(run.fence, _clock_offset(started.claimed.started.at))

        async def flush() -> None:
            await self.writer.flush([owned], everything=True)

        identity = Identity(
            run_id=run.pk,
            agent=run.agent,
            attempt=run.attempt,
            fence=run.fence,
            worker=self.config.consumer,
            account_id=run.account_id,
            metadata=run.metadata,
        )
        ctx = Context(identity, buffer, WorkerPorts(run, started.claimed.token, self.units, flush))
        execution = Execution(spec, ctx, run.input, time_limit=run.time_limit_seconds, grace=self.config.handler_grace)
        owned = OwnedRun(run, started.claimed.token, entry, ctx, buffer, execution, renewed_at=started.claimed_at)
        run.input_json = ""  # the handler has it; a worker need not hold it twice
        self.owned.add(owned)
        metrics.running.set(self.places.in_use)
        if run.cancel_requested_at is not None:
            execution.stop(Stop.CANCEL)
        return owned

    async def _fit(self, owned: OwnedRun, outcome: Outcome) -> Outcome:
        """Turn a result that is too large for a row into an artifact (protocol 11.1)."""
        match outcome:
            case Succeeded(result_json) if len(result_json) > settings.RESULT_INLINE_BYTES:
                named = await self._as_artifact(owned, "result.json", result_json)
                if named is None:
                    message = "The result is too large for the row, and could not be stored as a file."
                    return Failed(ErrorClass.NOT_STORABLE, "ResultNotStored", message)
                return Succeeded(named)
            case Failed(partial_json=str() as partial) if len(partial) > settings.RESULT_INLINE_BYTES:
                return replace(outcome, partial_json=await self._as_artifact(owned, "partial.json", partial))
            case _:
                return outcome

    async def _as_artifact(self, owned: OwnedRun, name: str, text: str) -> str | None:
        """Store a large JSON text as a file; returns the JSON that names it, or None when it cannot be stored."""
        try:
            stored = await owned.ctx.artifact(name, text.encode("utf-8"), "application/json")
        except (AttemptIsFenced, OSError, DatabaseError, Refusal) as error:
            log.warning("result.not_stored", run_id=str(owned.run_id), error=str(error))
            return None
        return dumps({"artifact": stored["name"], "size": stored["size"]})

    def _count(self, owned: OwnedRun, outcome: Outcome, seconds: float) -> None:
        metrics.runs_ended.labels(owned.run.agent, type(outcome).__name__.lower()).inc()
        metrics.run_seconds.labels(owned.run.agent).observe(seconds)

    def _abandon(self, execution: Execution) -> None:
        if execution.abandoned is not None:
            metrics.abandoned.inc()
            self.abandoned.add(execution.abandoned)
            execution.abandoned.add_done_callback(self.abandoned.discard)

    # -- told by threads: hop to the loop --------------------------------------------------------------------------
    def _stop(self, owned: OwnedRun, reason: Stop) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(owned.execution.stop, reason)

    def _cancel(self, owned: OwnedRun) -> None:
        self._stop(owned, Stop.CANCEL)

    def _cancel_by_id(self, run_id: UUID) -> None:
        owned = self.owned.find(run_id)
        if owned is not None:
            self._cancel(owned)

    def _lost(self, owned: OwnedRun) -> None:
        if not owned.fenced:
            owned.fenced = True
            owned.buffer.close()
            metrics.fenced_writes.inc()
            log.warning("run.lost", run_id=str(owned.run_id), fence=owned.fence)
        self._stop(owned, Stop.LOST)

    async def _watch(self) -> None:
        """Stop runs whose lease could not be renewed in time (7.4), and see how late the loop is."""
        while True:
            due = time.monotonic() + WATCH_SECONDS
            await asyncio.sleep(WATCH_SECONDS)
            metrics.loop_lag.set(max(0.0, time.monotonic() - due))
            metrics.last_read_age.set(time.monotonic() - self.last_good_read)
            metrics.last_beat_age.set(time.monotonic() - self.keeper.last_beat)
            for owned in self.owned.overdue(self.config.lost_after):
                self._lost(owned)

    @property
    def last_good_read(self) -> float:
        """When the streams were last read, on the monotonic clock; a full worker has no reason to read."""
        return time.monotonic() if not self.places.free() else self.last_read

    # -- end -------------------------------------------------------------------------------------------------------
    async def _drain(self) -> None:
        """Take nothing more; finish what runs for up to the grace; interrupt the rest (policy `interrupt`)."""
        log.info("worker.draining", worker=self.config.consumer, running=len(self._attempts))
        try:
            await self.units.run(self.heartbeat.draining)
        except DatabaseError as error:
            log.warning("drain.not_noted", error=str(error))
        if self._attempts:
            at_once = asyncio.create_task(self.shutdown.at_once.wait())
            finished = asyncio.create_task(_all_done(self._attempts))
            await asyncio.wait(
                {at_once, finished}, timeout=self.config.drain_grace, return_when=asyncio.FIRST_COMPLETED
            )
            for owned in self.owned.all():
                owned.execution.stop(Stop.DRAIN)
            await asyncio.wait({at_once, finished}, return_when=asyncio.FIRST_COMPLETED)
            if not finished.done():  # a second signal: handlers get their grace, a store that is away gets no more
                await asyncio.wait({finished}, timeout=self.config.handler_grace + LEAVE_SECONDS)
            at_once.cancel()
            finished.cancel()

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
        self._handlers.shutdown(wait=False, cancel_futures=True)
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


async def _all_done(tasks: set["asyncio.Task[None]"]) -> None:
    while tasks:
        await asyncio.wait(set(tasks))


def _clock_offset(database_time: dt.datetime) -> dt.timedelta:
    """Return the database's clock minus ours, where they differ by more than the way of an answer explains."""
    offset = database_time - timezone.now()
    return offset if abs(offset) > dt.timedelta(seconds=1) else dt.timedelta(0)


def _finish_of(owned: OwnedRun, outcome: Outcome) -> Finish:
    usage, cost = owned.ctx.usage.snapshot()
    return Finish(
        run_id=owned.run_id,
        account_id=owned.run.account_id,
        fence=owned.fence,
        token=owned.token,
        outcome=outcome,
        usage=usage,
        cost=cost,
        last_seq=owned.buffer.last_seq,
        progress=owned.ctx.progress_now,
        price_book=owned.ctx.usage.price_book,
    )
