"""Killing what holds runs, and how long each of them stayed with the dead."""

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone

from quotas.models import Account
from runs.models import Run, Transition
from runs.services import cancel_run
from runs.states import TERMINAL
from tests.probes import eventually
from tests.processes.trials import rerun, states, submit

LEFT_BY = {"run.retaken", "run.interrupted"}
RUNS_EACH = 10
LONG_SECONDS = 550  # within an attempt's ten minutes


@dataclass(frozen=True, slots=True)
class Kill:
    """When a worker was killed, and the runs it held then: {run: fence}."""

    at: dt.datetime
    held: dict[UUID, int]

    def left(self) -> list[Transition]:
        """Return how each run left the dead; insists that all have, in the way a takeover goes."""
        rows = [
            row for row in Transition.objects.filter(run_id__in=self.held) if row.fence == self.held[row.run_id] + 1
        ]
        assert len(rows) == len(self.held)
        assert {row.kind for row in rows} <= LEFT_BY
        return rows

    def seconds(self) -> list[float]:
        """Return for each run the seconds from the kill to its leaving, by the database's clock."""
        return [(row.at - self.at).total_seconds() for row in self.left()]


def held_by(worker: str) -> dict[UUID, int]:
    return dict(Run.objects.filter(state="running", worker=worker).values_list("pk", "fence"))


def now() -> dt.datetime:
    return timezone.now()


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that so many per cent do not exceed."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def spread(values: Sequence[float]) -> str:
    return f"p50 {percentile(values, 50):.2f} s, p95 {percentile(values, 95):.2f} s, max {max(values):.2f} s"


def have_waiting(account: Account, least: int) -> list[Run]:
    """Submit long runs, by turns of both policies, until so many wait. Returns the new ones."""
    waiting = Run.objects.filter(account=account, state="queued").count()
    long = {"agent": "probe.sleep", "seconds": LONG_SECONDS}
    new = range(max(0, least - waiting))
    return [rerun(account, attempts=20, **long) if number % 2 else submit(account, **long) for number in new]


def end_all(runs: Sequence[Run], *, timeout: float) -> None:
    """Cancel what has not ended, and wait for the ends."""
    for run in runs:
        cancel_run(run_id=run.pk, actor="test")

    def ended() -> None:
        assert set(states(runs)) <= {str(state) for state in TERMINAL}

    eventually(ended, timeout=timeout, interval=0.2)
