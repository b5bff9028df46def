"""Change of priority of a run that waits (protocol 5.3): its entry moves to the stream of the new one."""

from uuid import UUID

import structlog
from django.db import transaction
from redis.exceptions import RedisError

from quotas import audit
from quotas.database import database_time, in_transaction
from runs import announcing, broker, metrics, ready, scripts
from runs.errors import NoSuchRun, NotWaiting
from runs.models import Run
from runs.selectors import get_run
from runs.services.asking import allowed_priority
from runs.services.moves import Moved
from runs.states import REPRIORITISE, RunState
from runs.transitions import Move, lock_runs, transition

log = structlog.get_logger(__name__)


def reprioritise(run_id: UUID, priority: str, actor: str, reason: str = "", request_id: str = "") -> Run:
    """Give a queued or scheduled run another priority, and return it. One that has it already is left as it is.

    Touches no money and no session's slot, so it takes no account lock. Its queue wait goes on. Raises NoSuchRun,
    NotWaiting, InvalidRequest, PriorityTooHigh.
    """
    account = get_run(run_id).account
    allowed_priority(account, priority)

    def work() -> Run:
        run = _change_locked(run_id, priority, actor=actor, reason=reason, request_id=request_id)
        run.account = account
        return run

    return in_transaction(work)


def _change_locked(run_id: UUID, priority: str, *, actor: str, reason: str, request_id: str) -> Run:
    run = next(iter(lock_runs([run_id])), None)
    if run is None:
        raise NoSuchRun(run=str(run_id))
    before = run.priority
    if run.state not in {RunState.QUEUED, RunState.SCHEDULED}:
        raise NotWaiting(run=str(run_id), state=run.state)
    if before == priority:
        return run
    run.priority = priority
    if run.state == RunState.QUEUED:
        _move(run, before, actor=actor, reason=reason)
    else:
        # No stream has it yet: its promotion reads the column under this very lock.
        Run.objects.filter(pk=run.pk, fence=run.fence, state=run.state).update(priority=priority)
    audit.record(
        actor=actor,
        action="run.reprioritise",
        target_type="run",
        target_id=run.pk,
        before={"priority": before},
        after={"priority": priority},
        reason=reason,
        request_id=request_id,
    )
    return run


def _move(run: Run, before: str, *, actor: str, reason: str) -> None:
    """Raise the fence, so that the entry in the old stream is nobody's any more wherever it is, and dispatch anew."""
    move = Move(
        run,
        REPRIORITISE,
        actor=actor,
        at=database_time(run),
        data={"priority": run.priority, "from": before, "reason": reason[:500]},
        changes={"priority": run.priority},
    )
    moved = Moved(run, transition([move])[0])
    transaction.on_commit(lambda: _announce(moved))


def _announce(moved: Moved) -> None:
    """Drop the old entry, which a worker would acknowledge unclaimed, then tell and dispatch as every move is."""
    try:
        scripts.checked(scripts.execute(broker.client(), lambda pipe: ready.supersede(pipe, moved.run)))
    except RedisError as error:
        metrics.count_error(error)
        log.warning("supersede.left", run_id=str(moved.run.pk), error=str(error))
    announcing.announce_moved([moved])
