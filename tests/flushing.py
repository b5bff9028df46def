"""Emptying the tables after a test that commits: also those that refuse it (quotas/append_only.py)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.test import TransactionTestCase

from quotas import append_only

flush = TransactionTestCase._fixture_teardown


def flush_with_ledger(test_case: Any) -> None:
    """Flush as Django does, with the protection of ledger and audit log out of the way."""
    with _unprotected():
        flush(test_case)


@contextmanager
def _unprotected() -> Iterator[None]:
    """Let go of as little as each server needs, and only where there is something: a test's tables are mostly empty."""
    match connection.vendor:
        case "postgresql":
            tables = [guard.table for guard in append_only.GUARDS]
            _execute(*(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in tables))  # whatever of ours is there
            yield
            _execute(*(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in tables))
        case "mysql":
            _execute(*(f"TRUNCATE TABLE {guard.table}" for guard in _filled()))  # fires no trigger
            yield
        case _:
            filled = _filled()
            append_only.remove(filled)
            yield
            append_only.install(filled)


def _filled() -> list[append_only.Guard]:
    return [guard for guard in append_only.GUARDS if guard.model._default_manager.exists()]


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
