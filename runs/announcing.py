"""Announcing what a commit did: lifecycle events and, for runs that are queued now, their dispatch (protocol 4.6).

One round trip. Redis being away is not an error here: the rows are their own outbox, and the sweeper brings the rest.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import redis
import structlog
from django.db import DatabaseError
from redis.exceptions import RedisError

from runs import broker, events, lifecycle, metrics, ready, scripts
from runs.events import Answer
from runs.models import Run, Transition
from runs.states import RunState

log = structlog.get_logger(__name__)


class Announced(Protocol):
    """A run after its move, and the move's transition."""

    @property
    def run(self) -> Run: ...

    @property
    def row(self) -> Transition: ...


def append(pipe: Any, moved: Sequence[Announced]) -> None:
    """Queue the lifecycle events on a pipeline: one reply each."""
    for one in moved:
        events.call(pipe, lifecycle.append_of(one.row, run=one.run))


def dispatch(pipe: Any, moved: Sequence[Announced]) -> None:
    """Queue the dispatch of those that are queued now."""
    for one in moved:
        if one.run.state == RunState.QUEUED:
            ready.dispatch(pipe, one.run)


def withdraw(pipe: Any, moved: Sequence[Announced]) -> None:
    """Queue the removal of those that have ended from the waiting sets they may be parked in."""
    for one in moved:
        if one.run.is_terminal:
            ready.withdraw(pipe, one.run)


def repair_logs(client: "redis.Redis", moved: Sequence[Announced], replies: Sequence[Any]) -> None:
    """Repair the logs whose appends were answered by GAP or NOKEY. Raises the replies that are errors."""
    for one, reply in zip(moved, replies, strict=False):
        answer, last = events.answer_of(reply)
        if answer in {Answer.GAP, Answer.NOKEY}:
            lifecycle.repair(client, one.row.run_id, one.row.fence, last)


def announce_moved(moved: Sequence[Announced], client: "redis.Redis | None" = None) -> None:
    """Announce moves that somebody who is not the runs' owner committed."""
    if not moved:
        return
    client = client or broker.client()

    def fill(pipe: Any) -> None:
        append(pipe, moved)
        dispatch(pipe, moved)
        withdraw(pipe, moved)

    try:
        replies = scripts.execute(client, fill)
        repair_logs(client, moved, replies)
        scripts.checked(replies[len(moved) :])
    except (RedisError, DatabaseError) as error:
        metrics.count_error(error)
        log.warning("announce.postponed", runs=[str(one.run.pk) for one in moved[:5]], error=str(error))
