"""One item of a bulk operation: the act and the item's result in one transaction, so that it happens once.

Whoever acts has locked the operation: an abort waits for the item at hand and for no other.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from django.contrib.auth import get_user_model
from django.db import DataError, Error, IntegrityError, transaction
from django.db.models.functions import Now

from quotas import audit
from quotas.database import database_time, in_transaction, later
from quotas.errors import Busy, Refusal, TooManyInFlight
from quotas.masking import mask
from runs.errors import BacklogFull, UnderMaintenance
from runs.models import Run
from runs.services import cancel_run, reprioritise, requeue_run
from runs.states import RunState
from runs.text import clean_text
from workers import dead_letters, metrics
from workers.bulk.edits import difference
from workers.bulk.operations import LIVE
from workers.bulk.options import Kind, Options, Source, options_of, permissions_for
from workers.bulk.targets import SETTLED
from workers.models import BulkItem, BulkOperation

log = structlog.get_logger(__name__)
State, Result = BulkOperation.State, BulkItem.State
# Refusals that pass by themselves: the operation waits, and says for what. One account's holds up its items alone.
PASSING = frozenset({TooManyInFlight.code, BacklogFull.code, UnderMaintenance.code})
PASSING_SECONDS = 2.0
POSTPONED_SECONDS = 10.0
NOBODY = UUID(int=0)
CATCH_UP_SECONDS = 1.0  # of its pace, where the runner came late


@dataclass(frozen=True, slots=True)
class Became:
    """What became of an item. `code` and `message` are the refusal's, or say what was done."""

    state: BulkItem.State
    code: str = ""
    message: str = ""
    new_run: Run | None = None
    changes: dict[str, Any] | None = None


def act_on_next(operation_id: int) -> bool:
    """Act on the operation's next item, if it runs and its pace allows it now. Raises Busy.

    Returns whether it did, or found that the item has to wait, so that another may be next.
    """
    return in_transaction(lambda: _act_locked(operation_id))


def _act_locked(operation_id: int) -> bool:
    operation = BulkOperation.objects.select_for_update().annotate(db_now=Now()).get(pk=operation_id)
    now = database_time(operation)
    if operation.state != State.RUNNING or (operation.next_at is not None and operation.next_at > now):
        return False
    operation.held_up = {pk: until for pk, until in operation.held_up.items() if dt.datetime.fromisoformat(until) > now}
    waiting = operation.items.filter(state=Result.WAITING).order_by("position")
    item = waiting.exclude(account_id__in=operation.held_up).first()
    if item is not None:
        became = _tried(operation, item)
        if isinstance(became, Refusal):
            return _wait(operation, item, became, now)
        _write(operation, item, became, now)
        return True
    if operation.held_up:
        BulkOperation.objects.filter(pk=operation.pk).update(next_at=min(operation.held_up.values()))
    else:
        _end(operation, State.DONE)
    return False


def _tried(operation: BulkOperation, item: BulkItem) -> Became | Refusal:
    """Act; a refusal or a bug is the item's result, and what it wrote is taken back. Returns a refusal that passes."""
    try:
        return in_transaction(lambda: DOES[Kind(operation.kind)](operation, item, options_of(operation)))
    except Refusal as refusal:
        if isinstance(refusal, Busy):
            raise
        if refusal.code in PASSING:
            return refusal
        return Became(Result.REFUSED, refusal.code, refusal.message)
    except Exception as error:
        # What the database says of this item's data it will say again; of itself (busy, away) the item is repeated.
        if isinstance(error, Error) and not isinstance(error, DataError | IntegrityError):
            raise
        log.exception("bulk.item_broke", operation=operation.pk, position=item.position)
        return Became(Result.FAILED, "broke", mask(clean_text(f"{type(error).__name__}: {error}")))


