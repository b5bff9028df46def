"""Repair after worker processes of this machine that are known to be dead (protocol 8.4).

Their runs get their next state at once, without the lease being waited for: nobody can write for them any more. What
they left in Redis goes with them. All of it may be repeated, by several at the same time too.
"""

import asyncio
import threading
from pathlib import Path
from uuid import UUID

import redis
import structlog
from django.conf import settings
from django.db import Error, connections
from django.db.models import Q
from django.db.models.functions import Now
from redis.exceptions import RedisError

from quotas.database import in_transaction
from quotas.errors import Busy, Refusal
from runs import broker, keys, scripts
from runs.models import Run
from runs.services import take_over_dead
from runs.states import RunState
from workers import holder, metrics, processes
from workers.aftermath import announce_left, buried
from workers.models import WorkerProcess
from workers.units import Units

log = structlog.get_logger(__name__)
BURY_CONSUMER = scripts.load(Path(__file__).parent / "lua" / "bury_consumer.lua")
STALE_LEASES = 10  # entries this old are anybody's
WAIT_SECONDS, WAIT_MAX_SECONDS = 0.2, 5.0
SECOND_LOOK_SECONDS = 3.0


def repair_dead(client: "redis.Redis", *, actor: str) -> int:
    """Repair after every provably dead worker of this machine. Returns how many runs got their next state.

    Raises Error, Busy or RedisError when a store did not do its part: what was left is found again by the next call.
    """
    return sum(repair(client, row, actor=actor) for row in dead_workers())


def dead_workers() -> list[WorkerProcess]:
    """Return the rows of dead processes that did not sign off, or that did and still own runs."""
    here = processes.on_this_machine()
    if here is None:
        return []
    owners = Run.objects.filter(state=RunState.RUNNING).values_list("worker", flat=True).distinct()
    rows = WorkerProcess.objects.filter(Q(stopped_at=None) | Q(name__in=list(owners)), **here)
    return [row for row in rows if processes.is_provably_dead(row)]


def repair(client: "redis.Redis", row: WorkerProcess, *, actor: str) -> int:
    """Repair after one dead process: its runs, what it left in Redis, its row. Returns how many runs it had."""
    running = Run.objects.filter(state=RunState.RUNNING, worker=row.name).order_by("pk").values_list("pk", flat=True)
    busy: Busy | None = None
    taken = 0
    for run_id in list(running):
        try:
            taken += _take(client, run_id, row, actor)
        except Busy as error:  # one locked account holds up no other
            busy = error
    if busy is not None:
        raise busy
    _tidy(client, row)
    WorkerProcess.objects.filter(pk=row.pk, stopped_at=None).update(stopped_at=Now(), running_count=0)
    log.warning("worker.repaired", worker=row.name, pid=row.pid, runs=taken)
    return taken


def _take(client: "redis.Redis", run_id: UUID, row: WorkerProcess, actor: str) -> int:
    left = in_transaction(lambda: buried(take_over_dead(run_id, worker=row.name, actor=actor)))
    if left is None:
        return 0
    metrics.takeovers.inc()
    log.warning("run.taken_over", run_id=str(run_id), worker=row.name, event_name=left.moved.row.kind)
    announce_left(client, left)
    return 1


def _tidy(client: "redis.Redis", row: WorkerProcess) -> None:
    """Take the process out of Redis: its heartbeat, its turn as the sweeper, its slots, its consumers."""
    client.delete(keys.heartbeat(row.name))
    holder.let_go(client, row.name)
    idle = round(settings.LEASE_SECONDS * STALE_LEASES * 1000)

    def fill(pipe: "redis.client.Pipeline") -> None:
        for queue in row.queues:
            names = [keys.wake(queue), keys.slots(queue), *keys.ready_streams(queue)]
            BURY_CONSUMER.call(pipe, names, [keys.GROUP, row.name, idle])

    for reply in scripts.execute(client, fill):
        if isinstance(reply, Exception):
            raise reply


async def repair_predecessors(client: "redis.Redis", units: Units, *, actor: str) -> None:
    """Repair after dead processes of this machine at a worker's start, again until the stores did their part."""
    wait = WAIT_SECONDS
    while True:
        try:
            await units.run(lambda: repair_dead(client, actor=actor))
        except (Error, RedisError, Refusal) as error:
            metrics.count_error(error)
            log.warning("repair.postponed", error=str(error))
        else:
            return
        await asyncio.sleep(wait)
        wait = min(WAIT_MAX_SECONDS, 2 * wait)


class Repairs(threading.Thread):
    """Repairs when it is told that a process died. A thread: stores that are away must not hold up a supervisor."""

    def __init__(self, *, actor: str) -> None:
        super().__init__(name="repairs", daemon=True)
        self._actor = actor
        self._asked = self._answered = 0
        self._changed = threading.Condition()

    def want(self) -> None:
        """Have everything repaired, soon."""
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def finish(self, seconds: float) -> None:
        """Wait for what is wanted, not longer than that. What is left is left to the next start, or to the lease."""
        with self._changed:
            self._changed.wait_for(lambda: self._answered == self._asked, seconds)

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_wanted)
                goal = self._asked
            self._until_done()
            with self._changed:
                self._answered = goal
                self._changed.notify_all()
                again = self._changed.wait_for(self._is_wanted, SECOND_LOOK_SECONDS)
            if not again:  # a commit of the dead that was on its way when it died
                self.run_once()

    def _is_wanted(self) -> bool:
        return self._asked > self._answered

    def _until_done(self) -> None:
        pause, wait = threading.Event(), WAIT_SECONDS
        while not self.run_once():
            pause.wait(wait)
            wait = min(WAIT_MAX_SECONDS, 2 * wait)

    def run_once(self) -> bool:
        """Repair once. Returns whether everything was done."""
        try:
            repair_dead(broker.client(), actor=self._actor)
        except (Error, RedisError, Refusal) as error:
            log.warning("repair.postponed", error=str(error))
            return False
        except Exception:
            log.exception("repair.broke")
            return False
        finally:
            connections.close_all()
        return True
