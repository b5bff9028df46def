"""The figures of agents, from the newest runs that ended: outcomes, times, cost, and what says interrupt or rerun.

All are read by one index and bounded: of more runs than are read at once only the newest count, and `since` says so.
Costs are the ledger's: the settlement of each run.
"""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import BigIntegerField, Count, Exists, OuterRef, Q, Subquery, Sum
from django.utils import timezone

from agentops.console.ended import OUTCOMES, Newest, newest, percentile, time_of, wait_of
from agentops.console.latest import Latest
from quotas.database import exactly
from quotas.models import LedgerEntry
from runs.agents import AgentSpec, list_agents
from runs.models import Attempt, Run
from runs.outcomes import ErrorClass
from runs.states import RunState

DAY = dt.timedelta(days=1)
SPANS = (("1 hour", DAY / 24), ("24 hours", DAY), ("7 days", DAY * 7))
REQUEUED_WITHIN = dt.timedelta(hours=1)
MOST = 10_000  # runs of one agent
MOST_OF_EACH = 500  # on the list of all
AGENTS_MOST = 100
FRESH_SECONDS = 15.0
LEAST = 10  # lost or failed runs from which on a share says something
MANY, DEAR = 0.5, 0.1  # shares: of lost runs that were requeued, of the cost that is reruns
COLUMNS = ("state", "finished_at", "queued_at", "started_at", "settled", "retry_of_id", "retried_by_run__submitted_at")
LOST = Q(error_class=ErrorClass.LOST_WORKER.value) | Q(outcome=RunState.INTERRUPTED.value)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the runs that ended in a span. Seconds and micro-units; None where nothing says it."""

    title: str
    since: dt.datetime
    is_cut: bool
    ended: int
    outcomes: dict[str, int]
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
    cost_average: int | None
    cost_p95: int | None
    cost: int

    @property
    def failed_share(self) -> float | None:
        """The part of the ended runs that failed or were interrupted."""
        lost = self.outcomes[RunState.FAILED.value] + self.outcomes[RunState.INTERRUPTED.value]
        return lost / self.ended if self.ended else None


@dataclass(frozen=True, slots=True)
class Choice:
    """What says interrupt or rerun, of the runs that were read. Amounts in micro-units."""

    lost: int  # failed or interrupted
    requeued: int  # of those, by people or programs within REQUEUED_WITHIN
    lost_attempts: int
    lost_cost: int  # of attempts whose worker went
    reruns: int
    rerun_cost: int  # of requeued runs, and of attempts after a lost one
    cost: int  # of all

    @property
    def share(self) -> float | None:
        return self.requeued / self.lost if self.lost else None


def ended_runs(agent: str, since: dt.datetime, most: int) -> Newest:
    """Return the newest ended runs of an agent, rows of COLUMNS."""
    settled = LedgerEntry.objects.filter(settle_key=OuterRef("pk")).values("amount")[:1]
    rows = Run.objects.filter(exactly("agent", agent)).annotate(
        settled=Subquery(settled, output_field=BigIntegerField())
    )
    return newest(rows, since, most, COLUMNS)


def figures_of(found: Newest, title: str, since: dt.datetime) -> Figures:
    """Return the figures of those rows that ended since a moment."""
    rows = [row for row in found.rows if row[1] >= since]
    waits = [seconds for row in rows if (seconds := wait_of(row[2], row[3])) is not None]
    times = [seconds for row in rows if (seconds := time_of(row[3], row[1])) is not None]
    costs = [row[4] for row in rows if row[4] is not None]
    numbers = Counter(row[0] for row in rows)
    dearest = percentile(costs, 0.95)
    return Figures(
        title=title,
        since=max(since, found.since),
        is_cut=found.is_cut and found.since > since,
        ended=len(rows),
        outcomes={name: numbers[name] for name in OUTCOMES},
        wait_p50=percentile(waits, 0.5),
        wait_p95=percentile(waits, 0.95),
        run_p50=percentile(times, 0.5),
        run_p95=percentile(times, 0.95),
        cost_average=round(sum(costs) / len(costs)) if costs else None,
        cost_p95=None if dearest is None else int(dearest),
        cost=sum(costs),
    )


def choice_of(agent: str, found: Newest) -> Choice:
    """Return what the rows of an agent say about interrupt or rerun. Two statements."""
    rows = found.rows
    lost = [row for row in rows if row[0] in {RunState.FAILED, RunState.INTERRUPTED}]
    tried = Attempt.objects.filter(exactly("run__agent", agent), run__finished_at__gte=found.since).order_by()
    gone = tried.filter(LOST).aggregate(number=Count("pk"), cost=Sum("cost", default=0))
    before = Attempt.objects.filter(LOST, run=OuterRef("run"), fence__lt=OuterRef("fence"))
    # A requeued run counts whole: its own later attempts are in its settlement.
    again = tried.filter(Exists(before), run__attempt__gt=1, run__retry_of=None).aggregate(
        number=Count("pk"), cost=Sum("cost", default=0)
    )
    requeued = [row for row in rows if row[5] is not None]
    return Choice(
        lost=len(lost),
        requeued=sum(row[6] is not None and row[6] - row[1] <= REQUEUED_WITHIN for row in lost),
        lost_attempts=gone["number"],
        lost_cost=int(gone["cost"]),
        reruns=len(requeued) + again["number"],
        rerun_cost=sum(row[4] or 0 for row in requeued) + int(again["cost"]),
        cost=sum(row[4] or 0 for row in rows),
    )


def suggestion(choice: Choice, policy: str) -> str:
    """Return one sentence on what the figures say about a policy."""
    if policy == "rerun" and choice.cost and choice.rerun_cost > DEAR * choice.cost:
        share = 100 * choice.rerun_cost // choice.cost
        return f"Reruns are {share} % of the cost: steps keep what is paid, or interrupt leaves the choice to people."
    if choice.lost < LEAST:
        return f"Fewer than {LEAST} runs failed or were interrupted: too few to say whether the policy fits."
    if policy == "interrupt" and (choice.share or 0.0) >= MANY:
        return "Most are requeued soon after: rerun would do it by itself, where an agent may begin again."
    if policy == "interrupt":
        return "Few are requeued soon after: interrupt spends nothing on what nobody asks for again."
    return "Reruns cost little beside the rest: rerun fits."


# -- the list ----------------------------------------------------------------------------------------------------------
def known_names() -> list[str]:
    """Return the names of the first AGENTS_MOST agents that have runs, a step of the index each."""
    names: list[str] = []
    while len(names) < AGENTS_MOST:
        rows = Run.objects.filter(agent__gt=names[-1]) if names else Run.objects.all()
        name = rows.order_by("agent").values_list("agent", flat=True).first()
        if name is None:
            break
        names.append(name)
    return names


@dataclass(frozen=True, slots=True)
class Line:
    """An agent on the list; `spec` is None of one that only its runs know."""

    name: str
    spec: AgentSpec | None
    figures: Figures


def _lines() -> Sequence[Line]:
    since = timezone.now() - DAY
    specs = {spec.name: spec for spec in list_agents()}
    names = sorted({*list(specs)[:AGENTS_MOST], *known_names()})
    return [
        Line(name, specs.get(name), figures_of(ended_runs(name, since, MOST_OF_EACH), "24 hours", since))
        for name in names
    ]


lines = Latest(_lines, FRESH_SECONDS)


def page_of(agent: str) -> dict[str, Any]:
    """Return {spans: [Figures], choice, is_known}: of an agent's last 7 days."""
    now = timezone.now()
    found = ended_runs(agent, now - SPANS[-1][1], MOST)
    spans = [figures_of(found, title, now - length) for title, length in SPANS]
    is_known = bool(found.rows) or Run.objects.filter(exactly("agent", agent)).exists()
    return {"spans": spans, "choice": choice_of(agent, found), "is_known": is_known}
