"""The producing side of the ready streams: wire format and dispatch (protocol 4.6, 5). Workers consume them."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import redis

from runs import keys, scripts
from runs.models import Run

LUA = Path(__file__).parent / "lua"
PARKING = LUA / "parking.lua"  # the library of scripts that take, free or pass on places of limits
DISPATCH = scripts.load(LUA / "dispatch.lua", PARKING)
WITHDRAW = scripts.load(LUA / "withdraw.lua", PARKING)
SUPERSEDE = scripts.load(LUA / "supersede.lua", PARKING)
PARKED = "parked:"
MESSAGE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a ready entry carries: no payload."""

    run_id: UUID
    fence: int
    version: int
    traceparent: str = ""


class Undecodable(ValueError):
    """The entry's fields are not a ticket."""


def parse(fields: dict[bytes, bytes]) -> Ticket:
    """Return the ticket of an entry's fields; unknown further fields are ignored. Raises Undecodable."""
    try:
        return Ticket(
            run_id=UUID(fields[b"run_id"].decode("ascii")),
            fence=int(fields[b"fence"]),
            version=int(fields.get(b"v", b"1")),
            traceparent=fields.get(b"traceparent", b"").decode("ascii"),
        )
    except (KeyError, ValueError) as error:
        raise Undecodable(str(error)) from error


def dispatch(pipe: "redis.client.Pipeline", run: Run) -> None:
    """Queue the dispatch of a queued run on a pipeline made by `scripts.execute`. Repeating it is always safe."""
    DISPATCH.call(
        pipe,
        [keys.index(run.queue), keys.wake(run.queue), keys.ready(run.queue, run.priority)],
        [str(run.pk), run.fence, keys.GROUP, MESSAGE_VERSION, run.traceparent],
    )


def withdraw(pipe: "redis.client.Pipeline", run: Run) -> None:
    """Queue the removal of an ended run from the waiting set it may be parked in."""
    WITHDRAW.call(pipe, [keys.index(run.queue)], [str(run.pk)])


def supersede(pipe: "redis.client.Pipeline", run: Run) -> None:
    """Queue the removal of a queued run's entry of a lower fence, wherever it is: its dispatch follows."""
    SUPERSEDE.call(pipe, [keys.index(run.queue)], [str(run.pk), run.fence, keys.GROUP])


def dispatch_all(client: "redis.Redis", runs: Iterable[Run]) -> int:
    """Dispatch queued runs in one round trip. Returns how many had to be added."""
    rows = list(runs)

    def fill(pipe: "redis.client.Pipeline") -> None:
        for run in rows:
            dispatch(pipe, run)

    return sum(int(reply[0]) for reply in scripts.checked(scripts.execute(client, fill)))


def named_entry(client: "redis.Redis", run: Run) -> tuple[str, str] | None:
    """Return (stream, entry id) the index names for a run, or None: it names none, or the run is parked."""
    named = client.hget(keys.index(run.queue), str(run.pk))
    if not isinstance(named, bytes):
        return None
    _, _, place = named.decode().partition("|")
    if place.startswith(PARKED):
        return None
    stream, _, entry_id = place.rpartition("|")
    return stream, entry_id


def depths(client: "redis.Redis", queue: str) -> dict[str, dict[str, int]]:
    """Return {priority: {length, pending, oldest_ms}} of a queue's ready streams, in one round trip."""
    pipe = client.pipeline(transaction=False)
    for stream in keys.ready_streams(queue):
        pipe.xlen(stream)
        pipe.xrange(stream, count=1)
        pipe.xpending(stream, keys.GROUP)
    replies = pipe.execute(raise_on_error=False)
    result = {}
    for priority, at in zip(keys.PRIORITIES, range(0, len(replies), 3), strict=True):
        length, first, pending = replies[at : at + 3]
        if isinstance(length, Exception):
            raise length
        waiting_since = 0 if not first else int(first[0][0].split(b"-")[0])
        in_flight = 0 if isinstance(pending, Exception) else int(pending["pending"])
        result[priority] = {"length": int(length), "pending": in_flight, "oldest_ms": waiting_since}
    return result
