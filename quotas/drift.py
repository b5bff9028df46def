"""Drift: where an account's counters differ from the rows they cache. One statement sees both, so no lock is needed."""

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import BigIntegerField, Count, FilteredRelation, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from quotas.models import Account, Hold, LedgerEntry

KINDS = ("spent", "held", "in_flight")


@dataclass(frozen=True, slots=True)
class Figures:
    """An account's counters as they are stored, and as its rows say. Micro-units, and a number of runs."""

    account_id: int
    account: str
    stored: dict[str, int]
    counted: dict[str, int]

    @property
    def drift(self) -> dict[str, int]:
        """What is stored beyond what the rows say, of each kind that differs."""
        differences = {kind: self.stored[kind] - self.counted[kind] for kind in KINDS}
        return {kind: difference for kind, difference in differences.items() if difference}


def figures_of(accounts: QuerySet[Account]) -> list[Figures]:
    """Return the figures of accounts in the order given."""
    lines = LedgerEntry.objects.filter(account=OuterRef("pk"), period=OuterRef("spent_period")).order_by()
    booked = lines.values("account").annotate(total=Sum("amount")).values("total")
    # A join, so that the open holds are read once, and not all that an account ever had.
    joined = accounts.annotate(open=FilteredRelation("holds", condition=Q(holds__state__in=Hold.OPEN)))
    rows = joined.annotate(
        # Bare: within a COALESCE it would be grouped by, and so added up again for every open hold.
        counted_spent=Subquery(booked, output_field=BigIntegerField()),
        counted_held=Coalesce(Sum("open__amount", filter=Q(open__state=Hold.State.ACTIVE)), 0),
        counted_in_flight=Count("open"),
    )
    names = [f"counted_{kind}" for kind in KINDS]
    return [
        Figures(
            pk,
            name,
            dict(zip(KINDS, found[:3], strict=True)),
            dict(zip(KINDS, [amount or 0 for amount in found[3:]], strict=True)),
        )
        for pk, name, *found in rows.values_list("pk", "name", *KINDS, *names)
    ]


def booked_in(account_ids: Collection[int], period: str) -> dict[int, int]:
    """Return the sum of the ledger's lines of a period, by account; one without a line in it is left out."""
    lines = LedgerEntry.objects.filter(account_id__in=account_ids, period=period).order_by()
    return dict(lines.values_list("account_id").annotate(total=Sum("amount")))
