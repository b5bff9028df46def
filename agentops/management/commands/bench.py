"""`manage.py bench`: measure the running services and count what a run costs. `bench fill`: many made-up runs.

Exit codes: 0 measured and within budget (or the database is not PostgreSQL, for which the budget is written), filled or
removed; 1 a station is above its budget, or no worker answered; 2 refused to fill; 4 no instance.
"""

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connection
from rich.console import Console
from rich.progress import Progress

from agentops.benchmark import cost, fill, speed
from agentops.counting import Counted
from quotas.command import DONE, FAILED
from quotas.models import AMOUNT_MAX, Account
from runs.command import RunCommand

ACCOUNT = "bench"
SIZES = (1, 16)


class Command(RunCommand):
    help = "Measure submit, dispatch and drain of the running services, and count what a run costs them; or fill them."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("what", nargs="?", choices=("measure", "fill"), default="measure")
        parser.add_argument("--runs", type=int, default=100_000, help="fill: how many runs are made up (100,000)")
        parser.add_argument("--dead", type=int, default=10_000, help="fill: how many of them are dead letters (10,000)")
        parser.add_argument("--force", action="store_true", help="fill: although there are other runs here")
        parser.add_argument("--remove", action="store_true", help="fill: take away what was made up")
        parser.add_argument("--samples", type=int, default=100, help="runs submitted one by one (100)")
        parser.add_argument("--drain", type=int, default=500, help="runs queued at once for the drain rate (500)")
        parser.add_argument("--cost-only", action="store_true", help="count costs only: needs no worker")

    def run(self, options: dict[str, Any]) -> int:
        if options["what"] == "fill":
            return self._remove() if options["remove"] else self._fill(options)
        if options["remove"]:
            self.usage("--remove belongs to `bench fill`.")
        account = _account()
        costs = {size: cost.measure(account, size) for size in SIZES}
        figures: dict[str, Any] = {
            "database": connection.vendor,
            "cost": {str(size): {name: _figures(c) for name, c in found.items()} for size, found in costs.items()},
            "budget": {
                name: {"transactions": t, "statements": s, "round_trips": r} for name, (t, s, r) in cost.BUDGET.items()
            },
            "within_budget": all(all(cost.within(found).values()) for found in costs.values()),
        }
        if not options["cost_only"]:
            figures |= self._speed(account, options)
        self._print(figures, costs)
        return DONE if figures["within_budget"] or connection.vendor != "postgresql" else FAILED

    def _fill(self, options: dict[str, Any]) -> int:
        runs, dead = max(1, options["runs"]), max(0, options["dead"])
        fill.check(runs=runs, dead=dead, force=options["force"])
        began = time.monotonic()
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("runs", total=runs)
            fill.Filling(runs=runs, dead=dead).run(lambda more: progress.advance(task, more))
        seconds = round(time.monotonic() - began, 1)
        if self.as_json:
            self.emit({"database": connection.vendor, "runs": runs, "dead": dead, "seconds": seconds})
        self.say(f"{runs:,} runs and {dead:,} dead letters in {seconds} s. `bench fill --remove` takes them away.")
        return DONE

    def _remove(self) -> int:
        gone: list[int] = []
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("runs", total=None)

            def tell(more: int) -> None:
                gone.append(more)
                progress.advance(task, more)

            is_whole = fill.remove(tell)
        if self.as_json:
            self.emit({"runs": sum(gone), "ledger": is_whole})
        self.say(f"{sum(gone):,} made-up runs removed.")
        if not is_whole:
            self.say("Their ledger lines and accounts stay: the ledger has lines of others, and is append-only.")
        return DONE

    def _speed(self, account: Account, options: dict[str, Any]) -> dict[str, Any]:
        try:
            with Progress(console=Console(stderr=True), transient=True) as progress:
                one_by_one = progress.add_task("submit and dispatch", total=options["samples"])
                figures: dict[str, Any] = dict(
                    speed.submit_and_dispatch(account, max(2, options["samples"]), lambda: progress.advance(one_by_one))
                )
                progress.add_task("drain", total=None)
                figures["drain"] = speed.drain(account, max(1, options["drain"]))
        except speed.NoWorker as error:
            raise CommandError(" ".join((speed.NoWorker.__doc__ or "").split()), returncode=FAILED) from error
        return figures

    def _print(self, figures: dict[str, Any], costs: dict[int, dict[str, Counted]]) -> None:
        if self.as_json:
            self.emit(figures)
            return
        rows = [
            (name, size, found.transactions, found.statements, found.round_trips, "/".join(map(str, cost.BUDGET[name])))
            for size, stations in costs.items()
            for name, found in stations.items()
        ]
        self.table(("station", "runs", "transactions", "statements", "round trips", "budget"), rows)
        if "drain" in figures:
            timed = [(name, *figures[name].values()) for name in ("submit", "dispatch")]
            self.table(("", "p50 ms", "p95 ms", "p99 ms"), timed)
            drain = figures["drain"]
            self.say(f"drain: {drain['runs']} no-op runs in {drain['seconds']} s, {drain['runs_per_second']} /s")


def _figures(counted: Counted) -> dict[str, int]:
    return {name: getattr(counted, name) for name in ("transactions", "statements", "savepoints", "round_trips")}


def _account() -> Account:
    """Return the benchmark's own account: its figures do not mix with anybody's."""
    defaults = {"limit": AMOUNT_MAX, "period": Account.Period.NONE, "max_in_flight": 1_000_000}
    return Account.objects.get_or_create(name=ACCOUNT, defaults=defaults)[0]
