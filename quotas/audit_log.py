"""Reading of the audit trail: what changed between before and after, and all entries as rows of a file."""

import json
from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet

from quotas.database import newest_first
from quotas.models import AuditEntry

COLUMNS = ("id", "at", "actor", "action", "target_type", "target_id", "reason", "request_id", "before", "after")
MISSING = object()


def csv_rows(entries: QuerySet[AuditEntry]) -> Iterator[list[list[Any]]]:
    """Yield all entries, newest first, as lists of rows by COLUMNS; before and after are JSON texts, "" for none."""
    for piece in newest_first(entries):
        yield [[_json(value) for value in _values(entry)] for entry in piece]


def json_lines(entries: QuerySet[AuditEntry]) -> Iterator[str]:
    """Yield all entries, newest first, as JSON objects of COLUMNS, one a line; a piece of them at a time."""
    for piece in newest_first(entries):
        rows = (dict(zip(COLUMNS, _values(entry), strict=True)) for entry in piece)
        yield "".join(json.dumps(row, default=_text, ensure_ascii=False) + "\n" for row in rows)


def _values(entry: AuditEntry) -> list[Any]:
    return [getattr(entry, name) for name in COLUMNS]


def _json(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


def _text(value: Any) -> str:
    return str(value.isoformat())


def changes(before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Return (name, before, after) of what an act changed, then of what it left; "" for what was not there.

    What are no objects of names is compared as a whole, under the name "value".
    """
    old, new = _named(before), _named(after)
    rows = [(name, old.get(name, MISSING), new.get(name, MISSING)) for name in dict.fromkeys([*old, *new])]
    rows.sort(key=lambda row: row[1] == row[2])
    return [(name, "" if was is MISSING else was, "" if now is MISSING else now) for name, was, now in rows]


def _named(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"value": value}
