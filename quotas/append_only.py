"""Ledger and audit log are append-only in the database itself: triggers refuse to delete a line, and to change one.

Only their texts may be emptied (`prune --account`). A migration that lets SQLite make such a table anew, or adds a
column to it, has to `install` them again: SQLite drops triggers with the old table, and a trigger knows the columns of
its time.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db import DatabaseError, connection
from django.db.models import Field, Model

from quotas.models import AuditEntry, LedgerEntry

FUNCTION = "quotas_append_only"
# Of MySQL without the privilege: TRIGGER is missing, or a binary log is kept and SUPER is missing.
NOT_ALLOWED = {1142, 1227, 1419}
INSTALLED = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s",
    "mysql": (
        "SELECT trigger_name FROM information_schema.triggers"
        " WHERE trigger_schema = DATABASE() AND event_object_table = %s"
    ),
    "postgresql": "SELECT tgname FROM pg_trigger WHERE tgrelid = (%s)::regclass AND tgenabled <> 'D'",
}


@dataclass(frozen=True)
class Guard:
    """A table that is kept, and the columns of it that may be emptied."""

    model: type[Model]
    called: str
    emptied: frozenset[str]

    @property
    def table(self) -> str:
        return str(self.model._meta.db_table)  # noqa: SLF001  Django's documented interface

    @property
    def message(self) -> str:
        return f"The {self.called} is append-only."

    def name(self, verb: str) -> str:
        """Return the name of the trigger that refuses to "change", "delete" or "truncate"."""
        return f"{self.called.split()[0]}_no_{verb}"

    @property
    def names(self) -> set[str]:
        """The triggers this server can have."""
        verbs = ("change", "delete", "truncate") if connection.vendor == "postgresql" else ("change", "delete")
        return {self.name(verb) for verb in verbs}


LEDGER = Guard(LedgerEntry, "ledger", frozenset({"actor", "reason"}))
AUDIT = Guard(AuditEntry, "audit log", frozenset({"before", "after", "reason"}))
GUARDS = (LEDGER, AUDIT)


def missing(guards: Iterable[Guard] = GUARDS) -> set[str]:
    """Return the names of the triggers that are not there, or are disabled."""
    return {name for guard in guards for name in guard.names - _installed(guard)}


def install(guards: Iterable[Guard] = GUARDS, model: type[Model] | None = None) -> bool:
    """Put the triggers on the tables, with the columns of `model`: the one of a migration's time, for its one guard.

    False where the server does not allow us to.
    """
    try:
        for guard in guards:
            remove([guard])
            fields = (model or guard.model)._meta.local_concrete_fields  # noqa: SLF001  as above
            _execute(*_statements(guard, fields))
    except DatabaseError as error:
        if connection.vendor != "mysql" or not error.args or error.args[0] not in NOT_ALLOWED:
            raise
        return False
    return True


def remove(guards: Iterable[Guard] = GUARDS) -> None:
    """Take the triggers away."""
    for guard in guards:
        on = f" ON {guard.table}" if connection.vendor == "postgresql" else ""
        # Where MySQL does not allow it, not even `IF EXISTS` for one that is not there.
        names = guard.names & _installed(guard) if connection.vendor == "mysql" else guard.names
        _execute(*(f"DROP TRIGGER IF EXISTS {name}{on}" for name in sorted(names)))


def _statements(guard: Guard, fields: Collection["Field[object, object]"]) -> list[str]:
    table, message = guard.table, guard.message
    change, delete, truncate = (guard.name(verb) for verb in ("change", "delete", "truncate"))
    allowed = " AND ".join(_let_through(field, may_be_emptied=field.name in guard.emptied) for field in fields)
    if connection.vendor == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        return [
            f"CREATE TRIGGER {change} BEFORE UPDATE ON {table} WHEN NOT ({allowed}) {refuse}",
            f"CREATE TRIGGER {delete} BEFORE DELETE ON {table} {refuse}",
        ]
    if connection.vendor == "mysql":
        # The number of a refused foreign key: an error of integrity, not of the connection.
        refuse = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{message}', MYSQL_ERRNO = 1451"
        return [
            f"CREATE TRIGGER {change} BEFORE UPDATE ON {table} FOR EACH ROW IF NOT ({allowed}) THEN {refuse}; END IF",
            f"CREATE TRIGGER {delete} BEFORE DELETE ON {table} FOR EACH ROW {refuse}",
        ]
    refuse = f"EXECUTE FUNCTION {FUNCTION}('{message}')"
    function = (
        f"CREATE OR REPLACE FUNCTION {FUNCTION}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'restrict_violation'; END $$"
    )
    return [
        function,
        f"CREATE TRIGGER {change} BEFORE UPDATE ON {table} FOR EACH ROW WHEN (NOT ({allowed})) {refuse}",
        f"CREATE TRIGGER {delete} BEFORE DELETE ON {table} FOR EACH ROW {refuse}",
        f"CREATE TRIGGER {truncate} BEFORE TRUNCATE ON {table} FOR EACH STATEMENT {refuse}",
    ]


def _let_through(field: "Field[object, object]", *, may_be_emptied: bool) -> str:
    """Return the condition under which an UPDATE may go on, as far as this column is concerned."""
    is_same = {
        "sqlite": "OLD.{0} IS NEW.{0}",
        "mysql": "BINARY OLD.{0} <=> BINARY NEW.{0}",
        "postgresql": "OLD.{0} IS NOT DISTINCT FROM NEW.{0}",
    }[connection.vendor]
    is_empty = "NEW.{0} IS NULL" if field.null else "LENGTH(NEW.{0}) = 0"
    condition = f"({is_same} OR {is_empty})" if may_be_emptied else is_same
    return condition.format(connection.ops.quote_name(str(field.column)))


def _installed(guard: Guard) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(INSTALLED[connection.vendor], [guard.table])
        return {str(name) for (name,) in cursor.fetchall()}


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
