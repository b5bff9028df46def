"""Writing many rows at once: PostgreSQL by COPY, the others by INSERT with many values."""

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import connection
from django.db.models import AutoField, Field, Model

Row = Mapping[str, Any]  # by the names of the model's columns; what is left out has its default
LONG = 10_000  # texts from here on are escaped once, and kept


class Table:
    """Writes rows of one model."""

    def __init__(self, model: type[Model]) -> None:
        self.name = model._meta.db_table  # noqa: SLF001  Django's documented interface
        fields = model._meta.concrete_fields  # noqa: SLF001
        self._fields: list[Field[Any, Any]] = [field for field in fields if not isinstance(field, AutoField)]
        self.columns = [str(field.column) for field in self._fields]
        self._place = {name: at for at, name in enumerate(self.columns)}
        self._defaults = [field.get_default() for field in self._fields]
        self._texts = [_text(value) for value in self._defaults]

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows; the caller has the transaction."""
        if not rows:
            return
        if connection.vendor == "postgresql":
            self._copy(rows)
        else:
            self._insert(rows)

    def _copy(self, rows: Iterable[Row]) -> None:
        columns = ", ".join(map(connection.ops.quote_name, self.columns))
        with connection.cursor() as cursor, cursor.copy(f"COPY {self.name} ({columns}) FROM STDIN") as copy:
            for row in rows:
                values = self._texts.copy()
                for name, value in row.items():
                    values[self._place[name]] = _text(value)
                copy.write("\t".join(values) + "\n")

    def _insert(self, rows: Iterable[Row]) -> None:
        columns, marks = ", ".join(map(connection.ops.quote_name, self.columns)), ", ".join(["%s"] * len(self.columns))
        sql = f"INSERT INTO {self.name} ({columns}) VALUES ({marks})"  # noqa: S608  names of our own columns
        with connection.cursor() as cursor:
            cursor.executemany(sql, [self._values(row) for row in rows])

    def _values(self, row: Row) -> list[Any]:
        values = self._defaults.copy()
        for name, value in row.items():
            values[self._place[name]] = value
        pairs = zip(self._fields, values, strict=True)
        return [field.get_db_prep_save(value, connection) for field, value in pairs]


def _text(value: Any) -> str:
    """Return a value as COPY reads it."""
    match value:
        case None:
            return "\\N"
        case bool():
            return "t" if value else "f"
        case dt.datetime():
            return value.isoformat()
        case bytes():
            return "\\\\x" + value.hex()
        case dict() | list():
            return _escaped(json.dumps(value))
        case str():
            return _escaped(value) if len(value) < LONG else _escaped_once(value)
        case _:  # a number, an id
            return str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


_escaped_once = lru_cache(maxsize=8)(_escaped)
