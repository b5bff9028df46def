"""`chaos`: break a throwaway instance on purpose, and look whether the protocol's invariants hold.

Exit codes: 0 they hold, 1 they do not (the report says which), 2 wrong usage, or a server that is not here.
"""

import dataclasses
import json
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser

from agentops.chaos.findings import Report
from agentops.chaos.servers import CannotStart
from agentops.chaos.stack import FOLDER, Plan, Stack
from agentops.chaos.trial import Trial

PROBLEMS_SHOWN = 50


class Command(BaseCommand):
    help = (
        "Start a throwaway instance with servers of its own, let hundreds of runs through while workers, web, Redis and"
        " database are killed, frozen, emptied and cut off, and check the invariants at the end. Touches nothing else."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--runs", type=int, default=500)
        parser.add_argument("--minutes", type=float, default=5.0, help="how long things are broken")
        parser.add_argument("--seed", type=int, help="of an earlier report, to break the same things again")
        parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
        parser.add_argument("--redis", choices=["valkey", "redis"], default="valkey")
        parser.add_argument("--workers", type=int, default=3)
        parser.add_argument("--keep", action="store_true", help="keep the folder with logs and data")
        parser.add_argument("--json", action="store_true", help="the report as one JSON value on stdout")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  Django's signature
        if options["runs"] < 1 or options["minutes"] <= 0 or options["workers"] < 1:
            raise CommandError("--runs, --minutes and --workers take numbers above 0.", returncode=2)
        if FOLDER not in os.environ:
            self._begin(options)
        folder = Path(os.environ[FOLDER])
        seed = options["seed"] if options["seed"] is not None else secrets.randbelow(10**6)
        self._say(f"Seed {seed}. The instance is in {folder}.")
        try:
            report = self._run(Plan.load(folder), seed, options)
        except CannotStart as error:
            raise CommandError(str(error), returncode=2) from error
        self._show(report, as_json=options["json"])
        if not options["keep"] and not report.problems:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self._say(f"Logs and data are kept in {folder}.")
        if report.problems:
            raise SystemExit(1)

    def _begin(self, options: dict[str, Any]) -> NoReturn:
        """Make the folder, and become this command again in an environment that points at the instance."""
        folder = Path(tempfile.mkdtemp(prefix="agentops-chaos-"))
        folder.chmod(0o711)  # PostgreSQL under another user has to reach its own folder
        plan = Plan.make(folder, database=options["database"], redis=options["redis"])
        plan.write()
        os.execve(  # noqa: S606  no shell on purpose
            sys.executable, [sys.executable, *sys.argv], plan.environment(through_proxies=False)
        )

    def _run(self, plan: Plan, seed: int, options: dict[str, Any]) -> Report:
        stack = Stack(plan, workers=options["workers"])
        try:
            stack.start()
            trial = Trial(stack, runs=options["runs"], seconds=options["minutes"] * 60, seed=seed, say=self._say)
            return trial.run()
        finally:
            stack.stop()

    def _say(self, text: str) -> None:
        self.stderr.write(text)

    def _show(self, report: Report, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(dataclasses.asdict(report)))
            return
        for line in lines_of(report):
            self.stdout.write(line)


def lines_of(report: Report) -> list[str]:
    """Return the report for people."""
    times = sorted(report.takeover_seconds)
    outcomes = ", ".join(f"{count} {state}" for state, count in sorted(report.outcomes.items()))
    lines = [
        f"seed                {report.seed}",
        f"servers             {', '.join(report.servers)}",
        f"runs                {report.runs} accepted: {outcomes}; {report.attempts} attempts",
        f"answers             {', '.join(f'{count} x {status}' for status, count in report.statuses.items())}",
        f"faults              {report.injected} of {len(report.faults)} kinds",
    ]
    lines += [
        f"  {kind:24} {count['injected']:3} times, {count['runs_hit']:4} runs hit"
        for kind, count in report.faults.items()
    ]
    if times:
        p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
        lines.append(f"takeovers           {len(times)} after kills: median {times[len(times) // 2]} s, p95 {p95} s")
    lines += [
        f"duplicates fenced   {report.fenced_attempts}",
        f"viewers             {report.viewers} runs watched to their end",
        f"early takeovers     {report.early_takeovers}",
        f"money               {report.booked} booked, {report.reported} of it by attempts that were not fenced",
        f"drift               {report.drift}; {report.open_holds} open holds",
        f"seconds             {report.seconds}",
        f"invariants          {'hold' if not report.problems else f'{len(report.problems)} PROBLEMS'}",
    ]
    return lines + [f"  {problem}" for problem in report.problems[:PROBLEMS_SHOWN]]
