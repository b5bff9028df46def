"""`watch_run ID`: follow a run in the terminal until it ends.

Exit codes: 0 succeeded, 1 failed, 2 wrong usage or no such run, 3 cancelled or interrupted, 4 no instance,
130 stopped watching by Ctrl-C (the run goes on). With `--json`: one event a line, then the run.
"""

from typing import Any

from django.core.management.base import CommandParser

from runs.command import RunCommand
from runs.watch import Watcher


class Command(RunCommand):
    help = "Follow a run in the terminal: its text, its progress, how it ended, what it cost."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("run", help="the run's id")
        parser.add_argument("--after", default="", help="start after this event id")

    def run(self, options: dict[str, Any]) -> int:
        watcher = Watcher(
            self.run_id(options["run"]),
            account=self.account,
            write=self.write_raw,
            as_json=self.as_json,
        )
        return watcher.watch(after=options["after"])
