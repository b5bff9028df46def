"""`workers list|drain|undrain`: the worker processes, a drain of one by name, and its recall.

Exit codes: 0 done, 1 `--wait` ended before the workers had stopped, 2 refused (no worker of that name, or its drain
cannot be recalled any more), 4 no instance.
With `--json`: {results: [worker]}.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from quotas.command import DONE, FAILED, InstanceCommand
from workers.drains import recall_drain, request_drain
from workers.models import WorkerProcess
from workers.selectors import list_workers
from workers.serializers import WorkerOut

LOOK_SECONDS = 0.5


class Command(InstanceCommand):
    help = "List the workers, or have one drain: take nothing more, finish what runs within its grace, stop."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        acts = parser.add_subparsers(dest="act", required=True, metavar="list|drain|undrain")
        listing = acts.add_parser("list", help="those that are alive, newest first")
        listing.add_argument("--all", action="store_true", help="also those that have stopped or died")
        drain = acts.add_parser("drain", help="of all processes of a name, or of one by its full name")
        drain.add_argument("name", metavar="NAME")
        drain.add_argument("--reason", default="", help="kept in the audit log")
        drain.add_argument("--wait", type=float, metavar="SECONDS", help="wait for their end, at most so long")
        undrain = acts.add_parser("undrain", help="have it go on working, while it still waits for its runs")
        undrain.add_argument("name", metavar="NAME")
        undrain.add_argument("--reason", default="", help="kept in the audit log")
        for act in (listing, drain, undrain):  # also after the act, where people write them
            act.add_argument("--json", action="store_true", dest="json_after")

    def handle(self, *args: Any, **options: Any) -> None:
        options["json"] = options["json"] or options["json_after"]
        super().handle(*args, **options)

    def run(self, options: dict[str, Any]) -> int:
        if options["act"] == "list":
            self._show(list_workers(alive=not options["all"])[:500])
            return DONE
        if options["act"] == "undrain":
            self._show(recall_drain(name=options["name"], actor=self.actor, reason=options["reason"].strip()))
            return DONE
        rows = request_drain(name=options["name"], actor=self.actor, reason=options["reason"].strip())
        code = DONE if options["wait"] is None else self._wait(rows, options["wait"])
        self._show(WorkerProcess.objects.filter(pk__in=[row.pk for row in rows]).order_by("name"))
        return code

    def _wait(self, rows: Sequence[WorkerProcess], seconds: float) -> int:
        """Wait for the workers to stop, and tell how many runs they still have."""
        pause, deadline, told = threading.Event(), time.monotonic() + seconds, -1
        alive = list_workers(alive=True).filter(pk__in=[row.pk for row in rows])
        while left := list(alive.all()):
            if time.monotonic() > deadline:
                self.say(f"{len(left)} workers have not stopped after {seconds:g} s.")
                return FAILED
            running = sum(row.running_count for row in left)
            if running != told:
                told = running
                self.say(f"Waiting for {len(left)} workers with {running} runs.")
            pause.wait(LOOK_SECONDS)
        return DONE

    def _show(self, rows: Any) -> None:
        if self.as_json:
            self.emit({"results": [dict(WorkerOut(row).data) for row in rows]})
            return
        now = timezone.now()
        self.table(
            ["id", "state", "runs", "heartbeat", "host", "pid", "queues"],
            [
                [
                    row.name,
                    state_of(row),
                    f"{row.running_count}/{row.concurrency}",
                    f"{max(0.0, (now - row.heartbeat_at).total_seconds()):.0f} s ago",
                    row.host,
                    row.pid,
                    ", ".join(row.queues),
                ]
                for row in rows
            ],
        )


def state_of(row: WorkerProcess) -> str:
    if row.stopped_at is not None:
        return "stopped"
    if row.draining_since is not None:
        return "draining"
    return "asked to drain" if row.drain_requested_at is not None else "working"
