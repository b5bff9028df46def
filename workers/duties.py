"""The sweeper's duties on the rows: what lets runs begin, and what ends those whose time is over (protocol 10).

Each is conditional, bounded a pass, and safe to run twice; each commits before it announces.
"""

from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

import redis
import structlog
from django.conf import settings

from quotas.database import in_transaction, is_connection_lost, later
from quotas.errors import Busy
from runs import announcing
from runs.models import Run
from runs.services import claims, end_overdue, holding, overdue, schedule
from runs.services.moves import Moved
from workers import case_filing, dead_letters, metrics
from workers.aftermath import announce_left, buried
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess

log = structlog.get_logger(__name__)
PAGES_MAX = 10  # of promotions a pass: a thousand runs that are due at once wait for nothing else


class Duties:
    """The duties that need the database, announced where Redis is there. `actor` is written into the transitions."""

    def __init__(self, client: "redis.Redis", *, actor: str, lease: float) -> None:
        self._client = client
        self.is_quiet = False  # while Redis is away: the rows are their own outbox, and announcing would only take time
        self._actor = actor
        # The mark has to come with a beat, the handler has its grace, and its end has to be committed.
        self._stop_grace = settings.HANDLER_GRACE_SECONDS + lease / 3 + 1

    def promote(self) -> None:
        """Queue what is due: as sets, else one by one, because a row that somebody holds may hold up no other."""
        for _ in range(PAGES_MAX):
            due = schedule.due()
            try:
                moved = in_transaction(partial(schedule.promote, due, actor=self._actor))
            except Busy:
                for run_id in due:
                    self._alone(f"promote {run_id}", partial(self._promote, run_id))
                return
            self._announce(moved)
            if len(due) < schedule.PAGE:
                return

    def _promote(self, run_id: UUID) -> None:
        self._announce(in_transaction(partial(schedule.promote, [run_id], actor=self._actor)))

    def sessions(self) -> None:
        """Start the oldest blocked run of every session whose slot is empty."""
        for account_id, slot in schedule.stalled_sessions():
            self._alone(f"session {slot}", partial(self._start_blocked, account_id, slot))

    def _start_blocked(self, account_id: int, slot: str) -> None:
        moved = in_transaction(lambda: schedule.start_blocked(account_id, slot, actor=self._actor))
        if moved:
            log.warning("sweep.session_started", runs=[str(one.run.pk) for one in moved])
            self._announce(moved)

    def queue_wait(self) -> None:
        """Fail runs that waited longer than they may."""
        rows = overdue.waited_too_long()
        known = _known_agents() if rows else set()
        for row in rows:
            # Where no worker lives at all, it is not the agent that it lacked.
            is_known = not known or row.agent in known
            self._alone(f"queue wait {row.pk}", partial(self._fail_waiting, row, known=is_known))

    def _fail_waiting(self, row: Run, *, known: bool) -> None:
        error = overdue.wait_error(row, known=known)
        left = in_transaction(lambda: buried(claims.refuse(row.pk, row.fence, error, actor=self._actor)))
        if left is not None and not self.is_quiet:
            announce_left(self._client, left)

    def limits(self) -> None:
        """Ask runs whose time is over to stop, and end those whose owner did not in its grace."""
        asked = overdue.ask_to_stop()
        if asked:
            log.info("sweep.asked_to_stop", runs=asked)
        for run_id, fence in overdue.ignored(self._stop_grace):
            self._alone(f"limits {run_id}", partial(self._end_overdue, run_id, fence))

    def _end_overdue(self, run_id: UUID, fence: int) -> None:
        left = in_transaction(
            lambda: buried(end_overdue(run_id, fence, grace_seconds=self._stop_grace, actor=self._actor))
        )
        if left is not None:
            log.warning("run.ended_for_owner", run_id=str(run_id), fence=fence, event_name=left.moved.row.kind)
            if not self.is_quiet:
                announce_left(self._client, left)

    def holds(self) -> None:
        """Expire lapsed holds, so that they stop counting."""
        for account_id in holding.lapsed():
            self._alone(f"holds {account_id}", partial(self._expire, account_id))

    def _expire(self, account_id: int) -> None:
        expired = in_transaction(lambda: holding.expire(account_id))
        if expired:
            log.warning("sweep.holds_expired", account=account_id, holds=expired)

    def dead_letters(self) -> None:
        """Publish dead letters that are not on the stream yet; file those without a case; open cases that are due."""
        case_filing.backfill()
        case_filing.wake()
        dead_letters.publish_due(self._client)

    def _announce(self, moved: Sequence[Moved]) -> None:
        if not self.is_quiet:
            announcing.announce_moved(moved, self._client)

    def _alone(self, what: str, work: Callable[[], None]) -> None:
        """Do one piece of a duty; one that is locked or broken holds up no other."""
        try:
            work()
        except Exception as error:
            if is_connection_lost(error):
                raise
            metrics.count_error(error)
            log.warning("sweep.left_for_later", what=what, error=repr(error), exc_info=not isinstance(error, Busy))


def _known_agents() -> set[str]:
    """Return the agents that live workers know."""
    alive = WorkerProcess.objects.filter(stopped_at=None, heartbeat_at__gt=later(-alive_seconds()))
    return {agent for agents in alive.values_list("agents", flat=True) for agent in agents}
