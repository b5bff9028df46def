"""What operators hold back: queues that are paused, and new runs while there is maintenance (protocol 6.3.1).

Both are rows of the database, so they outlive restarts, deploys and a Redis that lost everything. Every process reads
them again after at most FRESH_SECONDS; a claim reads the pause in its own transaction, whatever was remembered. A claim
that had read before the pause was committed is one that came before it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from django.conf import settings
from django.db import DatabaseError, transaction
from django.db.models import Exists, OuterRef

from quotas import audit
from quotas.database import in_transaction
from runs.agents import list_agents
from runs.errors import InvalidRequest, NoSuchQueue, UnderMaintenance
from runs.models import Maintenance, QueuePause, Run

T = TypeVar("T")
FRESH_SECONDS = 1.0
TEXT_MAX = 500
RETRY_AFTER_SECONDS, RETRY_AFTER_MAX = 60, 86_400
# Read with a run's row, so that a claim knows of a pause at no statement more.
PAUSED = {"queue_paused": Exists(QueuePause.objects.filter(queue=OuterRef("queue")))}


class _Remembered(Generic[T]):
    """What one read of the database said, for FRESH_SECONDS. Threads that ask at once share a read."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._known: tuple[float, T] | None = None

    def get(self, *, or_last: bool = False) -> T:
        """Return what is known. With `or_last`: while the database is away, what it said last, if it ever did."""
        with self._lock:
            asked = time.monotonic()
            if self._known is None or asked - self._known[0] > FRESH_SECONDS:
                try:
                    self._known = (asked, self._read())
                except DatabaseError:
                    if self._known is None or not or_last:
                        raise
            return self._known[1]

    def forget(self) -> None:
        with self._lock:
            self._known = None


_pauses = _Remembered(lambda: {row.queue: row for row in QueuePause.objects.order_by("queue")})
_maintenance = _Remembered(Maintenance.objects.first)


def forget() -> None:
    """Have the next question read the database."""
    _pauses.forget()
    _maintenance.forget()


def queue_names() -> list[str]:
    """Return the queues of the settings and of all known agents."""
    return list(dict.fromkeys([*settings.QUEUES, *(spec.queue for spec in list_agents())]))


# -- pauses ------------------------------------------------------------------------------------------------------------
def paused_queues() -> dict[str, QueuePause]:
    """Return {queue: its pause}, at most FRESH_SECONDS old; older only while the database is away.

    Raises DatabaseError in a process that never got an answer: who does not know of the pauses must not take.
    """
    return _pauses.get(or_last=True)


def is_held(run: Run) -> bool:
    """Whether the queue of a run that was read with PAUSED is paused."""
    return bool(run.queue_paused)  # type: ignore[attr-defined]


def pause_facts(row: QueuePause) -> dict[str, Any]:
    """Return {queue, reason, paused_by, paused_at}."""
    return {name: getattr(row, name) for name in ("queue", "reason", "paused_by", "paused_at")}


def is_paused(queue: str) -> bool:
    """Whether a queue is paused, asked of the database now."""
    return QueuePause.objects.filter(queue=queue).exists()


def pause_queue(*, queue: str, actor: str, reason: str, request_id: str = "") -> tuple[QueuePause, bool]:
    """Pause a queue: no worker takes from it, what runs goes on, what is submitted waits.

    Returns the pause and whether it is new: one that is there stays as it is. Raises NoSuchQueue, InvalidRequest.
    """
    reason = _text("reason", reason)
    line = {"target_type": "queue", "target_id": queue, "actor": actor, "reason": reason, "request_id": request_id}
    _check_known(queue)

    def work() -> tuple[QueuePause, bool]:
        values = {"reason": reason, "paused_by": actor[:150]}
        row, made = QueuePause.objects.get_or_create(queue=queue, defaults=values)
        if made:
            _record(action="queue.pause", after={"paused": True}, **line)
        return row, made

    return in_transaction(work)


