"""Requeue: a new run of an ended one, made by a person or a client, at most once (protocol 2.2)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from redis.exceptions import RedisError

from quotas import audit
from quotas import services as money
from quotas.models import Account
from runs import broker, keys
from runs.errors import AlreadyRequeued, NoSuchRun, NotEnded, PayloadPruned
from runs.ids import new_run_id
from runs.models import Run
from runs.selectors import get_run
from runs.services.asking import Request, allowed_priority, check_input, find_spec, route_key, serialised
from runs.services.dry_run import Preview, preview
from runs.services.estimating import estimate_of
from runs.services.files import files_in
from runs.services.overrides import Timing
from runs.services.submit import Submitted, admit_locked, check_backlog, committed_or_found
from runs.transitions import lock_runs

COPIED = (
    "agent",
    "queue",
    "priority",
    "input_json",
    "session",
    "metadata",
    "tags",
    "time_limit_seconds",
    "queue_wait_seconds",
    "wall_clock_seconds",
    "no_progress_seconds",
    "max_attempts",
    "on_lost",
)


class _Kept:
    """Stands for the input of the old run: None is an input too."""


KEPT = _Kept()


@dataclass(frozen=True, slots=True)
class Changes:
    """What the new run of a requeue has otherwise than the old one. `delay`: seconds before it may begin.

    `waived`: nobody pays; what it costs is written off in the transaction that settles it. Its hold is one like any.
    """

    input: Any = KEPT
    priority: str | None = None
    delay: float | None = None
    waived: bool = False

    @property
    def told(self) -> dict[str, Any]:
        """What the audit entry says of it: no part of an input."""
        said = {
            "input": "edited" if self.input is not KEPT else None,
            "priority": self.priority,
            "delay": self.delay,
            "waived": self.waived or None,
        }
        return {name: value for name, value in said.items() if value is not None}


UNCHANGED = Changes()
Tell = Callable[[UUID, str, str], None]  # is told run, actor and reason; what it raises undoes the requeue
_told: list[Tell] = []


def tells(tell: Tell) -> None:
    """Have every requeue tell this from here on, in its transaction, after the run's row."""
    if tell not in _told:
        _told.append(tell)


def requeue_run(
    *,
    run_id: UUID,
    actor: str,
    account: Account | None = None,
    reason: str = "",
    request_id: str = "",
    idempotency_key: str | None = None,
    changes: Changes = UNCHANGED,
) -> Submitted:
    """Make a new run with the input of an ended one, with a hold of its own, linked both ways.

    Exempt from the agent's dedupe window. `changes` are checked like a submit's. Raises NoSuchRun, NotEnded,
    PayloadPruned, AlreadyRequeued (facts.retried_by), and whatever a submit refuses.
    """
    old = get_run(run_id, account)
    request = _prepare(old, actor=actor, request_id=request_id, idempotency_key=idempotency_key, changes=changes)
    check_backlog(old.queue)
    return committed_or_found(request.run, lambda: _requeue_locked(request, old.pk, reason, changes))


def preview_requeue(
    *, run_id: UUID, actor: str, account: Account | None = None, changes: Changes = UNCHANGED
) -> Preview:
    """Return what a requeue would be answered now; what it would refuse however much room there is, is raised."""
    old = get_run(run_id, account)
    request = _prepare(old, actor=actor, changes=changes)
    _check_ended(old)
    if old.retried_by is not None:
        raise AlreadyRequeued(run=str(old.pk), retried_by=str(old.retried_by))
    return preview(request)


def _prepare(
    old: Run,
    *,
    actor: str,
    request_id: str = "",
    idempotency_key: str | None = None,
    changes: Changes = UNCHANGED,
) -> Request:
    """Return what a submit of the run's input asks for, checked as it would be today."""
    _check_payload(old)
    spec = find_spec(old.agent)
    priority = allowed_priority(old.account, changes.priority or old.priority)
    timing = Timing.checked(delay=changes.delay, start_at=None, deadline_seconds=None)
    run_input = old.input if changes.input is KEPT else changes.input
    check_input(old.agent, run_input, account=old.account)
    new = Run(
        pk=new_run_id(),
        account=old.account,
        retry_of=old,
        submitted_by=actor[:150],
        request_id=request_id[:64],
        **{name: getattr(old, name) for name in COPIED},
    )
    new.priority = priority
    new.waived_by = actor[:150] if changes.waived else ""
    if changes.input is not KEPT:
        new.input_json = serialised(run_input)
    new.idempotency_key = route_key("retry", idempotency_key)
    new.idempotency_digest = old.pk.hex  # what is asked for is this run again, not this input
    return Request(
        run=new,
        estimate=estimate_of(spec, run_input, old.account),
        dedupe_seconds=0,
        retry_of=old.pk,
        timing=timing,
        files=files_in(spec, run_input),
    )


def _requeue_locked(request: Request, old_id: UUID, reason: str, changes: Changes) -> Submitted:
    new = request.run
    account = money.lock_account(new.account_id)
    old = next(iter(lock_runs([old_id])), None)
    if old is None:
        raise NoSuchRun(run=str(old_id))
    _check_payload(old)
    _check_ended(old)
    if old.retried_by is not None:
        return _same_or_refuse(request, old)
    submitted = admit_locked(request)
    if Run.objects.filter(pk=old_id, retried_by=None).update(retried_by=new.pk) != 1:
        raise AlreadyRequeued(run=str(old_id), retried_by="another run")
    audit.record(
        actor=new.submitted_by,
        action="run.requeue",
        target_type="run",
        target_id=old_id,
        before={"cost": old.cost},
        after={
            "retried_by": str(new.pk),
            "paid_by": account.name if not changes.waived else "nobody",
            "reserved": request.estimate,
            **changes.told,
        },
        reason=reason,
        request_id=new.request_id,
    )
    for tell in _told:
        tell(old_id, new.submitted_by, reason)
    transaction.on_commit(lambda: _tell_viewers(old_id, new.pk))
    return submitted


def _check_payload(old: Run) -> None:
    """Raise PayloadPruned where retention has taken the input."""
    if old.payload_pruned_at is not None:
        raise PayloadPruned(run=str(old.pk), pruned_at=old.payload_pruned_at.isoformat())


def _check_ended(old: Run) -> None:
    if not old.is_terminal:
        raise NotEnded(run=str(old.pk), state=old.state)


def _same_or_refuse(request: Request, old: Run) -> Submitted:
    """Answer a repeated requeue: the first one's run for the same idempotency key, else AlreadyRequeued."""
    existing = Run.objects.select_related("account").filter(retry_of=old.pk).first()
    if existing is not None and request.run.idempotency_key and existing.idempotency_key == request.run.idempotency_key:
        return Submitted(existing, replayed=True)
    raise AlreadyRequeued(run=str(old.pk), retried_by=str(old.retried_by))


def _tell_viewers(old_id: UUID, new_id: UUID) -> None:
    """Announce `retried_by` to open sockets: a frame without an id, no part of the log. A lost one is in the row."""
    message: dict[str, Any] = {"retried_by": str(new_id)}
    try:
        broker.client().publish(keys.run_wake(old_id), json.dumps(message))
    except RedisError:
        return
