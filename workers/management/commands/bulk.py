"""`bulk list|show|abort`: follow bulk operations and stop one.

Exit codes: 0 done, 2 wrong usage or refused, 4 no instance. With `--json`: list {results}, show and abort the
operation. Operations are of all accounts: whoever has a shell on the instance sees them.
"""

import argparse
import datetime as dt
from typing import Any

from django.core.management.base import CommandParser

from quotas.command import DONE, InstanceCommand
from quotas.display import moment
from workers.bulk import operations
from workers.models import BulkOperation

LIMIT_MAX = 10_000
COLUMNS = ("id", "state", "kind", "source", "done", "refused", "failed", "total", "actor", "created_at")


class Command(InstanceCommand):
    help = "List bulk operations, show how far one is, or abort one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|show|abort")
        listing = acts.add_parser("list", help="newest first")
        listing.add_argument("--state", choices=[*BulkOperation.State.values, "all"], default="all")
        listing.add_argument("--limit", type=int, default=50)
        show = acts.add_parser("show", help="one operation")
        abort = acts.add_parser("abort", help="stop one: what was done stays done")
        abort.add_argument("--reason", required=True)
        for act in (show, abort):
            act.add_argument("id", type=int)
        for act in (listing, show, abort):
            act.add_argument("--json", action="store_true", dest="json_after", help=argparse.SUPPRESS)
        parser.set_defaults(account="")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        if options["act"] == "list":
            return self._list(options["state"], options["limit"])
        if options["act"] == "show":
            return self._show(operations.get_operation(options["id"]))
        return self._show(operations.abort(options["id"], actor=self.actor, reason=options["reason"].strip()))

    def _list(self, state: str, limit: int) -> int:
        if not 1 <= limit <= LIMIT_MAX:
            self.usage(f"--limit must be 1 to {LIMIT_MAX}.")
        rows = BulkOperation.objects.order_by("-pk")
        found = [facts_of(row) for row in (rows if state == "all" else rows.filter(state=state))[:limit]]
        if self.as_json:
            self.emit({"results": found})
        elif found:
            self.table(COLUMNS, [[_cell(row[name]) for name in COLUMNS] for row in found])
        else:
            self.say("There are no bulk operations.")
        return DONE

    def _show(self, operation: BulkOperation) -> int:
        facts = facts_of(operation)
        if self.as_json:
            self.emit(facts)
        else:
            shown = [[name, _cell(value)] for name, value in facts.items()]
            if operation.options.get("edit"):
                shown.append(["input", "edited"])
            self.table(["field", "value"], shown)
        return DONE


def facts_of(operation: BulkOperation) -> dict[str, Any]:
    """Return an operation as scripts read it; an edited input is left out."""
    return {
        "id": operation.pk,
        "state": operation.state,
        "kind": operation.kind,
        "source": operation.source,
        "query": operation.query,
        "options": {name: value for name, value in operation.options.items() if name != "edit"},
        "canary_run": operation.canary_run,
        "pace": operation.pace,
        "total": operation.total,
        "done": operation.done_count,
        "refused": operation.refused_count,
        "failed": operation.failed_count,
        "reserved": operation.reserved,
        "problem": operation.problem,
        "actor": operation.actor,
        "reason": operation.reason,
        "created_at": operation.created_at,
        "finished_at": operation.finished_at,
    }


def _cell(value: Any) -> str:
    """Return a value as people read it; of a dict only what is set."""
    if isinstance(value, dict):
        value = ", ".join(f"{name}={_cell(one)}" for name, one in value.items() if one not in (None, False, ""))
    elif isinstance(value, list | tuple):
        value = ",".join(_cell(one) for one in value)
    elif isinstance(value, dt.datetime):
        return moment(value)
    elif isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in (None, "") else str(value)