def _wait(operation: BulkOperation, item: BulkItem, refusal: Refusal, now: dt.datetime) -> bool:
    """Try again soon: what a client is told to wait (a maintenance's hours) may be over long before.

    Returns whether other items need not wait: an account without a place in flight holds up no other's.
    """
    until = now + dt.timedelta(seconds=min(refusal.retry_after or PASSING_SECONDS, PASSING_SECONDS))
    is_of_account = refusal.code == TooManyInFlight.code and item.account_id is not None
    changes: dict[str, Any] = {"problem": f"Waiting: {refusal.message}"[:500]}
    if is_of_account:
        changes["held_up"] = {**operation.held_up, str(item.account_id): until.isoformat()}
    else:
        changes["next_at"] = until
    BulkOperation.objects.filter(pk=operation.pk).update(**changes)
    return is_of_account


def _write(operation: BulkOperation, item: BulkItem, became: Became, now: dt.datetime) -> None:
    item.state, item.code, item.message = became.state, became.code[:60], became.message[:500]
    item.new_run = None if became.new_run is None else became.new_run.pk
    item.changes, item.acted_at = became.changes, now
    item.save(update_fields=["state", "code", "message", "new_run", "changes", "acted_at"])
    operation.done_count += became.state == Result.DONE
    operation.refused_count += became.state == Result.REFUSED
    operation.failed_count += became.state == Result.FAILED
    if became.new_run is not None:
        operation.reserved += became.new_run.budget
    operation.next_at = _next_at(operation, now)
    operation.problem = operation.problem if operation.held_up else ""
    if operation.canary:
        _after_canary(operation, became)
    operation.save(
        update_fields=[
            "done_count", "refused_count", "failed_count", "reserved", "next_at", "held_up", "problem", "state",
            "canary_run",
        ]
    )  # fmt: skip
    if operation.state == State.FAILED:
        _end(operation, State.FAILED)
    transaction.on_commit(partial(metrics.bulk_items.labels(operation.kind, became.state).inc, 1))


def _next_at(operation: BulkOperation, now: dt.datetime) -> dt.datetime | None:
    if operation.pace is None:
        return None
    late = now - dt.timedelta(seconds=CATCH_UP_SECONDS)
    return max(operation.next_at or now, late) + dt.timedelta(seconds=60 / operation.pace)


def _after_canary(operation: BulkOperation, became: Became) -> None:
    """Wait for the first run before the rest; one that was settled already is no canary: the next one is."""
    if became.new_run is not None:
        operation.state, operation.canary_run = State.WAITING_FOR_CANARY, became.new_run.pk
    elif became.code not in SETTLED:
        operation.state = State.FAILED
        # A refusal is told in words of ours. A bug's text may quote a payload, and this is read by everybody.
        why = became.message if became.state == Result.REFUSED else f"{became.code}."
        operation.problem = f"The canary was not accepted: {why}"[:500]


def may_go_on(operation_id: int) -> bool:
    """Whether the actor may still do what the operation does: a role that is taken away ends what it began."""
    operation = BulkOperation.objects.filter(pk=operation_id, state__in=LIVE).first()
    if operation is None:
        return False
    user = get_user_model().objects.filter(username=operation.actor, is_active=True, is_staff=True).first()
    if user is not None and user.has_perms(permissions_for(operation)):
        return True
    fail(operation_id, f"{operation.actor} may not do this any more.")
    return False


def fail(operation_id: int, problem: str) -> None:
    """End an operation, unless it has ended."""
    in_transaction(lambda: _fail_locked(operation_id, problem))


def _fail_locked(operation_id: int, problem: str) -> None:
    operation = BulkOperation.objects.select_for_update().get(pk=operation_id)
    if operation.state in LIVE:
        operation.problem = problem[:500]
        operation.save(update_fields=["problem"])
        _end(operation, State.FAILED)


def postpone(operation_id: int, problem: str) -> None:
    """Have an operation wait a while, for a cause that is none of its items'."""
    rows = BulkOperation.objects.filter(pk=operation_id, state__in=LIVE)
    in_transaction(lambda: rows.update(next_at=later(POSTPONED_SECONDS), problem=problem[:500]))


def look_at_canary(operation_id: int) -> None:
    """Go on where the canary succeeded, stop where it ended otherwise."""
    in_transaction(lambda: _look_locked(operation_id))


