"""`set_priority ID PRIORITY`: another priority for a run that waits.

Exit codes: 0 it has the priority now, 2 wrong usage, no such run, one that does not wait, or a priority above what the
account may use, 4 no instance. With `--json`: the run.
"""

from typing import Any

from django.core.management.base import CommandParser

from quotas.command import DONE
from quotas.models import Priority
from runs.command import RunCommand, run_facts
from runs.selectors import get_run
from runs.services.reprioritise import reprioritise


class Command(RunCommand):
    help = "Change the priority of a queued or scheduled run."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("run", metavar="ID")
        parser.add_argument("priority", choices=Priority.values)
        parser.add_argument("--reason", default="", help="kept in the audit trail")

    def run(self, options: dict[str, Any]) -> int:
        run_id = get_run(self.run_id(options["run"]), self.account).pk
        run = reprioritise(run_id, options["priority"], self.actor, reason=options["reason"])
        if self.as_json:
            self.emit({**run_facts(run), "priority": run.priority})
        self.say(f"{run.pk}: priority {run.priority}")
        return DONE
