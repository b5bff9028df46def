"""What our commands share: finding the instance, the account, `--json`, tables, and exit codes.

Exit codes of all of them: 0 done; 1 the thing asked about failed; 2 wrong usage, or refused and nothing was changed;
3 cancelled or interrupted; 4 no instance answers; 130 stopped by Ctrl-C.
"""

import datetime as dt
import getpass
import io
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connection
from rich.console import Console
from rich.table import Table

from quotas.errors import Refusal
from quotas.models import Account

WHOLE = frozenset({"id", "run", "reason", "state"})  # columns that are never wrapped
NOT_A_TERMINAL = 400  # columns of a table that goes to a file or a pipe
DONE, FAILED, REFUSED, CANCELLED, NO_INSTANCE, STOPPED = 0, 1, 2, 3, 4, 130


class InstanceCommand(BaseCommand, ABC):
    """A command against an instance that exists. Subclasses write `run`, which returns the exit code."""

    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
        parser.add_argument("--account", default="default", help="the account to act for (default)")

    def handle(self, *_args: Any, **options: Any) -> None:
        self.as_json: bool = options["json"]
        self.account_name: str = options["account"]
        try:
            self.find_instance()
            code = self.run(options)
        except Refusal as refusal:
            self.refuse(refusal)
        except DatabaseError as error:
            self.no_instance(f"the database says: {error}")
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=STOPPED) from None
        if code != DONE:
            raise SystemExit(code)

    @abstractmethod
    def run(self, options: dict[str, Any]) -> int:
        """Do the work and return the exit code."""

    def find_instance(self) -> None:
        """Stop with one sentence unless the database of an instance is there."""
        path = connection.settings_dict["NAME"]
        # SQLite would make an empty file of a name it does not know.
        if connection.vendor == "sqlite" and "mode=memory" not in str(path) and not Path(path).exists():
            self.no_instance(f"there is no database {path}")
        try:
            Account.objects.exists()
        except DatabaseError as error:
            self.no_instance(f"the database says: {str(error).strip()}")

    def no_instance(self, why: str) -> NoReturn:
        """Stop: nothing runs where we looked."""
        raise CommandError(
            f"No AgentOps instance was found: {why}. Start one with `./run up`, or point AGENTOPS_DATA_DIR"
            f" (now {settings.DATA_DIR}), or DATABASE_URL and REDIS_URL, at the one you mean.",
            returncode=NO_INSTANCE,
        )

    def refuse(self, refusal: Refusal) -> NoReturn:
        """Stop with a refusal's sentence, or with its facts as JSON on stdout as well."""
        if self.as_json:
            self.emit({"code": refusal.code, "detail": refusal.message, **refusal.facts})
        lines = [refusal.message, *(_line(error) for error in refusal.facts.get("errors", ()))]
        raise CommandError("\n".join(lines), returncode=REFUSED)

    def usage(self, message: str) -> NoReturn:
        """Stop: the command was called in a wrong way."""
        raise CommandError(message, returncode=REFUSED)

    @property
    def account(self) -> Account:
        """The account of `--account`; stops where there is none of that name."""
        row = Account.objects.filter(name=self.account_name).first()
        if row is None:
            known = ", ".join(Account.objects.values_list("name", flat=True)[:10]) or "none"
            self.usage(f"There is no account {self.account_name!r}. There are: {known}.")
        return row

    @property
    def actor(self) -> str:
        """The name written to audit and transitions."""
        try:
            return f"command:{getpass.getuser()}"[:150]
        except (KeyError, OSError):  # a container's user without a name
            return "command"

    def emit(self, value: Any) -> None:
        """Print one JSON value."""
        self.stdout.write(as_line(value))

    def say(self, text: str) -> None:
        """Print a line for people; silent with `--json`."""
        if not self.as_json:
            self.stdout.write(text)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table for people."""
        made = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:  # an id that is cut or folded cannot be copied
            made.add_column(name, no_wrap=name in WHOLE, overflow="fold")
        for row in rows:
            made.add_row(*("" if cell is None else str(cell) for cell in row))
        out = io.StringIO()
        width = shutil.get_terminal_size((NOT_A_TERMINAL, 24)).columns
        Console(file=out, width=max(width, 80), markup=False, highlight=False).print(made)
        lines = (line.rstrip() for line in out.getvalue().splitlines())
        self.stdout.write("\n".join(lines))


def _line(error: Any) -> str:
    return f"  {error.get('path') or 'input'}: {error.get('message')}" if isinstance(error, dict) else str(error)


def as_line(value: Any) -> str:
    """Return a value as one line of JSON; times are ISO 8601, ids are texts."""
    return json.dumps(value, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, dt.datetime) else str(value)


def micro(amount: int) -> str:
    """Return an amount of micro-units for people, in credits."""
    return f"{amount / 1_000_000:.6f}".rstrip("0").rstrip(".") or "0"
