"""The ready streams as the server has them, what server that is, and a repair by the sweeper's own duties."""

import datetime as dt
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings

from quotas import audit
from quotas.database import in_transaction
from runs import broker, keys, running
from runs.controls import queue_names
from workers.config import sweep_config
from workers.errors import RepairRunning
from workers.holder import LET_GO
from workers.sweeper import Pass, Sweeper

PENDING_PAGE = 100  # pending entries looked at for the oldest idle one
CONSUMERS = 20  # of a stream that are named
REPAIRS = ("relay", "parked", "close", "dead_entries")
REPAIR_PASSES = 10  # each a page of every duty
REPAIR_SECONDS = 30
UNREAD = "0-0"


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """One ready stream; of an extra one queue and priority are empty.

    Times are in seconds; None where the server does not say or there is nothing.
    """

    queue: str
    priority: str
    name: str  # the key
    length: int
    pending: int  # delivered and not acknowledged
    lag: int | None  # entries that no worker was given yet, as the server counts them (Redis 7, Valkey)
    oldest_wait: float | None  # of the first entry that no worker was given
    oldest_idle: float | None  # of the first PENDING_PAGE pending entries: since a worker last showed it has it
    consumers: int
    named: tuple[tuple[str, int, float], ...]  # consumers with something pending: name, how many, idle


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server behind the streams. Empty texts where it does not say."""

    kind: str
    version: str
    persistence: str
    last_write: str  # of the append-only file
    saved_at: dt.datetime | None
    memory: int  # bytes in use
    eviction: str

    @property
    def is_sound(self) -> bool:
        """Whether a restart keeps the streams and nothing is deleted for want of memory."""
        return "append-only file on" in self.persistence and self.last_write == "ok" and self.eviction == "noeviction"


def list_streams() -> list[StreamFacts]:
    """Return the facts of every ready stream, then of the extra ones: two round trips. Raises RedisError."""
    client = broker.client()
    names = [(queue, one, keys.ready(queue, one)) for queue in queue_names() for one in keys.PRIORITIES]
    names += [("", "", stream) for stream in settings.EXTRA_STREAMS]
    pipe = client.pipeline(transaction=False)
    for _, _, stream in names:
        pipe.xlen(stream)
        pipe.xinfo_groups(stream)
        pipe.xinfo_consumers(stream, keys.GROUP)
        pipe.xpending_range(stream, keys.GROUP, "-", "+", PENDING_PAGE)
    replies = pipe.execute(raise_on_error=False)
    found = [replies[at : at + 4] for at in range(0, len(replies), 4)]
    groups = [group_of(groups) for _, groups, _, _ in found]
    firsts = _first_unread(client, names, groups)
    seconds, micros = client.time()
    now = int(seconds) + int(micros) / 1e6
    return [
        _facts(name, facts, group, None if first is None else max(0.0, now - first / 1000))
        for name, facts, group, first in zip(names, found, groups, firsts, strict=True)
    ]


def group_of(groups: Any) -> Mapping[str, Any]:
    """Return what XINFO GROUPS says of the workers' group; nothing where there is none yet."""
    if isinstance(groups, Exception):
        return {}
    return next((group for group in groups if group["name"] == keys.GROUP.encode()), {})


def last_delivered(group: Mapping[str, Any]) -> str:
    """Return the id of the last entry that the group was given."""
    value = group.get("last-delivered-id", UNREAD)
    return value.decode() if isinstance(value, bytes) else str(value)


def _first_unread(
    client: "redis.Redis", names: Sequence[tuple[str, str, str]], groups: Sequence[Mapping[str, Any]]
) -> list[int | None]:
    """Return when the first entry of each stream that no worker was given came, in ms of the server's clock."""
    pipe = client.pipeline(transaction=False)
    for (_, _, stream), group in zip(names, groups, strict=True):
        pipe.xrange(stream, min="(" + last_delivered(group), count=1)
    found = pipe.execute(raise_on_error=False)
    return [
        None if isinstance(entries, Exception) or not entries else int(entries[0][0].split(b"-")[0])
        for entries in found
    ]


def _facts(
    name: tuple[str, str, str], facts: Sequence[Any], group: Mapping[str, Any], oldest_wait: float | None
) -> StreamFacts:
    length, _, consumers, pending = facts
    if isinstance(length, Exception):
        raise length
    consumers, pending = ([] if isinstance(one, Exception) else one for one in (consumers, pending))
    busy = sorted((one for one in consumers if one["pending"]), key=lambda one: -one["pending"])
    idle = [one["time_since_delivered"] for one in pending]
    queue, priority, stream = name
    lag = group.get("lag", 0 if not group and not length else None)
    return StreamFacts(
        queue=queue,
        priority=priority,
        name=stream,
        length=int(length),
        pending=int(group.get("pending", 0)),
        lag=None if lag is None else int(lag),
        oldest_wait=oldest_wait,
        oldest_idle=max(idle) / 1000 if idle else None,
        consumers=len(consumers),
        named=tuple((_text(one["name"]), int(one["pending"]), one["idle"] / 1000) for one in busy[:CONSUMERS]),
    )


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def list_waiting_sets() -> list[dict[str, Any]]:
    """Return the limits for which somebody waits, as `runs.running` has them, over all queues. Raises RedisError."""
    client = broker.client()
    return [row for queue in queue_names() for row in running.list_waiting(client, queue)]


def server_facts() -> ServerFacts:
    """Return what the server says of itself. Raises RedisError."""
    facts: dict[str, Any] = dict(broker.client().info())
    saved = int(facts.get("rdb_last_save_time") or 0)
    parts = [f"append-only file {'on' if facts.get('aof_enabled') else 'off'}"]
    if facts.get("rdb_last_bgsave_status"):
        parts.append(f"last snapshot {facts['rdb_last_bgsave_status']}")
    return ServerFacts(
        kind=str(facts.get("server_name") or "redis").capitalize(),
        version=str(facts.get("valkey_version") or facts.get("redis_version") or ""),
        persistence=", ".join(parts),
        last_write=str(facts.get("aof_last_write_status", "")),
        saved_at=dt.datetime.fromtimestamp(saved, dt.UTC) if saved else None,
        memory=int(facts.get("used_memory") or 0),
        eviction=str(facts.get("maxmemory_policy", "")),
    )


def repair_streams(*, actor: str, reason: str, request_id: str = "") -> Pass:
    """Run the sweeper's duties on the streams now, beside whoever sweeps: each is safe to run twice (protocol 10).

    Bounded; what is left comes with the sweeper's own passes. Raises RedisError, and RepairRunning while one runs.
    """
    client = broker.client()
    mine = secrets.token_hex(8)
    if not client.set(keys.repairing(), mine, nx=True, ex=REPAIR_SECONDS):
        raise RepairRunning
    try:
        in_transaction(
            lambda: audit.record(
                actor=actor,
                action="streams.repair",
                target_type="streams",
                target_id=settings.AGENTOPS_PREFIX,
                after={"duties": list(REPAIRS)},
                reason=reason,
                request_id=request_id,
            )
        )
        return Sweeper(sweep_config("console"), client, REPAIRS).repair(REPAIR_PASSES)
    finally:
        client.eval(LET_GO, 1, keys.repairing(), mine)  # not the next one's, where ours had ended by itself
