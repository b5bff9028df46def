"""Lists of runs by what not every database can look into: tags and metadata; sums of ledger lines by texts of runs."""

import json
from collections.abc import Iterator
from typing import Any

from django.db import connection
from django.db.models import BooleanField, F, Func, Q, QuerySet, Value

from quotas.models import LedgerEntry
from runs.models import Run

SQLITE_EACH = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"
SQLITE_PAIR = """json_each.key || '=' || CASE json_each.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false'
  WHEN 'null' THEN 'null' ELSE CAST(json_each.value AS TEXT) END"""

# What is joined to the run `r`, and its key as it compares by its bytes, NULL where there is none.
SESSION = {
    "sqlite": ("", "NULLIF(r.session, '')"),
    "postgresql": ("", """NULLIF(r.session, '') COLLATE "C\""""),
    "mysql": ("", "NULLIF(BINARY r.session, '')"),
}
TAG = {  # a row for each tag, or one of NULL
    "sqlite": ("LEFT JOIN json_each(r.tags) t", "t.value"),
    "postgresql": (
        """LEFT JOIN LATERAL jsonb_array_elements_text(
             CASE WHEN jsonb_typeof(r.tags) = 'array' THEN r.tags ELSE '[]' END) t(value) ON TRUE""",
        't.value COLLATE "C"',
    ),
    "mysql": (
        "LEFT JOIN JSON_TABLE(r.tags, '$[*]' COLUMNS (value VARCHAR(200) CHARACTER SET utf8mb4 PATH '$')) t ON TRUE",
        "BINARY t.value",
    ),
}
JOINED = {"session": SESSION, "tag": TAG}
# A run that names a tag twice has it once: the inner SELECT takes each line once a tag.
SUMS = """
SELECT name, SUM(CASE WHEN kind = 'settle' THEN amount ELSE 0 END), SUM(CASE WHEN kind = 'settle' THEN 1 ELSE 0 END),
       SUM(CASE WHEN kind = 'settle' THEN 0 ELSE amount END)
FROM (SELECT DISTINCT l.id, l.kind, l.amount, {key} AS name
      FROM ({lines}) l LEFT JOIN runs_run r ON r.id = l.run_id {join}) told
WHERE {wanted} GROUP BY name ORDER BY name {limit}
"""


def with_tag(rows: QuerySet[Run], tag: str) -> QuerySet[Run]:
    """Narrow a query to the runs that carry the tag, on every database."""
    if not connection.features.supports_json_field_contains:
        return _with_member(rows, "tags", "json_each.value", tag)
    return _indexed(rows, tags=[]).filter(tags__contains=[tag])


def with_metadata(rows: QuerySet[Run], key: str, value: str | None) -> QuerySet[Run]:
    """Narrow a query to the runs whose metadata has the key; with `value` to those that have that there, in words."""
    if not connection.features.supports_json_field_contains:
        if value is None:
            return _with_member(rows, "metadata", "json_each.key", key)
        return _with_member(rows, "metadata", SQLITE_PAIR, f"{key}={value}")
    rows = _indexed(rows, metadata={})
    if value is None:
        return rows.filter(metadata__has_key=key)
    wanted = Q(metadata__contains={key: value})
    for scalar in _scalars(value):
        wanted |= Q(metadata__contains={key: scalar})
    return rows.filter(wanted)


def _with_member(rows: QuerySet[Run], column: str, member: str, wanted: str) -> QuerySet[Run]:
    """Narrow on SQLite, which has no operator for it."""
    joiner = f") WHERE {member} = "
    expression = Func(F(column), Value(wanted), template=SQLITE_EACH, arg_joiner=joiner, output_field=BooleanField())
    return rows.alias(**{f"{column}_fit": expression}).filter(**{f"{column}_fit": True})


def _indexed(rows: QuerySet[Run], **empty: Any) -> QuerySet[Run]:
    """Say to PostgreSQL what the condition of its index says: that of the runs without any is none meant."""
    return rows.exclude(**empty) if connection.vendor == "postgresql" else rows


def _scalars(text: str) -> list[Any]:
    """Return the number, the boolean or the null that a text writes as JSON, if it does."""
    try:
        value = json.loads(text, parse_constant=lambda _: "")
    except ValueError:
        return []
    return [] if isinstance(value, str | list | dict) else [value]


def sums_by(
    what: str,
    lines: QuerySet[LedgerEntry],
    *,
    after: str | None = None,
    limit: int | None = None,
    keyless: bool = False,
) -> Iterator[tuple[Any, ...]]:
    """Yield (key, settled, settled lines, other amounts) by "session" or "tag", by their bytes, those after `after`.

    `keyless`: of the lines whose run has none, or is gone, as one row without a key, or no row.
    """
    inner, parameters = lines.values("id", "kind", "amount", "run_id").query.sql_with_params()
    join, key = JOINED[what][connection.vendor]
    wanted = "name IS NULL" if keyless else "name IS NOT NULL"
    given = list(parameters)
    if after is not None:
        wanted += " AND name > %s"
        given.append(after)
    ending = "" if limit is None else f"LIMIT {int(limit)}"
    sql = SUMS.format(lines=inner, join=join, key=key, wanted=wanted, limit=ending)
    with connection.cursor() as cursor:
        cursor.execute(sql, given)
        for name, *sums in cursor.fetchall():
            yield name.decode() if isinstance(name, bytes) else name, *sums
