"""Emptying the tables after a test that commits: the ledger too, which refuses that (quotas/append_only.py)."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection
from django.test import TransactionTestCase

from quotas import append_only
from quotas.models import LedgerEntry

flush = TransactionTestCase._fixture_teardown


def flush_with_ledger(test_case: Any) -> None:
    """Flush as Django does, with the ledger's protection out of the way."""
    with _unprotected():
        flush(test_case)


@contextmanager
def _unprotected() -> Iterator[None]:
    """Let go of as little as each server needs, and only where there is something: a test's tables are mostly empty."""
    match connection.vendor:
        case "postgresql":
            _execute(f"ALTER TABLE {append_only.TABLE} DISABLE TRIGGER USER")  # whatever of ours is there
            yield
            _execute(f"ALTER TABLE {append_only.TABLE} ENABLE TRIGGER USER")
        case "mysql":
            if LedgerEntry.objects.exists():
                _execute(f"TRUNCATE TABLE {append_only.TABLE}")  # fires no trigger
            yield
        case _:
            protected = LedgerEntry.objects.exists()
            if protected:
                append_only.remove()
            yield
            if protected:
                append_only.install()


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
