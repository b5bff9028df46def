"""The database against Redis: what one has and the other lacks, by bounded looks (protocol 1.2, 10).

Each is an everyday thing for a moment, while a commit and its announcement are on their way. So what changed a moment
ago is left out, and what is found is looked at twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import redis

from quotas.database import later
from runs import broker, keys, ready, running
from runs.controls import queue_names
from runs.models import Run
from runs.ready import Ticket, Undecodable
from runs.states import TERMINAL, RunState
from workers.streams import group_of, last_delivered

PAGE = 500  # rows of a queue, entries of a stream, members of a waiting set that are looked at
SAMPLES = 5
SETTLED_SECONDS = 5.0
# What is found: what it is, and who mends it without anybody's help.
KINDS = {
    "missing": ("Queued runs that no stream and no waiting set has", "the sweeper's relay adds them"),
    "ended": ("Entries of runs that have ended", "a worker or the sweeper removes them"),
    "outdated": ("Entries of an earlier turn of their run", "a worker removes them when they come up"),
    "unknown": ("Entries of runs that are not in the database", "a worker buries them as dead letters"),
    "unreadable": ("Entries that cannot be read", "a worker buries them as dead letters"),
    "twice": ("Runs in a stream and, at the same turn, elsewhere", "the second is removed when it comes up"),
    "stranger": ("Members of waiting sets whose run does not wait there", "the sweeper drops them"),
}
Found = dict[tuple[str, str], set[str]]  # (kind, queue) → ids
Rows = Mapping[UUID, Run]


@dataclass(frozen=True, slots=True)
class Difference:
    """One kind of difference in one queue. `count` is of what was looked at, not of everything there is."""

    kind: str
    queue: str
    count: int
    samples: tuple[str, ...]  # ids of runs, or of entries that name none

    @property
    def title(self) -> str:
        return KINDS[self.kind][0]

    @property
    def mended(self) -> str:
        return KINDS[self.kind][1]

    @property
    def are_runs(self) -> bool:
        """Whether the samples are runs that have a page."""
        return self.kind not in {"unknown", "unreadable", "stranger"}


def find_differences() -> list[Difference]:
    """Compare rows with streams and waiting sets. Raises RedisError."""
    client = broker.client()
    found = _look(client)
    if found:  # what only was on its way is gone at the second look
        again = _look(client)
        found = {key: ids & again.get(key, set()) for key, ids in found.items()}
    order = list(KINDS)
    return [
        Difference(kind, queue, len(ids), tuple(sorted(ids)[:SAMPLES]))
        for (kind, queue), ids in sorted(found.items(), key=lambda item: (item[0][1], order.index(item[0][0])))
        if ids
    ]


def _look(client: "redis.Redis") -> Found:
    found: Found = defaultdict(set)
    for queue in queue_names():
        _entries(client, queue, found)
        _strangers(client, queue, found)
        _missing(client, queue, found)
    return dict(found)


# -- entries without a row -------------------------------------------------------------------------------------------
def _entries(client: "redis.Redis", queue: str, found: Found) -> None:
    """Note what the first entries of each stream say that their rows do not."""
    pipe = client.pipeline(transaction=False)
    streams = keys.ready_streams(queue)
    for stream in streams:
        pipe.xrange(stream, count=PAGE)
    tickets: list[tuple[str, str, Ticket]] = []
    for stream, entries in zip(streams, pipe.execute(), strict=True):
        for entry_id, fields in entries:
            try:
                tickets.append((stream, entry_id.decode(), ready.parse(fields)))
            except Undecodable:
                found["unreadable", queue].add(f"{stream} {entry_id.decode()}")
    if not tickets:
        return
    rows = _rows(ticket.run_id for _, _, ticket in tickets)
    named: list[Any] = client.hmget(keys.index(queue), [str(ticket.run_id) for _, _, ticket in tickets])
    for (stream, entry_id, ticket), name in zip(tickets, named, strict=True):
        kind = _kind(rows.get(ticket.run_id), ticket, f"{ticket.fence}|{stream}|{entry_id}".encode() == name)
        if kind:
            found[kind, queue].add(str(ticket.run_id))


def _kind(row: Run | None, ticket: Ticket, is_named: bool) -> str:  # noqa: FBT001
    """Return what is wrong with an entry; "" where nothing is. `is_named`: the index says it is the run's own."""
    if row is None:
        return "unknown"
    if row.state in TERMINAL:
        return "ended" if _is_settled(row) else ""
    if row.state == RunState.QUEUED and row.fence == ticket.fence:
        return "" if is_named else "twice"
    if row.state == RunState.RUNNING and is_named:
        return ""
    return "outdated" if _is_settled(row) else ""


