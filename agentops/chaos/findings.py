"""What the rows, Redis and the agents' own log say after a trial: the invariants, and the figures of the report."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db.models import Sum

from agentops import invariants
from agentops.chaos.faults import Injected
from agentops.chaos.load import Load
from agentops.chaos.stack import HANDLER_GRACE_SECONDS, LEASE_SECONDS
from quotas.models import Account, Hold, LedgerEntry
from runs.models import Attempt, Run, Transition
from runs.states import INTERRUPT, RETAKE

TAKEN = (RETAKE.event, INTERRUPT.event)
LAST_PHASES = ("end", "cancelled", "error")
CLOCK_SLACK_SECONDS = 1.0
Line = dict[str, Any]


@dataclass(slots=True)
class Report:
    """What a trial did and found. `problems` empty: every invariant held."""

    seed: int
    servers: list[str]
    runs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, dict[str, int]] = field(default_factory=dict)  # kind: {injected, runs_hit}
    takeover_seconds: list[float] = field(default_factory=list)
    early_takeovers: int = 0
    fenced_attempts: int = 0
    attempts: int = 0
    drift: int = 0
    open_holds: int = 0
    booked: int = 0  # the sum of the settle lines, in micro-units
    reported: int = 0  # what the agents' own log says of all attempts that were not fenced
    viewers: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def injected(self) -> int:
        return sum(counts["injected"] for counts in self.faults.values())


def look(
    report: Report, load: Load, injected: Sequence[tuple[float, Injected]], probe_log: Path, left: dict[str, int]
) -> None:
    """Fill the report. `injected` are the faults with their wall times, `left` is what Redis still holds."""
    runs, lines = list(Run.objects.defer("input_json", "result_json")), probe_lines(probe_log)
    report.runs = len(load.accepted)
    report.outcomes = dict(Counter(str(run.state) for run in runs))
    report.statuses = {str(status): count for status, count in sorted(load.statuses.items())}
    report.viewers = len(load.viewed)
    drift = invariants.money_drift(Account.objects.all())
    report.drift = len(drift)
    report.problems = [
        *_lost(load, runs),
        *invariants.unended(runs),
        *(problem for run in runs for problem in invariants.broken_log(run, gaps=True)),
        *(f"left in Redis: {name}: {count}" for name, count in left.items()),
        *_double_work(runs, lines, [fault for _, fault in injected]),
        *_missed(load, runs),
        *drift,
        *load.broken_answers,
        *load.viewer_problems,
    ]
    if not injected:
        report.problems.append("nothing was broken: at no moment were enough runs running")
    _count_faults(report, injected)
    _count_takeovers(report, injected, lines)
    _count_money(report, runs, lines)


def _lost(load: Load, runs: Sequence[Run]) -> list[str]:
    accepted = Counter(load.accepted)
    lost = set(accepted) - {str(run.pk) for run in runs}
    twice = [run_id for run_id, count in accepted.items() if count > 1]
    return [
        *(f"{run_id} was accepted and is not there" for run_id in sorted(lost)),
        *(f"{run_id} is the answer to two submits" for run_id in twice),
    ]


def _missed(load: Load, runs: Sequence[Run]) -> list[str]:
    ends = {str(run.pk): f"{run.fence}-1" for run in runs}
    return [
        f"a viewer of {run} saw {last} last, not {ends.get(run)}"
        for run, last in load.viewed.items()
        if last != ends.get(run)
    ]


def _double_work(runs: Sequence[Run], lines: Sequence[Line], faults: Sequence[Injected]) -> list[str]:
    """P2, by the agents' own log. A frozen worker may work on for as long as it takes to stop it."""
    ids = [run.pk for run in runs]
    frozen = {pid for fault in faults if fault.frozen for pid in fault.pids}
    awake = [line for line in lines if pid_of(line["worker"]) not in frozen]
    longest = max([fault.seconds for fault in faults if fault.frozen], default=0.0)
    grace = HANDLER_GRACE_SECONDS + CLOCK_SLACK_SECONDS
    return [
        *invariants.double_work(awake, ids, overlap=grace),
        *invariants.shared_sessions(awake, runs, overlap=grace),
        *invariants.double_work(lines, ids, overlap=longest + LEASE_SECONDS + grace),
    ]


def _count_faults(report: Report, injected: Sequence[tuple[float, Injected]]) -> None:
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"injected": 0, "runs_hit": 0})
    for _, fault in injected:
        found[fault.kind]["injected"] += 1
        found[fault.kind]["runs_hit"] += fault.hit
    report.faults = dict(sorted(found.items()))


def _count_takeovers(report: Report, injected: Sequence[tuple[float, Injected]], lines: Sequence[Line]) -> None:
    """Note how long after a kill each takeover came, and those of workers that nothing had struck."""
    struck = {pid for _, fault in injected for pid in fault.pids}
    struck |= {pid_of(line["worker"]) for line in lines if line["agent"] == "probe.suicide"}
    owners = {
        (run_id, fence): pid_of(worker)
        for run_id, fence, worker in Attempt.objects.values_list("run", "fence", "worker")
    }
    for row in Transition.objects.filter(kind__in=TAKEN, prev="").order_by("at"):
        pid = owners[row.run_id, row.fence - 1]
        killed = [at for at, fault in injected if fault.kind == "kill a worker" and pid in fault.pids]
        deaths = [at for at in killed if at <= row.at.timestamp()]
        if deaths:
            report.takeover_seconds.append(round(row.at.timestamp() - deaths[-1], 2))
        report.early_takeovers += pid not in struck
    if report.early_takeovers:
        report.problems.append(f"{report.early_takeovers} runs were taken from workers that nothing had struck")


def _count_money(report: Report, runs: Sequence[Run], lines: Sequence[Line]) -> None:
    """Compare what the agents say they spent with what was booked, for every attempt that was not fenced."""
    said = {(line["run"], line["fence"]): line["cost"] for line in lines if line["phase"] in LAST_PHASES}
    own = set(_moved_by_owners())
    booked = 0
    for run_id, fence, cost in Attempt.objects.filter(run__in=runs).values_list("run", "fence", "cost"):
        report.attempts += 1
        mine = (str(run_id), fence) in own and (str(run_id), fence) in said
        booked += 0 if mine else cost
        if mine and said[str(run_id), fence] != cost:
            report.problems.append(f"fence {fence} of {run_id} spent {said[str(run_id), fence]}; booked are {cost}")
    report.fenced_attempts = len(set(said) - own)
    report.reported = sum(cost for key, cost in said.items() if key in own)
    report.booked = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.SETTLE).aggregate(n=Sum("amount"))["n"] or 0
    report.open_holds = Hold.objects.exclude(state__in=invariants.CLOSED_HOLDS).count()
    if report.booked != report.reported + booked:
        report.problems.append(
            f"{report.booked} are booked; the agents say {report.reported}, and {booked} were stored of lost attempts"
        )


def _moved_by_owners() -> Iterator[tuple[str, int]]:
    """Yield (run, fence) of the attempts whose owner moved the run itself: only owners write `prev`."""
    for run_id, fence in Transition.objects.exclude(prev="").values_list("run", "fence"):
        yield str(run_id), fence - 1


def pid_of(worker: str) -> int:
    """Return the pid in a worker's unique name, `<name>-<pid>-<random>`."""
    return int(worker.rsplit("-", 2)[1])


def probe_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
