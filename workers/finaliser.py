"""Ending runs: those that end together share a transaction per account, then one pipeline (protocol 9).

An outcome is kept and tried again while fence and token match, even past the lease (7.6).
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

import redis
import structlog
from django.db import DatabaseError, InterfaceError, OperationalError
from redis.exceptions import RedisError

from quotas.database import in_transaction
from quotas.errors import Busy
from runs import announcing, scripts
from runs.outcomes import ErrorClass, Failed
from runs.services.attempts import Finish, Finished, finish_attempts, recognise
from runs.states import RunState
from runs.text import clean_json
from workers import dead_letters, metrics, stream
from workers.stream import Entry
from workers.units import Units

log = structlog.get_logger(__name__)
TOGETHER_MAX = 64
RETRY_MAX_SECONDS = 5.0


@dataclass(slots=True)
class Ending:
    """An attempt that ended, waiting for its transaction. `done` is set when its row is decided."""

    entry: Entry
    finish: Finish
    done: "asyncio.Future[None] | None" = None


class Finaliser:
    """Commits endings as sets: while one set commits, the next gathers."""

    def __init__(self, client: "redis.Redis", units: Units, closer: "asyncio.Queue[tuple[UUID, int]]") -> None:
        self._client = client
        self._units = units
        self._closer = closer
        self._endings: asyncio.Queue[Ending] = asyncio.Queue()
        self._insisting: set[asyncio.Task[None]] = set()

    async def finish(self, entry: Entry, finish: Finish) -> None:
        """End an attempt; returns when the row says so (or says that it is somebody else's)."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._endings.put_nowait(Ending(entry, finish, done))
        await done

    async def run(self) -> None:
        """Commit endings until cancelled. While one set commits, the next gathers: no timer is needed."""
        while True:
            batch = [await self._endings.get()]
            while len(batch) < TOGETHER_MAX and not self._endings.empty():
                batch.append(self._endings.get_nowait())
            await self._commit(batch)

    async def _commit(self, batch: list[Ending]) -> None:
        batch.sort(key=lambda ending: ending.finish.account_id)
        for _, of_account in groupby(batch, key=lambda ending: ending.finish.account_id):
            endings = list(of_account)
            try:
                finished = await self._units.run(end_set, self._client, endings)
            except Exception as error:  # noqa: BLE001  whatever it is, each ending is decided alone
                metrics.count_error(error)
                log.warning("finalise.split", runs=len(endings), error=str(error))
                for ending in endings:
                    task = asyncio.create_task(self._insist(ending))
                    self._insisting.add(task)  # the loop itself keeps no hold of a task
                    task.add_done_callback(self._insisting.discard)
                continue
            self._settle(endings, finished)

    def _settle(self, endings: Sequence[Ending], finished: Finished) -> None:
        for one in finished.moved:
            if one.run.is_terminal:
                self._closer.put_nowait((one.run.pk, one.row.fence))
            else:
                metrics.retries.labels(one.row.kind).inc()
        for run_id in finished.lost:
            metrics.fenced_writes.inc()
            log.info("finalise.fenced", run_id=str(run_id))
        for ending in endings:
            if ending.done is not None and not ending.done.done():
                ending.done.set_result(None)

    async def _insist(self, ending: Ending) -> None:
        """Try one ending until the database decides. Data that cannot be stored is replaced by a clean failure."""
        wait = 0.1
        while True:
            try:
                finished = await self._units.run(end_set, self._client, [ending])
            except Exception as error:  # noqa: BLE001  an ending given up here would leave its run without one
                metrics.count_error(error)
                if _is_its_own_fault(error):
                    ending.finish = _storable(ending.finish, error)
                log.warning("finalise.retried", run_id=str(ending.finish.run_id), error=str(error))
                await asyncio.sleep(wait * random.uniform(0.5, 1))  # noqa: S311  spreading, not secrecy
                wait = min(RETRY_MAX_SECONDS, wait * 2)
                continue
            self._settle([ending], finished)
            return


def end_set(client: "redis.Redis", endings: Sequence[Ending]) -> Finished:
    """Commit endings of one account's runs, then announce them: one transaction, one round trip.

    Raises DatabaseError or Busy when nothing was committed.
    """

    def work() -> Finished:
        finished = finish_attempts(endings[0].finish.account_id, [ending.finish for ending in endings])
        dead_letters.bury(finished.failed, {ending.finish.run_id: ending.entry for ending in endings})
        return finished

    finished = in_transaction(work)
    if finished.lost:
        finished = recognise(finished, [ending.finish for ending in endings])
    _announce(client, endings, finished)
    return finished


def _announce(client: "redis.Redis", endings: Sequence[Ending], finished: Finished) -> None:
    """Events, acknowledgements or hand-overs, slots of a set, and the dispatch of successors: one round trip."""
    moved = {one.run.pk: one.run for one in finished.moved}

    def fill(pipe: Any) -> None:
        announcing.append(pipe, [*finished.moved, *finished.started])
        for ending in endings:
            run = moved.get(ending.finish.run_id)
            if run is None:
                stream.free_slot(pipe, ending.entry)
            elif run.state == RunState.QUEUED:
                stream.hand_over(pipe, run, ending.entry.slot)
            else:
                stream.ack(pipe, ending.entry, run.pk)
        announcing.dispatch(pipe, finished.started)

    try:
        replies = scripts.execute(client, fill)
        announcing.repair_logs(client, [*finished.moved, *finished.started], replies)
        scripts.checked(replies)
    except (RedisError, DatabaseError) as error:
        # The rows are decided; the sweeper's duties and the redelivery bring events, acks and entries later.
        metrics.count_error(error)
        log.warning("finalise.announced_later", runs=len(endings), error=str(error))
    dead_letters.publish(client, finished.failed)


def _is_its_own_fault(error: Exception) -> bool:
    """Whether it is the data, not the moment: everything but a busy, lost or absent store."""
    return not (isinstance(error, Busy | OperationalError | InterfaceError | RedisError))


def _storable(finish: Finish, error: Exception) -> Finish:
    failed = Failed(ErrorClass.NOT_STORABLE, type(error).__name__, "The database refused the result of this run.")
    return Finish(
        run_id=finish.run_id,
        account_id=finish.account_id,
        fence=finish.fence,
        token=finish.token,
        outcome=failed,
        usage=clean_json(finish.usage),
        cost=finish.cost,
        last_seq=finish.last_seq,
        session=finish.session,
        progress={},
        price_book=finish.price_book,
    )
