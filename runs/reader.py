"""Reading a run's events after a cursor, wherever they are: archive, stream, archive again, else the rows (3.4).

Used by paged JSON, by `watch_run`, and by the sockets for everything that is older than their live tail.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from redis.exceptions import RedisError

from runs import archive, broker, events, keys, lifecycle
from runs.errors import InvalidCursor, NoSuchRun
from runs.events import Event
from runs.models import Run, Transition
from runs.states import TERMINAL, TERMINAL_EVENTS

PAGE = 500


@dataclass(frozen=True, slots=True)
class Page:
    """Events after a cursor. `next` is the cursor after them; `ended` says that the terminal event was given out."""

    events: list[Event] = field(default_factory=list)
    next: str = ""
    ended: bool = False


class Follower:
    """Gives out each event once and in order, and says `gap` where the log does not continue (protocol 3.3)."""

    def __init__(self, run_id: UUID, cursor: str) -> None:
        self.run_id = run_id
        self.cursor = cursor
        self.ended = False

    def accept(self, pairs: Iterable[tuple[Event, str]], run: Run | None = None) -> list[Event]:
        """Return what a reader at the cursor gets of these (event, prev) pairs, and move the cursor on."""
        out: list[Event] = []
        for event, prev in pairs:
            if self.ended or events.split_id(event["id"]) <= events.split_id(self.cursor):
                continue
            if not events.follows(self.cursor, event, prev):
                out.append(gap(self.run_id, self.cursor, event["id"], run))
            out.append(event)
            self.cursor = event["id"]
            self.ended = event["kind"] in TERMINAL_EVENTS
        return out


def check_cursor(cursor: str) -> str:
    """Return the cursor if it is an event id or empty; raises InvalidCursor."""
    try:
        events.split_id(cursor)
    except ValueError:
        raise InvalidCursor(cursor=cursor[:60]) from None
    return cursor


def gap(run_id: UUID, after: str, before: str, run: Run | None) -> Event:
    """Return the event that says that events between two ids are not kept any more, with the run as it is now."""
    row = run or Run.objects.defer("input_json", "result_json").filter(pk=run_id).first()
    snapshot: dict[str, Any] = {} if row is None else snapshot_of(row)
    at = "" if row is None else (row.finished_at or row.started_at or row.queued_at).isoformat()
    return {
        "id": "",
        "run": str(run_id),
        "at": at,
        "kind": "gap",
        "data": {"after": after, "before": before, **snapshot},
    }


def snapshot_of(run: Run) -> dict[str, Any]:
    """Return what a viewer who missed events needs to show the run as it is."""
    return {"state": run.state, "fence": run.fence, "attempt": run.attempt, "cost": run.cost, "usage": run.usage}


def read_events(run_id: UUID, after: str = "", limit: int = PAGE) -> Page:
    """Return up to `limit` events after the cursor. Raises NoSuchRun, InvalidCursor. Redis may be away."""
    follower = Follower(run_id, check_cursor(after))
    pairs = _stored(run_id, follower.cursor, limit)
    given = follower.accept(pairs[:limit])
    return Page(given, follower.cursor, follower.ended or _is_over(run_id, follower, exhausted=not pairs))


def _stored(run_id: UUID, after: str, limit: int) -> list[tuple[Event, str]]:
    kept = _from_archive(run_id)
    if kept is None:
        kept = _from_stream(run_id, after, limit)
    if kept is None:
        kept = _from_archive(run_id)  # closed between the two looks
    if kept is None:
        kept = _from_rows(run_id)
    floor = events.split_id(after)
    return [pair for pair in kept if events.split_id(pair[0]["id"]) > floor]


def _from_archive(run_id: UUID) -> list[tuple[Event, str]] | None:
    found = archive.find(run_id)
    return None if found is None else [(stored.event, stored.prev) for stored in archive.unpack(found)]


def _from_stream(run_id: UUID, after: str, limit: int) -> list[tuple[Event, str]] | None:
    """Return the events after the cursor, or None when there is no stream (or no Redis)."""
    try:
        pipe = broker.client().pipeline(transaction=False)
        pipe.exists(keys.log(run_id))
        pipe.xrange(keys.log(run_id), min=f"({after}" if after else "-", count=limit)
        exists, entries = pipe.execute()
    except RedisError:
        return None
    return events.bodies(run_id, entries) if exists else None


def _from_rows(run_id: UUID) -> list[tuple[Event, str]]:
    """Return the lifecycle from the transition rows: all there is while no attempt has begun, else what is left."""
    rows = list(Transition.objects.filter(run_id=run_id).order_by("fence"))
    if not rows:
        raise NoSuchRun(run=str(run_id))
    return [(events.decode(run_id, line.id, line.body), line.prev) for line in lifecycle.lines_of(rows)]


def _is_over(run_id: UUID, follower: Follower, *, exhausted: bool) -> bool:
    """Whether a cursor with nothing after it stands at the end of an ended run."""
    if not exhausted:
        return False
    row = Run.objects.filter(pk=run_id).values_list("state", "fence").first()
    if row is None:
        raise NoSuchRun(run=str(run_id))
    return row[0] in TERMINAL and events.split_id(follower.cursor) >= (row[1], 1)