def _rows(ids: Iterable[UUID]) -> Rows:
    known = Run.objects.filter(pk__in=set(ids)).annotate(settled_before=later(-SETTLED_SECONDS))
    return {row.pk: row for row in known.only("state", "fence", "queue", "queued_at", "started_at", "finished_at")}


def _is_settled(row: Run) -> bool:
    """Whether the row's last change is long enough ago for Redis to have heard of it."""
    changed = max(at for at in (row.queued_at, row.started_at, row.finished_at) if at is not None)
    return bool(changed < row.settled_before)  # type: ignore[attr-defined]


# -- waiting sets ----------------------------------------------------------------------------------------------------
def _strangers(client: "redis.Redis", queue: str, found: Found) -> None:
    """Note members of waiting sets that the index does not call parked there, or whose run is not queued."""
    for limit in running.known_limits(client, queue):
        members: list[bytes] = client.zrange(keys.parked(queue, limit), 0, PAGE - 1)  # type: ignore[assignment]
        if not members:
            continue
        named: list[Any] = client.hmget(keys.index(queue), members)
        ids = {member: run_id for member in members if (run_id := _run_id(member)) is not None}
        rows = _rows(ids.values())
        for member, name in zip(members, named, strict=True):
            row = rows.get(ids[member]) if member in ids else None
            waits = row is not None and row.state == RunState.QUEUED
            is_his = waits and name == f"{row.fence if row else 0}|{ready.PARKED}{limit}".encode()
            if not is_his and (row is None or _is_settled(row)):
                found["stranger", queue].add(member.decode("utf-8", "replace"))


def _run_id(name: bytes) -> UUID | None:
    try:
        return UUID(name.decode("ascii"))
    except ValueError:
        return None


# -- rows without an entry -------------------------------------------------------------------------------------------
def _missing(client: "redis.Redis", queue: str, found: Found) -> None:
    """Note queued rows, those that wait longest first, that neither a deliverable entry nor a waiting set has."""
    waiting = Run.objects.filter(state=RunState.QUEUED, queue=queue, queued_at__lt=later(-SETTLED_SECONDS))
    rows = list(waiting.order_by("queued_at").values_list("pk", "fence")[:PAGE])
    if not rows:
        return
    named: list[Any] = client.hmget(keys.index(queue), [str(pk) for pk, _ in rows])
    delivered = _delivered(client, queue)
    pipe, asked = client.pipeline(transaction=False), list[tuple[UUID, bool]]()
    for (pk, fence), name in zip(rows, named, strict=True):
        at, _, place = (name or b"").decode().partition("|")
        if not at.isdigit() or int(at) < fence:
            found["missing", queue].add(str(pk))
        elif place.startswith(ready.PARKED):
            pipe.zscore(keys.parked(queue, place.removeprefix(ready.PARKED)), str(pk))
            asked.append((pk, False))
        else:
            stream, _, entry_id = place.rpartition("|")
            is_new = _number(entry_id) > _number(delivered.get(stream, "0-0"))
            if is_new:
                pipe.xrange(stream, entry_id, entry_id)
            else:  # delivered: it must be somebody's, or nobody gets it again
                pipe.xpending_range(stream, keys.GROUP, entry_id, entry_id, 1)
            asked.append((pk, True))
    for (pk, is_list), reply in zip(asked, pipe.execute(raise_on_error=False), strict=True):
        is_there = bool(reply) if is_list else reply is not None
        if isinstance(reply, Exception) or not is_there:
            found["missing", queue].add(str(pk))


def _delivered(client: "redis.Redis", queue: str) -> dict[str, str]:
    """Return {stream: id of the last entry that the group was given}."""
    pipe = client.pipeline(transaction=False)
    streams = keys.ready_streams(queue)
    for stream in streams:
        pipe.xinfo_groups(stream)
    replies = pipe.execute(raise_on_error=False)
    return {name: last_delivered(group_of(reply)) for name, reply in zip(streams, replies, strict=True)}


def _number(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("-")
    return (int(first), int(second)) if first.isdigit() and second.isdigit() else (0, 0)
