"""Narrowing lists of runs by what not every database can look into: their tags."""

from django.db import connection
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from runs.models import Run

SQLITE_TAGS = "EXISTS (SELECT 1 FROM json_each(runs_run.tags) WHERE json_each.value = %s)"


def with_tag(rows: QuerySet[Run], tag: str) -> QuerySet[Run]:
    """Narrow a query to the runs that carry the tag, on every database."""
    if connection.features.supports_json_field_contains:
        return rows.filter(tags__contains=[tag])
    expression = RawSQL(SQLITE_TAGS, [tag], output_field=BooleanField())  # noqa: S611  the tag is a parameter
    return rows.alias(is_tagged=expression).filter(is_tagged=True)
