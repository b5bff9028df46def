"""`manage.py bench`: measure the running services and count what a run costs.

Exit codes: 0 measured and within budget (or the database is not PostgreSQL, for which the budget is written); 1 a
station is above its budget, or no worker answered; 4 no instance.
"""

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connection
from rich.console import Console
from rich.progress import Progress

from agentops.benchmark import cost, speed
from agentops.counting import Counted
from quotas.command import DONE, FAILED
from quotas.models import AMOUNT_MAX, Account
from runs.command import RunCommand

ACCOUNT = "bench"
SIZES = (1, 16)


class Command(RunCommand):
    help = "Measure submit, dispatch and drain of the running services, and count what a run costs them."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--samples", type=int, default=100, help="runs submitted one by one (100)")
        parser.add_argument("--drain", type=int, default=500, help="runs queued at once for the drain rate (500)")
        parser.add_argument("--cost-only", action="store_true", help="count costs only: needs no worker")

    def run(self, options: dict[str, Any]) -> int:
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