def _look_locked(operation_id: int) -> None:
    operation = BulkOperation.objects.select_for_update().get(pk=operation_id)
    if operation.state != State.WAITING_FOR_CANARY:
        return
    run = Run.objects.filter(pk=operation.canary_run or NOBODY).only("pk", "state", "error_class").first()
    if run is not None and not run.is_terminal:
        return
    if run is not None and run.state == RunState.SUCCEEDED:
        operation.state, operation.canary = State.RUNNING, False
        operation.save(update_fields=["state", "canary"])
        return
    how = "is gone" if run is None else " ".join(filter(None, (f"ended as {run.state}", run.error_class)))
    operation.problem = f"The canary {how}."
    operation.save(update_fields=["problem"])
    _end(operation, State.FAILED)


def _end(operation: BulkOperation, state: BulkOperation.State) -> None:
    BulkOperation.objects.filter(pk=operation.pk).update(state=state, finished_at=Now(), held_until=None, holder="")
    log.info("bulk.ended", operation=operation.pk, state=str(state), problem=operation.problem)


# -- the acts ----------------------------------------------------------------------------------------------------------
def _requeue(operation: BulkOperation, item: BulkItem, options: Options) -> Became:
    by: dict[str, Any] = {
        "actor": operation.actor,
        "reason": operation.reason,
        "request_id": operation.request_id,
    }
    old = (
        None
        if item.run_id is None
        else Run.objects.filter(pk=item.run_id).only("state", "input_json", "payload_pruned_at").first()
    )
    if old is not None and old.state == RunState.SUCCEEDED and not options.with_succeeded:
        return Became(Result.REFUSED, "already_succeeded", "The run has succeeded.")
    is_edited = options.edit is not None and old is not None and not old.payload_pruned
    before = old.input if old is not None and is_edited else None
    changes = options.changes(before) if is_edited else replace(options, edit=None).changes(None)
    edited = difference(before, changes.input) if is_edited else None  # here: below, the account is locked
    if operation.source == Source.LETTERS:
        new = dead_letters.requeue(dead_letter_id=item.letter_id or 0, changes=changes, **by)
    else:
        new = requeue_run(run_id=_run_id(item), changes=changes, **by).run
    audit.record(
        actor=operation.actor,
        action="run.made_by_bulk",
        target_type="run",
        target_id=new.pk,
        before={"run": str(item.run_id)},
        after={"operation": operation.pk, **changes.told},
        reason=operation.reason,
        request_id=operation.request_id,
    )
    return Became(Result.DONE, new_run=new, changes=edited)


def _cancel(operation: BulkOperation, item: BulkItem, options: Options) -> Became:
    del options
    verdict = cancel_run(
        run_id=_run_id(item), actor=operation.actor, reason=operation.reason, request_id=operation.request_id
    )
    if verdict.what == "ended":
        return Became(Result.REFUSED, "ended", "The run had ended already.")
    return Became(Result.DONE, verdict.what)


def _discard(operation: BulkOperation, item: BulkItem, options: Options) -> Became:
    del options
    dead_letters.discard(
        dead_letter_id=item.letter_id or 0,
        actor=operation.actor,
        reason=operation.reason,
        request_id=operation.request_id,
    )
    return Became(Result.DONE)


def _reprioritise(operation: BulkOperation, item: BulkItem, options: Options) -> Became:
    run_id, priority = _run_id(item), options.priority or ""
    if Run.objects.filter(pk=run_id, priority=priority, state__in=[RunState.QUEUED, RunState.SCHEDULED]).exists():
        return Became(Result.REFUSED, "unchanged", f"The priority is {priority} already.")
    reprioritise(run_id, priority, operation.actor, reason=operation.reason, request_id=operation.request_id)
    return Became(Result.DONE, priority)


def _run_id(item: BulkItem) -> Any:
    return item.run_id


DOES: dict[BulkOperation.Kind, Callable[[BulkOperation, BulkItem, Options], Became]] = {
    Kind.REQUEUE: _requeue,
    Kind.CANCEL: _cancel,
    Kind.DISCARD: _discard,
    Kind.REPRIORITISE: _reprioritise,
}
