"""The worker's sign of life: a row for people and pages, a key that expires for everybody else."""

import os
import socket
import threading
import time

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError
from django.db.models.functions import Now
from redis.exceptions import RedisError

from runs import keys
from workers import metrics, processes
from workers.config import WorkerConfig
from workers.models import WorkerProcess

log = structlog.get_logger(__name__)


def alive_seconds() -> float:
    """Return how old a heartbeat may be: three of them, or two lease beats where those are further apart."""
    return max(3 * settings.HEARTBEAT_SECONDS, 2 * settings.LEASE_SECONDS / 3)


class Heartbeat:
    """Registers a worker process, beats, and signs it off. Called from the lease beat's thread."""

    def __init__(self, config: WorkerConfig, client: "redis.Redis") -> None:
        self._config = config
        self._client = client
        self._next = 0.0
        self._is_over = False
        self._writing = threading.Lock()  # the beat's thread, and the one that signs off

    def register(self, *, port: int) -> None:
        """Insert the row of this process."""
        config, me = self._config, processes.identity()
        WorkerProcess.objects.create(
            name=config.consumer,
            host=socket.gethostname()[:200],
            pid=os.getpid(),
            boot_id=me.boot_id,
            pid_namespace=me.pid_namespace,
            pid_started=me.started,
            version=settings.AGENTOPS_RELEASE[:40],
            queues=list(config.queues),
            agents=sorted(config.agents),
            concurrency=config.concurrency,
            port=port,
            heartbeat_at=Now(),
        )
        self.beat_if_due(running=0)

    def beat_if_due(self, *, running: int) -> bool:
        """Beat when the interval has passed; returns whether it had. A store that is away is met at the next beat."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._config.heartbeat
        try:
            self._write_beat(running)
            self._client.set(keys.heartbeat(self._config.consumer), running, px=round(alive_seconds() * 1000))
        except DatabaseError as error:
            metrics.database_errors.inc()
            log.warning("heartbeat.postponed", error=str(error))
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("heartbeat.redis_away", error=str(error))
        return True

    def _write_beat(self, running: int) -> None:
        """Write the beat. A process that was silent for so long that it was taken for dead is back with it."""
        with self._writing:
            if not self._is_over:
                rows = WorkerProcess.objects.filter(name=self._config.consumer)
                memory = processes.resident_memory()
                rows.update(heartbeat_at=Now(), running_count=running, memory_bytes=memory, stopped_at=None)

    def is_asked_to_drain(self) -> bool:
        """Whether an operator asked this process to drain (its row says so)."""
        asked = WorkerProcess.objects.filter(name=self._config.consumer, drain_requested_at__isnull=False)
        return bool(asked.exists())

    def draining(self, for_good: bool) -> None:  # noqa: FBT001  passed on by position
        """Note that the process drains; `for_good`: nobody can recall it.

        Not where the drain was recalled meanwhile: nobody would take the note back.
        """
        mine = WorkerProcess.objects.filter(name=self._config.consumer)
        asked = mine if for_good else mine.filter(drain_requested_at__isnull=False)
        asked.filter(draining_since=None).update(draining_since=Now())
        if for_good:
            mine.filter(leaving_at=None).update(leaving_at=Now())

    def leave(self) -> bool:
        """Note that it leaves, if an operator still asks for it. Returns whether; if not, the drain was recalled.

        A row that somebody deleted recalls nothing.
        """
        mine = WorkerProcess.objects.filter(name=self._config.consumer)
        return bool(mine.filter(drain_requested_at__isnull=False).update(leaving_at=Now())) or not mine.exists()

    def sign_off(self) -> None:
        """Mark the process as stopped in an orderly way."""
        with self._writing:
            self._is_over = True
            WorkerProcess.objects.filter(name=self._config.consumer).update(stopped_at=Now(), running_count=0)
        self._client.delete(keys.heartbeat(self._config.consumer))