def _check_known(queue: str) -> None:
    """Raise NoSuchQueue for a queue that is neither of the settings nor of a known agent."""
    if queue not in queue_names():
        raise NoSuchQueue(queue=queue[:60], known=", ".join(queue_names()))


def resume_queue(*, queue: str, actor: str, reason: str = "", request_id: str = "") -> QueuePause | None:
    """End a pause. Returns what it was, None where the queue was not paused (any more).

    Raises NoSuchQueue for a name that is neither paused nor known: the pause of a queue may outlive its agent.
    """
    line = {"target_type": "queue", "target_id": queue, "actor": actor, "reason": reason, "request_id": request_id}

    def work() -> QueuePause | None:
        row = QueuePause.objects.select_for_update().filter(queue=queue).first()
        if row is None:
            _check_known(queue)
            return None
        before = {"paused": True, "reason": row.reason, "paused_by": row.paused_by, "since": row.paused_at.isoformat()}
        row.delete()
        _record(action="queue.resume", before=before, after={"paused": False}, **line)
        return row

    return in_transaction(work)


# -- maintenance -------------------------------------------------------------------------------------------------------
def maintenance() -> Maintenance | None:
    """Return the maintenance that is on, at most FRESH_SECONDS old. Raises DatabaseError."""
    return _maintenance.get()


def maintenance_facts(row: Maintenance) -> dict[str, Any]:
    """Return {message, retry_after_seconds, set_by, set_at}."""
    return {name: getattr(row, name) for name in ("message", "retry_after_seconds", "set_by", "set_at")}


def check_maintenance() -> None:
    """Raise UnderMaintenance while no new runs are accepted."""
    row = maintenance()
    if row is not None:
        raise UnderMaintenance(operator_message=row.message, retry_after=row.retry_after_seconds)


def begin_maintenance(
    *, message: str, actor: str, retry_after_seconds: int = RETRY_AFTER_SECONDS, request_id: str = ""
) -> Maintenance:
    """Refuse new runs from now on, with a message for clients. Said again, it changes message and seconds.

    Raises InvalidRequest.
    """
    message = _text("message", message)
    if not 1 <= retry_after_seconds <= RETRY_AFTER_MAX:
        raise InvalidRequest(field="retry_after", problem=f"1 to {RETRY_AFTER_MAX} seconds")
    after = {"message": message, "retry_after_seconds": retry_after_seconds}
    line = {"target_type": "maintenance", "target_id": 1, "actor": actor, "request_id": request_id}

    def work() -> Maintenance:
        old = Maintenance.objects.select_for_update().first()
        before = None if old is None else {name: getattr(old, name) for name in after}
        if old is not None and before == after:
            return old
        values = {**after, "set_by": actor[:150]}
        row, _ = Maintenance.objects.update_or_create(pk=1, defaults=values)
        _record(action="maintenance.on", before=before, after=after, reason=message, **line)
        return row

    return in_transaction(work)


def end_maintenance(*, actor: str, reason: str = "", request_id: str = "") -> Maintenance | None:
    """Accept new runs again. Returns what was on, None where nothing was (any more)."""
    line = {"target_type": "maintenance", "target_id": 1, "actor": actor, "reason": reason, "request_id": request_id}

    def work() -> Maintenance | None:
        row = Maintenance.objects.select_for_update().first()
        if row is None:
            return None
        Maintenance.objects.filter(pk=row.pk).delete()
        before = {"message": row.message, "retry_after_seconds": row.retry_after_seconds}
        _record(action="maintenance.off", before=before, **line)
        return row

    return in_transaction(work)


def _text(field: str, typed: str) -> str:
    """Return a text that people read; raises InvalidRequest for an empty one."""
    text = " ".join("".join(c if c.isprintable() else " " for c in typed).split())
    if not 0 < len(text) <= TEXT_MAX:
        raise InvalidRequest(field=field, problem=f"1 to {TEXT_MAX} printable characters are needed")
    return text


def _record(**line: Any) -> None:
    """Write the audit line, and have this process know of the change: in this transaction, and after its commit."""
    audit.record(**line)
    forget()
    transaction.on_commit(forget)
