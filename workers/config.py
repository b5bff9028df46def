"""A worker's configuration: frozen, validated once at start, passed in."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from typing import Protocol

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from runs.agents import list_agents

PORT_MAX = 65535
NAME_MAX = 60


class SweeperConfig(Protocol):
    """What a sweeper has to be told: who it is, which queues, and the seconds of a lease and between two passes."""

    @property
    def consumer(self) -> str: ...
    @property
    def queues(self) -> tuple[str, ...]: ...
    @property
    def lease(self) -> float: ...
    @property
    def sweep(self) -> float: ...


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """A sweeper's configuration where it is no part of a worker."""

    consumer: str
    queues: tuple[str, ...]
    lease: float
    sweep: float


def sweep_config(who: str) -> SweepConfig:
    """Return the configuration of a sweeper by the settings; its name is unique per process start."""
    name = f"{who}-{socket.gethostname()[:NAME_MAX]}-{os.getpid()}-{secrets.token_hex(4)}"
    return SweepConfig(name, tuple(settings.QUEUES), settings.LEASE_SECONDS, settings.SWEEP_SECONDS)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Everything a worker process is told. Times are in seconds. Raises ImproperlyConfigured."""

    name: str
    queues: tuple[str, ...]
    agents: frozenset[str]
    concurrency: int
    lease: float
    wake_wait: float
    sweep: float
    heartbeat: float
    drain_grace: float
    handler_grace: float
    global_slots: int
    extra_streams: tuple[str, ...]
    port: int
    consumer: str = field(default="")

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not self.name or len(self.name) > NAME_MAX or "/" in self.name:
            raise ImproperlyConfigured(f"--name {self.name!r}: 1 to {NAME_MAX} printable characters without '/'.")
        if not self.queues:
            raise ImproperlyConfigured("--queues names no queue.")
        if not 1 <= self.concurrency <= 1000:
            raise ImproperlyConfigured(f"--concurrency must be 1 to 1000, not {self.concurrency}.")
        if not 0 <= self.port <= PORT_MAX:
            raise ImproperlyConfigured(f"--port must be 0 to {PORT_MAX}, not {self.port}.")
        if not self.agents:
            raise ImproperlyConfigured("No agent is known: check --agents and AGENTOPS_APPS.")
        if not self.consumer:
            # Unique per process start: a restarted worker of the same name must not look like its predecessor.
            object.__setattr__(self, "consumer", f"{self.name}-{os.getpid()}-{secrets.token_hex(4)}")

    @property
    def beat(self) -> float:
        """The seconds between two renewals of the leases."""
        return self.lease / 3

    @property
    def longest_time_limit(self) -> float:
        """The longest time limit of an attempt among the agents this worker takes, in seconds."""
        return max((spec.time_limit_seconds for spec in list_agents() if spec.name in self.agents), default=0.0)

    @property
    def stale(self) -> float:
        """The idle seconds after which a pending entry is looked at by somebody else."""
        return self.lease * 2

    @property
    def lost_after(self) -> float:
        """The seconds without an acknowledged renewal after which a worker stops its own runs (protocol 7.4)."""
        return self.lease - self.lease / 6


def from_options(
    *,
    name: str = "",
    queues: list[str] | None = None,
    agents: list[str] | None = None,
    concurrency: int | None = None,
    port: int | None = None,
) -> WorkerConfig:
    """Return the configuration of the command's options over the settings."""
    known = {spec.name for spec in list_agents()}
    unknown = sorted(set(agents or ()) - known)
    if unknown:
        raise ImproperlyConfigured(f"--agents names {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
    return WorkerConfig(
        name=name or socket.gethostname()[:NAME_MAX].replace("/", "-"),
        queues=tuple(queues or settings.QUEUES),
        agents=frozenset(agents or known),
        concurrency=settings.WORKER_CONCURRENCY if concurrency is None else concurrency,
        lease=settings.LEASE_SECONDS,
        wake_wait=settings.WAKE_WAIT_SECONDS,
        sweep=settings.SWEEP_SECONDS,
        heartbeat=settings.HEARTBEAT_SECONDS,
        drain_grace=settings.DRAIN_GRACE_SECONDS,
        handler_grace=settings.HANDLER_GRACE_SECONDS,
        global_slots=settings.GLOBAL_SLOTS,
        extra_streams=tuple(settings.EXTRA_STREAMS),
        port=settings.WORKER_PORT if port is None else port,
    )
