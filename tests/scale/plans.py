"""How a database answers a page's questions: whether it reads a large table whole, and how many rows it touches.

PostgreSQL and SQLite say it of themselves. What is asked is what the page asked, run once more under EXPLAIN.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connection

from quotas.models import Hold, LedgerEntry
from runs.models import Attempt, Run, Transition
from workers.models import DeadLetter

LARGE = {model._meta.db_table for model in (Run, Transition, Attempt, Hold, LedgerEntry, DeadLetter)}
READS = re.compile(r"^\s*(SELECT|WITH|\()", re.IGNORECASE)


def faults(statements: Sequence[str], *, most: int) -> list[str]:
    """Return what is wrong with the plans of statements, one line each. `most`: rows of a large table that a part of a
    plan may touch, far fewer than there are.
    """
    return [f"{fault}: {sql[:400]}" for sql in statements if _is_of_interest(sql) for fault in _faults_of(sql, most)]


def _is_of_interest(sql: str) -> bool:
    return READS.match(sql) is not None and any(table in sql for table in LARGE)


def _faults_of(sql: str, most: int) -> Iterator[str]:
    if connection.vendor == "postgresql":
        for node in _nodes(_plan(sql)):
            yield from _fault_of(node, most)
    elif connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}".replace("%", "%%"), [])
            for *_, detail in cursor.fetchall():
                words = detail.split()
                if words[:2] == ["SCAN", Run._meta.db_table] and "USING" not in words:
                    yield detail


def _plan(sql: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}")
        (answer,) = cursor.fetchone()
    found: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return found


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _fault_of(node: dict[str, Any], most: int) -> Iterator[str]:
    table, kind = node.get("Relation Name"), node["Node Type"]
    if table not in LARGE:
        return
    removed = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
    touched = (node["Actual Rows"] + removed) * node["Actual Loops"]
    if kind == "Seq Scan" and table == Run._meta.db_table and node["Actual Loops"]:
        yield f"reads {table} from end to end"
    elif touched > most:
        yield f"touches {touched:,.0f} rows of {table} by {kind}"
