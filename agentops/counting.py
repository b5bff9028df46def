"""Counting what a piece of code costs: SQL statements, transactions, savepoints, and Redis round trips.

For the budget's test and for `manage.py bench`. Counts the calling thread only, on its default connection and on any
Redis client; the handshake of a new connection is left out.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from django.db import connection
from redis.connection import AbstractConnection

OPENING = ("BEGIN", "START TRANSACTION")
SAVEPOINT = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT")


@dataclass(slots=True)
class Counted:
    """What happened so far. `statements` are those that reach the server, without BEGIN, COMMIT and savepoints."""

    statements: int = 0
    transactions: int = 0
    savepoints: int = 0
    round_trips: int = 0
    sql: list[str] = field(default_factory=list)

    def _statement(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        word = sql.lstrip().upper()
        if word.startswith(SAVEPOINT):
            self.savepoints += word.startswith("SAVEPOINT")
        elif not word.startswith(OPENING):
            self.statements += 1
            self.sql.append(sql)
        return execute(sql, params, many, context)


@contextmanager
def count() -> Iterator[Counted]:
    """Give the figures, which grow until the block ends. May not be nested."""
    counted = Counted()
    with _transactions(counted), _round_trips(counted), connection.execute_wrapper(counted._statement):  # noqa: SLF001
        yield counted


@contextmanager
def _transactions(counted: Counted) -> Iterator[None]:
    """Count outermost atomic blocks: each turns autocommit off once."""
    connection.ensure_connection()
    turn = connection.set_autocommit

    def counting(autocommit: bool, *args: Any, **options: Any) -> None:  # noqa: FBT001  Django's signature
        counted.transactions += not autocommit
        turn(autocommit, *args, **options)

    connection.set_autocommit = counting  # type: ignore[method-assign]
    try:
        yield
    finally:
        del connection.set_autocommit


@contextmanager
def _round_trips(counted: Counted) -> Iterator[None]:
    """Count what is sent at once: a command, or a whole pipeline."""
    send, connect = AbstractConnection.send_packed_command, AbstractConnection.connect
    here = threading.get_ident()
    connecting: list[bool] = []

    def counting(self: AbstractConnection, command: Any, *args: Any, **options: Any) -> None:
        if threading.get_ident() == here and not connecting:
            counted.round_trips += 1
        send(self, command, *args, **options)  # type: ignore[no-untyped-call]

    def quietly(self: AbstractConnection) -> None:
        outermost = threading.get_ident() == here and not connecting
        if outermost:
            connecting.append(True)
        try:
            connect(self)  # type: ignore[no-untyped-call]
        finally:
            if outermost:
                connecting.clear()

    AbstractConnection.send_packed_command = counting  # type: ignore[method-assign]
    AbstractConnection.connect = quietly  # type: ignore[method-assign]
    try:
        yield
    finally:
        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
        AbstractConnection.connect = connect  # type: ignore[method-assign]
