"""The ledger is append-only in the database itself: triggers refuse to delete a line, and to change one.

Only its texts may be emptied (`prune --account`). A migration that lets SQLite make the table anew, or adds a column to
it, has to `install` them again: SQLite drops triggers with the old table, and a trigger knows the columns of its time.
"""

from django.db import DatabaseError, connection
from django.db.models import Model

from quotas.models import LedgerEntry

TABLE = "quotas_ledgerentry"
EMPTIED = ("actor", "reason")
FUNCTION = "quotas_ledger_append_only()"
MESSAGE = "The ledger is append-only."
CHANGE, DELETE, TRUNCATE = "ledger_no_change", "ledger_no_delete", "ledger_no_truncate"
NAMES = {"sqlite": {CHANGE, DELETE}, "mysql": {CHANGE, DELETE}, "postgresql": {CHANGE, DELETE, TRUNCATE}}
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


def missing() -> set[str]:
    """Return the names of the triggers that are not there, or are disabled."""
    return NAMES[connection.vendor] - _installed()


def install(model: type[Model] = LedgerEntry) -> bool:
    """Put the triggers on the table with the columns of `model`. False where the server does not allow us to."""
    try:
        remove()
        fields = model._meta.local_concrete_fields  # noqa: SLF001  Django's documented interface
        _execute(*_statements([str(field.column) for field in fields]))
    except DatabaseError as error:
        if connection.vendor != "mysql" or not error.args or error.args[0] not in NOT_ALLOWED:
            raise
        return False
    return True


def remove() -> None:
    """Take the triggers away."""
    on = f" ON {TABLE}" if connection.vendor == "postgresql" else ""
    names = NAMES[connection.vendor]
    if (
        connection.vendor == "mysql"
    ):  # where the server does not allow it, not even `IF EXISTS` for one that is not there
        names = names & _installed()
    _execute(*(f"DROP TRIGGER IF EXISTS {name}{on}" for name in sorted(names)))


def _statements(columns: list[str]) -> list[str]:
    is_same = {
        "sqlite": "OLD.{0} IS NEW.{0}",
        "mysql": "BINARY OLD.{0} <=> BINARY NEW.{0}",
        "postgresql": "OLD.{0} IS NOT DISTINCT FROM NEW.{0}",
    }[connection.vendor]
    is_empty = "LENGTH(NEW.{0}) = 0"
    quoted = {column: connection.ops.quote_name(column) for column in columns}
    allowed = " AND ".join(
        f"({is_same} OR {is_empty})".format(name) if column in EMPTIED else is_same.format(name)
        for column, name in quoted.items()
    )
    if connection.vendor == "sqlite":
        refuse = f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END"
        return [
            f"CREATE TRIGGER {CHANGE} BEFORE UPDATE ON {TABLE} WHEN NOT ({allowed}) {refuse}",
            f"CREATE TRIGGER {DELETE} BEFORE DELETE ON {TABLE} {refuse}",
        ]
    if connection.vendor == "mysql":
        # The number of a refused foreign key: an error of integrity, not of the connection.
        refuse = f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{MESSAGE}', MYSQL_ERRNO = 1451"
        return [
            f"CREATE TRIGGER {CHANGE} BEFORE UPDATE ON {TABLE} FOR EACH ROW IF NOT ({allowed}) THEN {refuse}; END IF",
            f"CREATE TRIGGER {DELETE} BEFORE DELETE ON {TABLE} FOR EACH ROW {refuse}",
        ]
    refuse = f"EXECUTE FUNCTION {FUNCTION}"
    function = (
        f"CREATE OR REPLACE FUNCTION {FUNCTION} RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" RAISE EXCEPTION '{MESSAGE}' USING ERRCODE = 'restrict_violation'; END $$"
    )
    return [
        function,
        f"CREATE TRIGGER {CHANGE} BEFORE UPDATE ON {TABLE} FOR EACH ROW WHEN (NOT ({allowed})) {refuse}",
        f"CREATE TRIGGER {DELETE} BEFORE DELETE ON {TABLE} FOR EACH ROW {refuse}",
        f"CREATE TRIGGER {TRUNCATE} BEFORE TRUNCATE ON {TABLE} FOR EACH STATEMENT {refuse}",
    ]


def _installed() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(INSTALLED[connection.vendor], [TABLE])
        return {str(name) for (name,) in cursor.fetchall()}


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
