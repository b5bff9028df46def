"""What goes with a commit that takes a run from its owner, and what follows it: takeover, repair, time limits."""

import redis
import structlog
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
    run = left.moved.run
    announcing.announce_moved([left.moved, *left.started], client)
    try:
        scripts.checked(
            scripts.execute(client, lambda pipe: stream.ack_named(pipe, run.queue, run.pk, fence=run.fence))
        )
    except RedisError as error:
        metrics.redis_errors.inc()
        log.warning("ack.postponed", run_id=str(run.pk), error=str(error))
    dead_letters.publish(client, left.failed)
