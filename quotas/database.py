"""How a unit of database work is run: one transaction, repeated on a deadlock, a lock time-out or "locked"."""

import datetime as dt
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.conf import settings
from django.db import DatabaseError, Error, InterfaceError, OperationalError, connection, transaction
from django.db.models import CharField, DateTimeField, F, Func, Model, Q, QuerySet, Value
from django.db.models.expressions import Expression
from django.db.models.functions import Now
from django.db.models.lookups import Exact

from quotas.errors import Busy

T = TypeVar("T")
PIECE = 500  # rows read at once of what is read to its end, however many there are
_jitter = threading.Event()  # never set: a wait on it is an interruptible pause

# SQLSTATEs of PostgreSQL: serialization failure, deadlock, lock not available; errno of MySQL: deadlock, lock wait.
BUSY_STATES = frozenset({"40001", "40P01", "55P03"})
BUSY_NUMBERS = frozenset({1205, 1213, 3572})


def is_busy(error: DatabaseError) -> bool:
    """Whether the error says that somebody else holds the lock, so that the same work may be tried again."""
    cause = error.__cause__
    if getattr(cause, "sqlstate", None) in BUSY_STATES:
        return True
    number = cause.args[0] if cause is not None and cause.args else None
    return number in BUSY_NUMBERS or "database is locked" in str(error)


def in_transaction(work: Callable[[], T]) -> T:
    """Run `work` in one transaction; up to three tries with jitter, then Busy (protocol 1.4).

    Inside a caller's own transaction the work joins it, within a savepoint: a refusal takes back what the work wrote,
    also when the caller goes on. It is not repeated: a deadlock has ended the caller's transaction.
    """
    if connection.in_atomic_block:
        with transaction.atomic():
            return work()
    for remaining in reversed(range(settings.STATEMENT_RETRIES)):
        try:
            with transaction.atomic():
                return work()
        except OperationalError as error:
            if not is_busy(error):
                raise
            if not remaining:
                raise Busy from error
        _jitter.wait(random.uniform(0.01, 0.1))  # noqa: S311  spreading, not secrecy
    raise Busy


def is_connection_lost(error: Exception) -> bool:
    """Whether the server went away, so that the outcome of a commit is unknown (protocol 1.8)."""
    return isinstance(error, InterfaceError) or (isinstance(error, OperationalError) and not is_busy(error))


def done_or_found(work: Callable[[], T], find: Callable[[], T | None]) -> T:
    """Do work that is a transaction. Where the answer to its COMMIT was lost, what `find` finds was written by it."""
    try:
        return work()
    except Error as error:
        if connection.in_atomic_block or not is_connection_lost(error):
            raise
        connection.close()
        found = find()
        if found is None:
            raise
        return found


class _Later(Func):
    output_field = DateTimeField()


def later(seconds: float) -> Func:
    """Return an expression: the database's now plus `seconds` (may be negative). Time decisions use it (1.6)."""
    return shifted(Now(), seconds)


def shifted(base: Expression, seconds: float) -> Func:
    """Return an expression: a moment plus `seconds` (may be negative)."""
    micro = round(seconds * 1_000_000)
    if connection.vendor == "sqlite":
        # The same text shape as Django's own datetimes, so that comparison as text is comparison in time.
        return _Later(
            base,
            # Percent signs are doubled twice: once for this template, once for the parameters.
            template=f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', %(expressions)s, '{micro / 1e6:+.3f} seconds')",
        )
    if connection.vendor == "postgresql":
        return _Later(base, template=f"(%(expressions)s + INTERVAL '{micro} microseconds')")
    return _Later(base, template=f"(%(expressions)s + INTERVAL {micro} MICROSECOND)")


def database_time(row: Model) -> dt.datetime:
    """Return the database's clock as it was when a row annotated with `db_now` was read (protocol 1.6)."""
    at: dt.datetime = row.__dict__["db_now"]
    return at


def can_skip_locked() -> bool:
    """Whether `select_for_update` can pass over locked rows on this engine."""
    return connection.features.has_select_for_update_skip_locked


def exactly(column: str, text: str) -> Q:
    """Return a condition: the column is this text, byte for byte.

    MySQL's collation ignores case, accents and trailing spaces; there the plain comparison only narrows by the index.
    """
    if connection.vendor != "mysql":
        return Q(**{column: text})
    return Q(**{column: text}) & Q(Exact(Func(F(column), template="BINARY %(expressions)s"), Value(text)))


class _Bytes(Func):
    template = "(%(expressions)s)"
    output_field = CharField()

    def as_mysql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="BINARY %(expressions)s", **extra)

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template='(%(expressions)s) COLLATE "C"', **extra)

    def convert_value(self, value: Any, *_: Any) -> Any:
        return value.decode() if isinstance(value, bytes) else value


def by_bytes(text: Any) -> Func:
    """Return an expression: a text that compares, groups and sorts by its UTF-8 bytes, as Python sorts texts."""
    return _Bytes(text)


def newest_first(rows: QuerySet[Any]) -> Iterator[list[Any]]:
    """Yield all rows of a query from the highest id down: never more than PIECE in memory."""
    rows = rows.order_by("-id")
    piece = list(rows[:PIECE])
    while piece:
        yield piece
        piece = list(rows.filter(id__lt=piece[-1].pk)[:PIECE])
