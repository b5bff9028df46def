"""`cancel_runs ID…` or `cancel_runs --state queued --agent NAME --yes`: cancel runs by id or by filter.

Exit codes: 0 all of them are cancelled or asked to stop, 1 at least one had ended already, 2 wrong usage, no such
run or not confirmed, 4 no instance. With `--json`: {results: [{run, what}], count}.
"""

import sys
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser
from rich.console import Console
from rich.progress import track

from quotas.command import DONE, FAILED
from quotas.database import exactly
from runs.command import RunCommand
from runs.selectors import get_run, list_runs
from runs.services.cancel import cancel_run
from runs.states import OPEN

STATES = sorted(state.value for state in OPEN)


class Command(RunCommand):
    help = "Cancel runs by id, or all open runs that match the filters."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("runs", nargs="*", metavar="ID")
        parser.add_argument("--state", choices=STATES)
        parser.add_argument("--agent")
        parser.add_argument("--session")
        parser.add_argument("--reason", default="", help="kept in the audit trail")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def run(self, options: dict[str, Any]) -> int:
        account = self.account
        filters = {name: options[name] for name in ("state", "agent", "session") if options[name]}
        if bool(options["runs"]) == bool(filters):
            self.usage("Name runs by id, or give at least one of --state, --agent, --session.")
        if filters:
            plain = {name: value for name, value in filters.items() if name != "session"}
            rows = list_runs(account, **plain).filter(state__in=OPEN)
            if options["session"]:
                rows = rows.filter(exactly("session", options["session"]))
            ids = list(rows.values_list("pk", flat=True))
            self._confirm(len(ids), filters, is_sure=options["yes"])
        else:
            # All of them are looked up first: a mistyped id cancels nothing.
            ids = [get_run(self.run_id(text), account).pk for text in options["runs"]]
        results = [self._cancel(run_id, options["reason"]) for run_id in self._tracked(ids)]
        if self.as_json:
            self.emit({"results": results, "count": len(results)})
        elif not results:
            self.say(f"No open run matches {_shown(filters)}: nothing was cancelled.")
        else:
            self.table(["run", "what"], [(row["run"], row["what"]) for row in results])
        return FAILED if any(row["what"] == "ended" for row in results) else DONE

    def _cancel(self, run_id: UUID, reason: str) -> dict[str, str]:
        verdict = cancel_run(run_id=run_id, actor=self.actor, account=self.account, reason=reason)
        return {"run": str(run_id), "what": verdict.what, "state": str(verdict.run.state)}

    def _confirm(self, count: int, filters: dict[str, str], *, is_sure: bool) -> None:
        if is_sure or not count:
            return
        if self.as_json or not sys.stdin.isatty():
            what = "1 run matches" if count == 1 else f"{count} runs match"
            self.usage(f"{what} {_shown(filters)}. Add --yes to cancel.")
        what = "1 run that matches" if count == 1 else f"{count} runs that match"
        if input(f"Cancel {what} {_shown(filters)}? [y/N] ").strip().lower() not in {"y", "yes"}:
            self.usage("Nothing was cancelled.")

    @staticmethod
    def _tracked(ids: list[UUID]) -> Iterable[UUID]:
        console = Console(file=sys.stderr)
        return track(ids, "cancelling", console=console, transient=True, disable=not sys.stderr.isatty())


def _shown(filters: dict[str, str]) -> str:
    return " ".join(f"--{name} {value}" for name, value in filters.items())
