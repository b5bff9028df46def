"""Asking workers to drain: written in their rows, told at once, and brought by the heartbeat if that is lost."""

import re

import orjson
import structlog
from django.db import transaction
from django.db.models.functions import Now
from redis.exceptions import RedisError

from quotas import audit
from quotas.database import in_transaction
from runs import broker, keys
from workers.errors import NoSuchWorker
from workers.models import WorkerProcess
from workers.selectors import list_workers

log = structlog.get_logger(__name__)


def request_drain(*, name: str, actor: str, reason: str = "", request_id: str = "") -> list[WorkerProcess]:
    """Ask the live workers of a name, or the one process of that full name, to drain. Returns them as they are now.

    They take nothing more, finish what runs within their grace, and stop; the rest goes by the drain policy. Asking
    again changes nothing. Raises NoSuchWorker.
    """
    # What a process adds to its worker's name: its pid, a random part. The children of a fleet have names of their own.
    full = re.compile(re.escape(name) + r"(-\d+-[0-9a-f]+)?")

    def work() -> list[int]:
        rows = [row for row in list_workers(alive=True) if full.fullmatch(row.name)]
        if not rows:
            raise NoSuchWorker(worker=name[:120])
        for row in rows:
            _ask(row, actor, reason, request_id)
        return [row.pk for row in rows]

    asked = in_transaction(work)
    return list(WorkerProcess.objects.filter(pk__in=asked).order_by("name"))


def _ask(row: WorkerProcess, actor: str, reason: str, request_id: str) -> None:
    asked = WorkerProcess.objects.filter(pk=row.pk, drain_requested_at=None).update(
        drain_requested_at=Now(), drain_requested_by=actor[:150]
    )
    transaction.on_commit(lambda: _tell(row.name))
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


def _tell(worker: str) -> None:
    try:
        broker.client().publish(keys.control(), orjson.dumps({"drain": worker}))
    except RedisError as error:
        log.warning("control.lost", drain=worker, error=str(error))
