"""Counting what a piece of work costs: SQL statements, transactions, savepoints, Redis round trips of this thread.

Used by `manage.py bench` and by the test that holds the hot path to its budget.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connection
from redis.connection import AbstractConnection

BEGIN = ("BEGIN", "START TRANSACTION")
SAVEPOINT = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO")


@dataclass(slots=True)
class Counted:
    """What was sent. A statement outside a transaction block counts as a transaction of its own."""

    statements: int = 0
    transactions: int = 0
    savepoints: int = 0
    round_trips: int = 0

    def as_json(self) -> dict[str, int]:
        return {
            "statements": self.statements,
            "transactions": self.transactions,
            "savepoints": self.savepoints,
            "round_trips": self.round_trips,
        }


class _Statements:
    """An execute wrapper. The outermost atomic block tells one transaction from the next."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._block: object = None

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        text = sql.lstrip().upper()
        if text.startswith(SAVEPOINT):
            self._counted.savepoints += 1
        elif not text.startswith(BEGIN):
            self._counted.statements += 1
            block = connection.atomic_blocks[0] if connection.atomic_blocks else None
            if block is None or block is not self._block:
                self._counted.transactions += 1
            self._block = block
        return execute(sql, params, many, context)


@contextmanager
def count() -> Iterator[Counted]:
    """Count what the block sends on this thread's database connection, and what any Redis client sends."""
    counted = Counted()
    plain = AbstractConnection.send_packed_command

    def counting(self: AbstractConnection, command: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002
        counted.round_trips += 1
        plain(self, command, check_health)

    AbstractConnection.send_packed_command = counting  # type: ignore[method-assign]
    try:
        with connection.execute_wrapper(_Statements(counted)):
            yield counted
    finally:
        AbstractConnection.send_packed_command = plain  # type: ignore[method-assign]
