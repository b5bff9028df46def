"""What lists and pages of runs need beyond the rows themselves: one tag's runs, and how far attempts are."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from runs.models import Attempt, Run

SQLITE_TAGS = "EXISTS (SELECT 1 FROM json_each(runs_run.tags) WHERE json_each.value = %s)"


def with_tag(rows: QuerySet[Run], tag: str) -> QuerySet[Run]:
    """Narrow a query to the runs that carry the tag, on every database."""
    if connection.features.supports_json_field_contains:
        return rows.filter(tags__contains=[tag])
    expression = RawSQL(SQLITE_TAGS, [tag], output_field=BooleanField())  # noqa: S611  the tag is a parameter
    return rows.alias(is_tagged=expression).filter(is_tagged=True)


def progress_of(run_ids: Iterable[UUID]) -> dict[UUID, dict[str, Any]]:
    """Return the last attempt's progress by run id: {done, total, message}, or {} where it said nothing."""
    rows = Attempt.objects.filter(run_id__in=list(run_ids)).order_by("fence")
    return dict(rows.values_list("run_id", "progress"))
