"""Submit: one transaction under the account's lock, so that every refusal is a rollback (protocol 4)."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from django.conf import settings
from django.db import Error, connection, transaction

from quotas import services as money
from quotas.database import database_time, in_transaction, is_connection_lost
from quotas.models import Account
from runs import announcing, controls, limits
from runs.errors import BacklogFull
from runs.models import Run, Transition
from runs.selectors import backlog_of
from runs.services import files
from runs.services.asking import Request, fingerprint_of, prepare
from runs.services.holding import lapse_seconds, seconds_until_due
from runs.services.moves import Moved
from runs.services.placement import take_place
from runs.services.repeats import earlier_run
from runs.states import SUBMIT, SUBMIT_LATER
from runs.transitions import begin

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Submitted:
    """The run a submit leads to. `replayed`: it was there already, by the same idempotency key and body."""

    run: Run
    replayed: bool = False


def called_like(_other: Callable[P, Any]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Give a function that passes all its arguments on the signature of the one it passes them to."""
    return lambda function: function


@called_like(prepare)
def submit_run(**asked: Any) -> Submitted:
    """Accept a run, or raise a Refusal and leave nothing behind. Its arguments are those of `prepare`.

    Durable at the commit; dispatched after it (of the caller's transaction, inside one). When Redis is away then,
    the sweeper dispatches later: the row is its own outbox.
    """
    return admit(prepare(**asked))


def admit(request: Request) -> Submitted:
    """Take the account's lock, decide, insert, and dispatch after the commit."""
    run = request.run
    check_backlog(run.queue)
    if request.dedupe_seconds and request.retry_of is None:
        run.fingerprint = fingerprint_of(run.account, run)
    return committed_or_found(run, lambda: admit_locked(request))


def check_backlog(queue: str) -> None:
    """Raise UnderMaintenance or BacklogFull where no run is accepted. Called before the lock (protocol 4.4)."""
    controls.check_maintenance()
    backlog = backlog_of(queue)
    if backlog >= settings.BACKLOG_LIMIT:
        raise BacklogFull(queue=queue, backlog=backlog, limit=settings.BACKLOG_LIMIT)


def committed_or_found(run: Run, work: Callable[[], Submitted]) -> Submitted:
    """Do the work of a submit in a transaction. An answer to COMMIT that was lost is not a failure (protocol 1.8).

    The run's own id tells: if its row is there, the submit was accepted, and is announced now.
    """
    try:
        return in_transaction(work)
    except Error as error:
        if connection.in_atomic_block or not is_connection_lost(error):
            raise
        connection.close()
        found = Run.objects.select_related("account").filter(pk=run.pk).first()
        if found is None:
            raise
        if found.fence == 1:
            announcing.announce_moved([Moved(found, Transition.objects.get(run=found, fence=1))])
        return Submitted(found)


def admit_locked(request: Request) -> Submitted:
    """Decide on a submit under the account's lock: replay, refuse by raising, or insert run, transition and hold."""
    run = request.run
    account = money.lock_account(run.account_id)
    now = database_time(account)
    earlier = earlier_run(request, now)
    if earlier is not None:
        return Submitted(earlier, replayed=True)
    run.submitted_at = run.queued_at = now
    request.timing.apply(run, now)
    changed = take_place(run, account, on_busy=request.on_busy) if run.session else []
    money.check_in_flight(account)
    first = _begin(request, now)
    files.use_files(run, request.files)
    _hold(request, account, now)
    transaction.on_commit(lambda: announcing.announce_moved([*changed, Moved(run, first)]))
    return Submitted(run)


def _begin(request: Request, now: dt.datetime) -> Transition:
    """Insert the run, queued or scheduled, with the end of its wait and its first transition."""
    run = request.run
    run.budget = request.estimate
    edge = SUBMIT_LATER if run.blocked_by_session or run.not_before else SUBMIT
    begins = run.not_before or now
    run.waits_until = limits.queued_until(run, begins) if edge is SUBMIT or run.blocked_by_session else run.deadline_at
    if run.fingerprint:
        run.dedupe_until = now + dt.timedelta(seconds=request.dedupe_seconds)
    return begin(run, edge, actor=run.submitted_by, data=_first_data(request))


def _first_data(request: Request) -> dict[str, Any]:
    run = request.run
    data: dict[str, Any] = {"agent": run.agent, "estimate": request.estimate}
    if run.not_before is not None:
        data["not_before"] = run.not_before.isoformat()
    if run.blocked_by_session is not None:
        data["blocked_by_session"] = run.session
    return data


def _hold(request: Request, account: Account, now: dt.datetime) -> None:
    """Reserve the estimate for as long as the run may wait and one attempt may take; raises QuotaExceeded."""
    run = request.run
    lapses = seconds_until_due(run, now) + lapse_seconds(run)
    money.place_hold(account, run_id=run.pk, amount=request.estimate, lapses_after=lapses)
