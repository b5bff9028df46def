"""The runs this process owns right now, shared by the loop, the beat's thread and the control listener."""

import threading
import time
from dataclasses import dataclass, field
from uuid import UUID

from runs.models import Run
from workers.context import Context
from workers.event_buffer import EventBuffer
from workers.executor import Execution
from workers.stream import Entry


@dataclass(slots=True)
class OwnedRun:
    """A claimed run: its row as claimed, its entry, its handler, and when its lease was last renewed (monotonic)."""

    run: Run
    token: str
    entry: Entry
    ctx: Context
    buffer: EventBuffer
    execution: Execution
    renewed_at: float
    limits: tuple[str, ...] = ()  # on runs at work, of which it has a place
    fenced: bool = False  # somebody else moved the row: append nothing, finalise in vain
    ending: bool = False  # its outcome is with the finaliser
    stored_usage: tuple[int, int] = field(default=(0, 0))  # what the beat wrote last: cost, and a hash of the rest

    @property
    def run_id(self) -> UUID:
        return self.run.pk

    @property
    def fence(self) -> int:
        return self.run.fence


class OwnedRuns:
    """The set of owned runs. Thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[UUID, OwnedRun] = {}
        self._lock = threading.Lock()

    def add(self, owned: OwnedRun) -> None:
        with self._lock:
            self._runs[owned.run_id] = owned

    def remove(self, owned: OwnedRun) -> None:
        with self._lock:
            if self._runs.get(owned.run_id) is owned:
                del self._runs[owned.run_id]

    def find(self, run_id: UUID) -> OwnedRun | None:
        with self._lock:
            return self._runs.get(run_id)

    def all(self) -> list[OwnedRun]:
        with self._lock:
            return list(self._runs.values())

    def silent(self) -> list[OwnedRun]:
        """Return the runs whose handler emitted nothing for longer than their limit of no progress."""
        return [
            owned
            for owned in self.all()
            if owned.run.no_progress_seconds is not None and owned.buffer.silent_for() > owned.run.no_progress_seconds
        ]

    def overdue(self, seconds: float) -> list[OwnedRun]:
        """Return the runs whose lease was not renewed for so long, on this process's monotonic clock."""
        now = time.monotonic()
        return [owned for owned in self.all() if now - owned.renewed_at > seconds]
