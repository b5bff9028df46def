"""What goes with a commit that takes a run from its owner, and what follows it: takeover, repair, time limits."""

from typing import Any

import redis
import structlog
from django.db import DatabaseError
from redis.exceptions import RedisError

from runs import announcing, scripts
from runs.services.moves import Left
from workers import dead_letters, metrics, stream

log = structlog.get_logger(__name__)


def buried(left: Left | None) -> Left | None:
    """Write the dead letters of a run that left for good, in the caller's transaction. Returns what it was given."""
    if left is not None:
        dead_letters.bury(left.failed)
    return left


def announce_left(client: "redis.Redis", left: Left) -> None:
    """Announce a run that left `running` without its owner: events, its entry's end, its successor, its dead letter."""
    run, moved = left.moved.run, [left.moved, *left.started]

    def fill(pipe: Any) -> None:
        announcing.append(pipe, moved)
        stream.ack_named(pipe, run.queue, run.pk, fence=run.fence)
        announcing.dispatch(pipe, left.started)

    try:
        replies = scripts.execute(client, fill)
        announcing.repair_logs(client, moved, replies)
        scripts.checked(replies)
    except (RedisError, DatabaseError) as error:
        metrics.count_error(error)
        log.warning("announce.postponed", run_id=str(run.pk), error=str(error))
    dead_letters.publish(client, left.failed)
