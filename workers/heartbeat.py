"""The worker's sign of life: a row for people and pages, a key that expires for everybody else."""

import os
import socket
import time

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError
from django.db.models.functions import Now
from redis.exceptions import RedisError

from runs import keys
from workers import metrics
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

    def register(self, *, port: int) -> None:
        """Insert the row of this process."""
        config = self._config
        WorkerProcess.objects.create(
            name=config.consumer,
            host=socket.gethostname()[:200],
            pid=os.getpid(),
            version=settings.AGENTOPS_VERSION,
            queues=list(config.queues),
            agents=sorted(config.agents),
            concurrency=config.concurrency,
            port=port,
            heartbeat_at=Now(),
        )
        self.beat_if_due(running=0)

    def beat_if_due(self, *, running: int) -> None:
        """Beat when the interval has passed. A store that is away is met again at the next beat."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._config.heartbeat
        try:
            WorkerProcess.objects.filter(name=self._config.consumer).update(heartbeat_at=Now(), running_count=running)
            self._client.set(keys.heartbeat(self._config.consumer), running, px=round(alive_seconds() * 1000))
        except DatabaseError as error:
            metrics.database_errors.inc()
            log.warning("heartbeat.postponed", error=str(error))
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("heartbeat.redis_away", error=str(error))

    def draining(self) -> None:
        WorkerProcess.objects.filter(name=self._config.consumer, draining_since=None).update(draining_since=Now())

    def sign_off(self) -> None:
        """Mark the process as stopped in an orderly way."""
        WorkerProcess.objects.filter(name=self._config.consumer).update(stopped_at=Now(), running_count=0)
        self._client.delete(keys.heartbeat(self._config.consumer))
