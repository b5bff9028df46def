"""The end of a log: read once, store compressed, then shorten the stream's life (protocol 3.4).

A log is closed when its row's `log_closed_at` is set; readers of a closed run read the archive only.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import redis
import structlog
from django.conf import settings
from django.db.models.functions import Now

from quotas.database import in_transaction
from runs import events, keys, lifecycle
from runs.events import Event
from runs.models import EventArchive, Run
from runs.states import TERMINAL

log = structlog.get_logger(__name__)
LEVEL = 6


@dataclass(frozen=True, slots=True)
class Stored:
    """An archived event with the `prev` a reader needs to see that nothing is missing before it."""

    event: Event
    prev: str


def pack(pairs: Iterable[tuple[Event, str]]) -> bytes:
    """Return the archive body of (event, prev) pairs: zlib over JSON lines."""
    lines = (
        orjson.dumps({"id": e["id"], "at": e["at"], "kind": e["kind"], "data": e["data"], "prev": prev})
        for e, prev in pairs
    )
    return zlib.compress(b"\n".join(lines), LEVEL)


def unpack(archive: EventArchive) -> list[Stored]:
    """Return the events of an archive, in order."""
    run = str(archive.run_id)
    stored = []
    for line in zlib.decompress(bytes(archive.body)).split(b"\n"):
        if line:
            raw: dict[str, Any] = orjson.loads(line)
            event = Event(id=raw["id"], run=run, at=raw["at"], kind=raw["kind"], data=raw["data"])
            stored.append(Stored(event, raw["prev"]))
    return stored


def find(run_id: UUID) -> EventArchive | None:
    """Return the archive of a run whose log is closed."""
    return EventArchive.objects.filter(run_id=run_id).first()


def close_logs(client: "redis.Redis", ended: Sequence[tuple[UUID, int]]) -> list[UUID]:
    """Close the logs of ended runs, given as (run id, terminal fence). Returns the runs whose log is closed now.

    Two round trips and one transaction for all of them; a log that lacks its terminal event is repaired first.
    """
    read = _read(client, ended)
    complete: dict[UUID, list[tuple[Event, str]]] = {}
    lacking = []
    for (run_id, fence), pairs in read.items():
        if pairs and pairs[-1][0]["id"] == events.event_id(fence, 1):
            complete[run_id] = pairs
        else:
            lacking.append((run_id, fence))
    if lacking:
        _complete(client, lacking)
        for (run_id, fence), pairs in _read(client, lacking).items():
            if pairs and pairs[-1][0]["id"] == events.event_id(fence, 1):
                complete[run_id] = pairs
    if complete:
        _store(complete)
        _let_go(client, list(complete))
    return list(complete)


def _read(client: "redis.Redis", ended: Sequence[tuple[UUID, int]]) -> dict[tuple[UUID, int], list[tuple[Event, str]]]:
    pipe = client.pipeline(transaction=False)
    for run_id, _ in ended:
        pipe.xrange(keys.log(run_id))
    replies = pipe.execute(raise_on_error=False)
    # A key that is no stream holds back no other run: its log counts as empty, and stays open.
    return {
        pair: [] if isinstance(reply, Exception) else events.bodies(pair[0], reply)
        for pair, reply in zip(ended, replies, strict=True)
    }


def _complete(client: "redis.Redis", lacking: Sequence[tuple[UUID, int]]) -> None:
    """Append the terminal events that logs lack: all at once, or one by one when the server refuses one of them."""
    try:
        lifecycle.announce(client, lifecycle.transitions_at(lacking))
    except redis.ResponseError:
        for pair in lacking:
            try:
                lifecycle.announce(client, lifecycle.transitions_at([pair]))
            except redis.ResponseError as error:
                log.warning("log.refused", run_id=str(pair[0]), error=str(error))


def _store(complete: dict[UUID, list[tuple[Event, str]]]) -> None:
    rows = [
        EventArchive(run_id=run_id, body=pack(pairs), event_count=len(pairs), last_id=pairs[-1][0]["id"])
        for run_id, pairs in complete.items()
    ]

    def work() -> None:
        # The archive first: whoever sees the mark must find it. A second closer read the same log: ignored.
        EventArchive.objects.bulk_create(rows, ignore_conflicts=True)
        Run.objects.filter(pk__in=list(complete), log_closed_at=None, state__in=[str(s) for s in TERMINAL]).update(
            log_closed_at=Now()
        )

    in_transaction(work)


def _let_go(client: "redis.Redis", run_ids: Sequence[UUID]) -> None:
    pipe = client.pipeline(transaction=False)
    for run_id in run_ids:
        pipe.expire(keys.log(run_id), settings.EVENT_CLOSED_TTL_SECONDS)
    pipe.execute()
