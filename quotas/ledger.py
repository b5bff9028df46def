"""Reading of the ledger: what is asked for, a page of it, all of it in pieces, and its lines as rows of a CSV file."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from quotas.database import exactly, newest_first
from quotas.models import Account, LedgerEntry

COLUMNS = (
    "id", "at", "account", "kind", "amount", "period", "run", "agent", "actor", "reason", "overdraft", "price_book",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """Which lines: each condition that is None does not count. `start` belongs to it, `end` does not."""

    kind: str | None = None
    run: UUID | None = None
    agent: str | None = None
    start: dt.datetime | None = None
    end: dt.datetime | None = None


def lines_of(account: Account, asked: Asked | None = None) -> QuerySet[LedgerEntry]:
    """Return the account's lines that were asked for, newest first."""
    asked = asked or Asked()
    given = {"kind": asked.kind, "run_id": asked.run, "at__gte": asked.start, "at__lt": asked.end}
    wanted = Q(**{name: value for name, value in given.items() if value is not None})
    if asked.agent is not None:
        wanted &= exactly("agent", asked.agent)
    return LedgerEntry.objects.filter(wanted, account=account).order_by("-id")


def page_of(lines: QuerySet[LedgerEntry], *, before: int | None, limit: int) -> list[LedgerEntry]:
    """Return the newest lines that are older than the line `before`."""
    return list((lines if before is None else lines.filter(id__lt=before))[:limit])


def lines_about(run_id: UUID, limit: int = 5) -> list[tuple[int, str, int]]:
    """Return (id, kind, amount) of the first lines about a run: its settlement, if it has settled, then manual ones."""
    lines = LedgerEntry.objects.filter(run_id=run_id).order_by("pk")
    return list(lines.values_list("pk", "kind", "amount")[:limit])


def settle_line_of(run_id: UUID) -> int | None:
    """Return the id of the line by which a run was settled, None if there is none."""
    return LedgerEntry.objects.filter(settle_key=run_id).values_list("pk", flat=True).first()


def csv_rows(lines: QuerySet[LedgerEntry]) -> Iterator[list[list[Any]]]:
    """Yield all lines, newest first, as lists of rows by COLUMNS: a piece at a time."""
    for piece in newest_first(lines.select_related("account")):
        yield [_row(line) for line in piece]


def _row(line: LedgerEntry) -> list[Any]:
    return [
        line.pk,
        line.at,
        line.account.name,
        line.kind,
        line.amount,
        line.period,
        line.run_id,
        line.agent,
        line.actor,
        line.reason,
        line.overdraft,
        line.price_book_id,
    ]
