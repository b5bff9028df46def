"""Cancel: one decision under the locks, then a broadcast that the lease beat repeats if it is lost (protocol 12.1)."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import structlog
from django.db import transaction
from django.db.models.functions import Now
from redis.exceptions import RedisError

from quotas import audit
from quotas import services as money
from quotas.database import database_time, in_transaction
from quotas.models import Account
from runs import announcing, broker, keys
from runs.errors import NoSuchRun
from runs.models import Run
from runs.selectors import get_run
from runs.services import sessions
from runs.services.holding import bill_of
from runs.services.moves import Moved
from runs.states import CANCEL, RunState
from runs.transitions import Move, lock_runs, transition

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CancelVerdict:
    """What a cancel did: "cancelled" (it never ran on), "requested" (its worker stops it), "ended" (too late)."""

    run: Run
    what: str


def cancel_run(
    *, run_id: UUID, actor: str, account: Account | None = None, reason: str = "", request_id: str = ""
) -> CancelVerdict:
    """Cancel a run that waits, mark one that runs, or say that it has ended. Raises NoSuchRun."""
    seen = get_run(run_id, account)
    return in_transaction(lambda: _cancel_locked(seen, actor=actor, reason=reason, request_id=request_id))


def _cancel_locked(seen: Run, *, actor: str, reason: str, request_id: str) -> CancelVerdict:
    account = money.lock_account(seen.account_id)
    locked = lock_runs([seen.pk, *sessions.successors(account.pk, [seen.session])])
    run = next((row for row in locked if row.pk == seen.pk), None)
    if run is None:
        raise NoSuchRun(run=str(seen.pk))
    run.account = account
    before = run.state
    if run.is_terminal:
        return CancelVerdict(run, "ended")
    if run.state == RunState.RUNNING:
        what = "requested"
        mark_running(run)
    else:
        what = "cancelled"
        slot = run.session_slot
        moved = [cancel_waiting(run, account, actor=actor, reason=reason)]
        moved += sessions.hand_on(locked, [slot], actor=actor)
        transaction.on_commit(lambda: announcing.announce_moved(moved))
    audit.record(
        actor=actor,
        action="run.cancel",
        target_type="run",
        target_id=run.pk,
        before={"state": str(before)},
        after={"state": str(run.state), "cancel": what},
        reason=reason,
        request_id=request_id,
    )
    return CancelVerdict(run, what)


def mark_running(run: Run) -> None:
    """Mark a locked running run for cancel, and tell its worker after the commit."""
    if run.cancel_requested_at is None:
        Run.objects.filter(pk=run.pk, fence=run.fence).update(cancel_requested_at=Now())
    transaction.on_commit(lambda: tell_workers({"cancel": str(run.pk)}))


def cancel_waiting(run: Run, account: Account, *, actor: str, reason: str) -> Moved:
    """Cancel a locked run that waits; its slot is the caller's to hand on."""
    move = Move(run, CANCEL, actor=actor, at=database_time(run), data={"reason": reason[:500], "cost": run.cost})
    rows = transition([move])
    # Never started: released without a ledger line. It may have run before, and been handed back: then settled.
    money.close_holds(account, [bill_of(run, started=run.started_at is not None)])
    return Moved(run, rows[0])


def tell_workers(message: dict[str, Any]) -> None:
    """Broadcast on the control channel. Losing it costs a beat, not the cancel."""
    try:
        broker.client().publish(keys.control(), orjson.dumps(message))
    except RedisError as error:
        log.warning("control.lost", error=str(error), **message)
