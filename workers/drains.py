"""Operators' acts on workers: a drain, its recall, and taking over from one that is provably gone.

Drain and recall are written in the workers' rows, told at once, and brought by the heartbeat if that is lost.
"""

import re

import orjson
import structlog
from django.db import transaction
from django.db.models.functions import Now
from redis.exceptions import RedisError

from quotas import audit
from quotas.database import in_transaction
from runs import broker, keys
from runs.models import Run
from runs.states import RunState
from workers import processes, repair
from workers.errors import NoSuchWorker, NotProvablyGone, NotRecallable
from workers.models import WorkerProcess
from workers.selectors import list_workers

ANOTHER = "Start another one: `./run runworker_streams`, or `./run up` again"
log = structlog.get_logger(__name__)


def request_drain(*, name: str, actor: str, reason: str = "", request_id: str = "") -> list[WorkerProcess]:
    """Ask the live workers of a name, or the one process of that full name, to drain. Returns them as they are now.

    They take nothing more, finish what runs within their grace, and stop; the rest goes by the drain policy. Asking
    again changes nothing. Raises NoSuchWorker.
    """

    def work() -> list[int]:
        rows = _named(name)
        for row in rows:
            _ask(row, actor, reason, request_id)
        return [row.pk for row in rows]

    asked = in_transaction(work)
    return list(WorkerProcess.objects.filter(pk__in=asked).order_by("name"))


def _named(name: str) -> list[WorkerProcess]:
    """Return the live workers of a name, or the one process of that full name; raises NoSuchWorker."""
    full = _full(name)
    rows = [row for row in list_workers(alive=True) if full.fullmatch(row.name)]
    if not rows:
        raise NoSuchWorker(worker=name[:120])
    return rows


def _full(name: str) -> re.Pattern[str]:
    # What a process adds to its worker's name: its pid, a random part. The children of a fleet have names of their own.
    return re.compile(re.escape(name) + r"(-\d+-[0-9a-f]+)?")


def _check_not_ended(name: str) -> None:
    """Raise NotRecallable where a worker of that name was there and is no more."""
    full = _full(name)
    for row in list_workers(alive=False).filter(name__startswith=name):
        if full.fullmatch(row.name):
            raise NotRecallable(worker=row.name, why=_why_not(row) if row.stopped_at else f"it is not alive. {ANOTHER}")


def recall_drain(*, name: str, actor: str, reason: str = "", request_id: str = "") -> list[WorkerProcess]:
    """Have workers that were asked to drain go on working. Returns them as they are now.

    Only until one gives up something: a process that leaves, and one that a signal asked, cannot be called back. With
    several of a name nothing is recalled unless all can be. Raises NoSuchWorker, NotRecallable.
    """

    def work() -> list[int]:
        try:
            rows = _named(name)
        except NoSuchWorker:
            _check_not_ended(name)
            raise
        for row in rows:
            _recall(row, actor, reason, request_id)
        return [row.pk for row in rows]

    recalled = in_transaction(work)
    return list(WorkerProcess.objects.filter(pk__in=recalled).order_by("name"))


def _recall(row: WorkerProcess, actor: str, reason: str, request_id: str) -> None:
    stays = WorkerProcess.objects.filter(pk=row.pk, leaving_at=None, stopped_at=None)
    # The worker's own last word is the opposite UPDATE (Heartbeat.leave): whoever comes second hits no row.
    changes = {"drain_requested_at": None, "drain_requested_by": "", "draining_since": None}
    if not stays.filter(drain_requested_at__isnull=False).update(**changes):
        row.refresh_from_db()
        raise NotRecallable(worker=row.name, why=_why_not(row))
    transaction.on_commit(lambda: _tell(row.name, "undrain"))
    audit.record(
        actor=actor,
        action="worker.undrain",
        target_type="worker",
        target_id=row.name,
        before={"drain": "requested", "by": row.drain_requested_by},
        reason=reason,
        request_id=request_id,
    )


def _why_not(row: WorkerProcess) -> str:
    """Return why a worker's drain cannot be recalled."""
    if row.stopped_at is not None:
        return f"it has stopped. {ANOTHER}"
    if row.leaving_at is not None:
        asked = "its drain is over" if row.drain_requested_at is not None else "a signal asked it to stop"
        return f"{asked}, and it leaves"
    return "a signal asked it to stop" if row.draining_since is not None else "nobody asked it to drain"


def take_over_from(*, name: str, actor: str, reason: str = "", request_id: str = "") -> int:
    """Give the runs of a worker that is provably gone their next state now, without waiting for its leases (8.4).

    Returns how many runs it had. The audit entry is of the order and comes first, so that none is given unseen; what
    became of each run is in its transitions, which name the actor, too. The proof can only be made on the machine where
    it ran. Raises NoSuchWorker, NotProvablyGone; RedisError when Redis did not do its part: then the act may be
    repeated.
    """
    row = WorkerProcess.objects.filter(name=name).first()
    if row is None:
        raise NoSuchWorker(worker=name[:120])
    owns = Run.objects.filter(state=RunState.RUNNING, worker=row.name)
    if row.stopped_at is not None and not owns.exists():
        return 0  # it was done before
    if not processes.is_provably_dead(row):
        raise NotProvablyGone(worker=row.name, why=_doubt(row))
    in_transaction(
        lambda: audit.record(
            actor=actor,
            action="worker.take_over",
            target_type="worker",
            target_id=row.name,
            before={"runs": owns.count()},
            reason=reason,
            request_id=request_id,
        )
    )
    return repair.repair(broker.client(), row, actor=actor)


def _doubt(row: WorkerProcess) -> str:
    here = processes.on_this_machine()
    if here is None or here != {"boot_id": row.boot_id, "pid_namespace": row.pid_namespace}:
        return "it ran on another machine, or in another container, so nothing can be proved here; its leases run out"
    return "its process is there, or may be"


def _ask(row: WorkerProcess, actor: str, reason: str, request_id: str) -> None:
    asked = WorkerProcess.objects.filter(pk=row.pk, drain_requested_at=None).update(
        drain_requested_at=Now(), drain_requested_by=actor[:150]
    )
    transaction.on_commit(lambda: _tell(row.name, "drain"))
    if asked:
        audit.record(
            actor=actor,
            action="worker.drain",
            target_type="worker",
            target_id=row.name,
            after={"drain": "requested"},
            reason=reason,
            request_id=request_id,
        )


def _tell(worker: str, what: str) -> None:
    try:
        broker.client().publish(keys.control(), orjson.dumps({what: worker}))
    except RedisError as error:
        log.warning("control.lost", what=what, worker=worker, error=str(error))
