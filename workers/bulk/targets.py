"""The targets of a bulk operation: what a filter matches now, and their freezing into items, a page a transaction."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from quotas.database import in_transaction
from runs import filters
from runs.errors import InvalidFilter
from runs.filters import runs_matching
from runs.models import Run
from workers.letter_filters import letters_matching
from workers.models import BulkItem, BulkOperation, DeadLetter

TARGETS_MAX = 100_000  # of one operation
PAGE = 100  # targets written down by one transaction
ITEMS_OF = "items_of"  # a query of its own: what an earlier operation did not do
AGAIN = (BulkItem.State.WAITING, BulkItem.State.REFUSED, BulkItem.State.FAILED)
# Refusals that no repeat changes: somebody did it already, or it cannot be done.
SETTLED = frozenset(
    {
        "already_requeued",
        "not_open",
        "ended",
        "already_succeeded",
        "payload_pruned",
        "no_such_run",
        "no_such_dead_letter",
        "not_requeueable",
        "not_waiting",
        "unchanged",
    }
)
State = BulkOperation.State


def matching(source: str, query: Mapping[str, str]) -> QuerySet[Any]:
    """Return the runs or letters a query means, newest first. Raises UnknownFilter, InvalidFilter."""
    if ITEMS_OF in query:
        return _left_of(source, query)
    rows = letters_matching(query) if source == BulkOperation.Source.LETTERS else runs_matching(query)
    return rows.order_by("-pk")


def fixed(source: str, query: Mapping[str, str]) -> dict[str, str]:
    """Return the query as an operation keeps it: meaning the same on every page of its targets."""
    return filters.fixed(query) if source == BulkOperation.Source.RUNS else dict(query)


def items_again(operation_id: int) -> QuerySet[BulkItem]:
    """Return the items of an operation that may be tried again."""
    rows = BulkItem.objects.filter(operation=operation_id, state__in=AGAIN)
    return rows.exclude(code__in=SETTLED)


def _left_of(source: str, query: Mapping[str, str]) -> QuerySet[Any]:
    given = query[ITEMS_OF]
    if len(query) > 1 or not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise InvalidFilter(parameter=ITEMS_OF, problem="must be the number of an operation, alone")
    items = items_again(int(given)).filter(operation__source=source)
    if source == BulkOperation.Source.LETTERS:
        return DeadLetter.objects.filter(pk__in=items.values("letter_id")).order_by("-pk")
    return Run.objects.filter(pk__in=items.values("run_id")).order_by("-pk")


def newest(source: str) -> str:
    """Return the newest row's key, as an operation keeps where it is: what comes later is none of its targets."""
    model = DeadLetter if source == BulkOperation.Source.LETTERS else Run
    pk = model.objects.order_by("-pk").values_list("pk", flat=True).first()
    return "" if pk is None else str(pk)


def collect(operation_id: int) -> bool:
    """Write down a page of the operation's targets; after the last one it is running. Returns whether there is more.

    Its own transaction, under the operation's lock: two processes write every target down once.
    """
    return in_transaction(lambda: _collect_locked(operation_id))


def _collect_locked(operation_id: int) -> bool:
    operation = BulkOperation.objects.select_for_update().get(pk=operation_id)
    if operation.state != State.PLANNED:
        return False
    rows = _page(operation)
    is_letters = operation.source == BulkOperation.Source.LETTERS
    room = TARGETS_MAX - operation.total
    kept, is_last = rows[:room], len(rows) < min(PAGE, room + 1) or len(rows) > room
    BulkItem.objects.bulk_create(
        BulkItem(
            operation=operation,
            position=operation.total + number,
            run_id=row[1] if is_letters else row[0],
            letter_id=row[0] if is_letters else None,
            account_id=row[-1],
        )
        for number, row in enumerate(kept, start=1)
    )
    operation.total += len(kept)
    operation.is_cut = len(rows) > room
    if kept:
        operation.read_to = f"<{kept[-1][0]}"
    if is_last:
        operation.read_to = ""
        operation.state = State.RUNNING if operation.total else State.DONE
    operation.save(update_fields=["total", "is_cut", "read_to", "state"])
    if operation.state == State.DONE:
        BulkOperation.objects.filter(pk=operation.pk).update(finished_at=Now())
    return not is_last


def _page(operation: BulkOperation) -> list[tuple[Any, ...]]:
    """Return the next (letter, run, account) or (run, account) below those that are written down, newest first."""
    mark = operation.read_to
    if not mark:
        return []
    lookup, key = ("pk__lt", mark[1:]) if mark.startswith("<") else ("pk__lte", mark)
    is_letters = operation.source == BulkOperation.Source.LETTERS
    bound: int | UUID = int(key) if is_letters else UUID(key)
    names = ("pk", "run_id", "run__account_id") if is_letters else ("pk", "account_id")
    room = TARGETS_MAX - operation.total
    rows = matching(operation.source, operation.query).filter(**{lookup: bound})
    return list(rows.values_list(*names)[: min(PAGE, room + 1)])
