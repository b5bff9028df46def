"""Start, abort and repeat bulk operations. Each is a transaction of its own with its audit entry."""

import datetime as dt
from collections.abc import Mapping, Sequence
from uuid import UUID, uuid4

import structlog
from django.db import Error, IntegrityError
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from quotas import audit
from quotas.database import in_transaction
from quotas.errors import Busy, ReasonNeeded
from workers.bulk import targets
from workers.bulk.options import Options, options_of
from workers.bulk.plans import bound_of
from workers.errors import NoSuchOperation, NotAllTargets, OperationEnded, OperationLive
from workers.models import BulkItem, BulkOperation

log = structlog.get_logger(__name__)
State = BulkOperation.State
PRUNE = 100  # items deleted at once
LIVE = (State.PLANNED, State.RUNNING, State.WAITING_FOR_CANARY)


def get_operation(operation_id: int) -> BulkOperation:
    """Return an operation; raises NoSuchOperation."""
    row = BulkOperation.objects.filter(pk=operation_id).first() if 0 < operation_id < 2**63 else None
    if row is None:
        raise NoSuchOperation(operation=operation_id)
    return row


def start(  # noqa: PLR0913  every fact of an operation, keyword-only
    *,
    kind: str,
    source: str,
    query: Mapping[str, str],
    options: Options,
    actor: str,
    reason: str,
    form_id: UUID,
    up_to: str = "",
    request_id: str = "",
) -> BulkOperation:
    """Write an operation down, with the first of its targets; workers do it. The same form starts it once.

    `up_to` is the newest key its plan was counted to: what came later is none of its targets, read or not.
    Raises InvalidRequest, ReasonNeeded, UnknownFilter and InvalidFilter.
    """
    options.checked(source, kind)
    reason = reason.strip()
    if not reason:
        raise ReasonNeeded
    targets.matching(source, query)  # refused before anything is written
    row = BulkOperation(
        form_id=form_id,
        kind=kind,
        source=source,
        query=targets.fixed(source, query),
        options=options.stored,
        canary=options.canary,
        pace=options.pace,
        read_to=bound_of(source, up_to),
        actor=actor[:150],
        reason=reason[:500],
        request_id=request_id[:64],
    )
    try:
        made = in_transaction(lambda: _insert(row))
    except IntegrityError:
        found = find_of_form(form_id)
        if found is None:
            raise
        return found
    try:
        targets.collect(made.pk)
        made.refresh_from_db()
    except (Busy, Error) as error:  # it is written down: to say now that nothing happened would be wrong
        log.warning("bulk.left_to_workers", operation=made.pk, error=str(error))
    return made


def find_of_form(form_id: UUID) -> BulkOperation | None:
    """Return the operation that a form has started, if it has."""
    return BulkOperation.objects.filter(form_id=form_id).first()


def _insert(row: BulkOperation) -> BulkOperation:
    row.save(force_insert=True)
    audit.record(
        actor=row.actor,
        action=f"bulk.{row.kind}",
        target_type="bulk_operation",
        target_id=row.pk,
        after={
            "source": row.source,
            "query": row.query,
            **{name: value for name, value in row.options.items() if name != "edit"},
            **({"input": "edited"} if "edit" in row.options else {}),
            "canary": row.canary,
            "pace": row.pace,
        },
        reason=row.reason,
        request_id=row.request_id,
    )
    return row


def abort(operation_id: int, *, actor: str, reason: str, request_id: str = "") -> BulkOperation:
    """Stop an operation: the item at hand is finished, no other is begun. Raises NoSuchOperation, OperationEnded."""
    get_operation(operation_id)

    def work() -> BulkOperation:
        row = BulkOperation.objects.select_for_update().get(pk=operation_id)
        if row.state not in LIVE:
            raise OperationEnded(operation=row.pk, state=row.state)
        before, row.state = row.state, State.ABORTED
        row.problem = f"Aborted by {actor[:150]}" + (f": {reason[:300]}" if reason else ".")
        row.save(update_fields=["state", "problem"])
        BulkOperation.objects.filter(pk=row.pk).update(finished_at=Now(), held_until=None)
        audit.record(
            actor=actor,
            action="bulk.abort",
            target_type="bulk_operation",
            target_id=row.pk,
            before={"state": str(before)},
            after={"state": str(row.state), "done": row.done_count, "of": row.total},
            reason=reason,
            request_id=request_id,
        )
        return row

    return in_transaction(work)


def again(
    operation_id: int, *, actor: str, reason: str, form_id: UUID | None = None, request_id: str = ""
) -> BulkOperation:
    """Start an operation on what an ended one did not do.

    Raises NoSuchOperation, OperationLive, NotAllTargets, ReasonNeeded.
    """
    old = get_operation(operation_id)
    if old.state in LIVE:
        raise OperationLive(operation=old.pk, state=old.state)
    if old.read_to:
        raise NotAllTargets(operation=old.pk, count=old.total)
    return start(
        kind=old.kind,
        source=old.source,
        query={targets.ITEMS_OF: str(old.pk)},
        options=options_of(old),
        actor=actor,
        reason=reason,
        form_id=form_id or uuid4(),
        request_id=request_id,
    )


def forget_words(run_ids: Sequence[UUID]) -> None:
    """Take what operations quote of runs whose payload goes, or that are forgotten. In the caller's transaction.

    An edit that a live operation still makes stays until the operation is deleted.
    """
    items = BulkItem.objects.filter(Q(run_id__in=run_ids) | Q(new_run__in=run_ids))
    for row in BulkOperation.objects.filter(pk__in=items.values("operation")).exclude(state__in=LIVE):
        if "edit" in row.options:
            del row.options["edit"]
            row.save(update_fields=["options"])
    items.update(changes=None, message="")


def prune(days: float) -> int:
    """Delete a piece of the oldest operation that ended `days` ago (0 keeps them). Returns the rows deleted."""
    if not days:
        return 0
    before = timezone.now() - dt.timedelta(days=days)
    old = BulkOperation.objects.filter(finished_at__lt=before).order_by("pk").first()
    if old is None:
        return 0
    ids = list(old.items.order_by("position").values_list("pk", flat=True)[:PRUNE])
    deleted = BulkItem.objects.filter(pk__in=ids).delete()[0]
    return deleted if len(ids) == PRUNE else deleted + old.delete()[0]
