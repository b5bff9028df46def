"""One trial: load, faults while at least some runs are running, a calm end, and what the rows say then."""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from agentops import invariants
from agentops.chaos.faults import Faults, Injected
from agentops.chaos.load import Clients, Load
from agentops.chaos.servers import until
from agentops.chaos.stack import HANDLER_GRACE_SECONDS, LEASE_SECONDS, Stack
from quotas.models import Account
from runs import broker, keys
from runs.models import Run, Transition
from runs.states import INTERRUPT, RETAKE, TERMINAL, RunState
from workers.selectors import queue_names

RUNNING_LEAST = 5
CALM_SECONDS = 300.0
SETTLE_SECONDS = 60.0
TELL_SECONDS = 10.0
HEALTHY_SECONDS = 30.0
TAKEN = (RETAKE.event, INTERRUPT.event)
CLOCK_SLACK_SECONDS = 1.0


@dataclass(slots=True)
class Report:
    """What a trial did and found. `problems` empty: every invariant held."""

    seed: int
    servers: list[str]
    runs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, dict[str, int]] = field(default_factory=dict)  # kind: {injected, runs_hit}
    takeover_seconds: list[float] = field(default_factory=list)
    fenced_attempts: int = 0
    attempts: int = 0
    drift: int = 0
    viewers: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def injected(self) -> int:
        return sum(counts["injected"] for counts in self.faults.values())


class Trial:
    """Runs a trial on a stack that is up. `say` is told how it goes."""

    def __init__(self, stack: Stack, *, runs: int, seconds: float, seed: int, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._runs = runs
        self._seconds = seconds
        self._say = say
        self._dice = random.Random(seed)  # noqa: S311  repeatable, not secret
        self._faults = Faults(stack, self._dice)
        self._clients = Clients(stack, runs=runs, seconds=seconds * 0.95, dice=random.Random(seed + 1))  # noqa: S311
        self._injected: list[tuple[float, Injected]] = []  # wall time, fault
        self._lasting: list[tuple[float, Injected]] = []  # monotonic time of its end, fault
        self.report = Report(seed, servers_of())

    def run(self) -> Report:
        began = time.monotonic()
        Account.objects.update(limit=10**15, max_in_flight=10**6)
        self._clients.start()
        self._break_things(began + self._seconds)
        self._say("No more faults. Waiting for every run to end.")
        self._heal()
        self._wait_for_the_end()
        self._clients.stop()
        self._look(self._clients.load)
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    # -- breaking --------------------------------------------------------------------------------------------------
    def _break_things(self, end: float) -> None:
        kinds, told = self._in_turn(), 0.0
        due = time.monotonic() + 5
        for _ in until(end - time.monotonic(), 0.1):
            self._undo(time.monotonic())
            if time.monotonic() >= due and not self._lasting:
                running = self._running()
                if running >= RUNNING_LEAST:
                    self._inject(next(kinds), running)
                    due = time.monotonic() + self._dice.uniform(1.5, 3.5)
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                self._tell(end - told)

    def _in_turn(self) -> Iterator[str]:
        """Yield the kinds in a shuffled order, every kind once before any comes again."""
        while True:
            kinds = sorted(self._faults.kinds)
            self._dice.shuffle(kinds)
            yield from kinds

    def _inject(self, kind: str, running: int) -> None:
        at, owned = time.time(), self._running_by_pid()
        try:
            fault = self._faults.inject(kind)
        except (OSError, IndexError, RedisError) as error:  # nothing to break just now: a worker that starts, say
            self._say(f"  {kind}: not now ({error})")
            return
        strikes_all = not fault.pids or kind == "kill the web"
        fault.hit = running if strikes_all else sum(owned[pid] for pid in fault.pids)
        lasts = f", {fault.seconds:.1f} s" if fault.seconds else ""
        self._say(f"  {kind}: hit {fault.hit} of {running} running runs{lasts}")
        self._injected.append((at, fault))
        self._lasting.append((time.monotonic() + fault.seconds, fault))

    def _undo(self, now: float) -> None:
        for one in [one for one in self._lasting if one[0] <= now]:
            self._lasting.remove(one)
            one[1].undo()

    def _heal(self) -> None:
        self._undo(float("inf"))
        self._stack.heal()

    def _running(self) -> int:
        try:
            return Run.objects.filter(state=RunState.RUNNING).count()
        except DatabaseError:
            connection.close()
            return 0

    def _running_by_pid(self) -> Counter[int]:
        owners = Run.objects.filter(state=RunState.RUNNING).values_list("worker", flat=True)
        return Counter(_pid_of(worker) for worker in owners)

    def _tell(self, left: float) -> None:
        load = self._clients.load
        self._say(
            f"{len(load.accepted)} runs accepted, {self._running()} running, {len(self._injected)} faults; "
            f"{max(0.0, left):.0f} s to go"
        )

    # -- the end ---------------------------------------------------------------------------------------------------
    def _wait_for_the_end(self) -> None:
        told = time.monotonic()
        for _ in until(CALM_SECONDS, 0.5):
            left = Run.objects.exclude(state__in=[str(state) for state in TERMINAL]).count()
            if self._clients.done and not left and not self._left():
                return
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                self._say(f"{left} runs have not ended")

    def _left(self) -> dict[str, int]:
        streams = [name for queue in queue_names() for name in keys.ready_streams(queue)]
        return invariants.left_in_queues(broker.client(), [*streams, *settings.EXTRA_STREAMS], queue_names())

    def _look(self, load: Load) -> None:
        report, runs = self.report, list(Run.objects.defer("input_json", "result_json"))
        report.runs = len(load.accepted)
        report.outcomes = dict(Counter(str(run.state) for run in runs))
        report.statuses = {str(status): count for status, count in sorted(load.statuses.items())}
        report.viewers = len(load.viewed)
        lost = set(load.accepted) - {str(run.pk) for run in runs}
        problems = [f"{run_id} was accepted and is not there" for run_id in sorted(lost)]
        problems += [f"{len(load.accepted) - len(set(load.accepted))} answers named a run twice"] * (
            len(load.accepted) != len(set(load.accepted))
        )
        problems += invariants.unended(runs)
        drift = invariants.money_drift(Account.objects.all())
        report.drift = len(drift)
        for run in runs:
            problems += invariants.broken_log(run, gaps=True)
        problems += [f"left in Redis: {name}: {count}" for name, count in self._left().items()]
        problems += self._double_work(runs)
        ends = {str(run.pk): f"{run.fence}-1" for run in runs}
        problems += [
            f"a viewer of {run} saw {last} last, not {ends[run]}"
            for run, last in load.viewed.items()
            if last != ends[run]
        ]
        if len(load.accepted) != self._runs:
            problems.append(f"{len(load.accepted)} runs were accepted of {self._runs}")
        if not self._injected:
            problems.append("nothing was broken: at no moment were enough runs running")
        report.problems = [*problems, *drift, *load.broken_answers, *load.viewer_problems]
        self._count(runs)

    def _double_work(self, runs: list[Run]) -> list[str]:
        """P2, by the agents' own log. A frozen worker may work on for as long as it takes to stop it."""
        lines = probe_lines(self._stack.plan.probe_log)
        ids = [run.pk for run in runs]
        frozen = {pid for _, fault in self._injected if fault.frozen for pid in fault.pids}
        awake = [line for line in lines if _pid_of(line["worker"]) not in frozen]
        longest = max([fault.seconds for _, fault in self._injected if fault.frozen], default=0.0)
        grace = HANDLER_GRACE_SECONDS + CLOCK_SLACK_SECONDS
        return [
            *invariants.double_work(awake, ids, overlap=grace),
            *invariants.shared_sessions(awake, runs, overlap=grace),
            *invariants.double_work(lines, ids, overlap=longest + LEASE_SECONDS + grace),
        ]

    def _count(self, runs: list[Run]) -> None:
        report = self.report
        found: dict[str, dict[str, int]] = defaultdict(lambda: {"injected": 0, "runs_hit": 0})
        for _, fault in self._injected:
            found[fault.kind]["injected"] += 1
            found[fault.kind]["runs_hit"] += fault.hit
        report.faults = dict(sorted(found.items()))
        killed = [(at, fault.pids) for at, fault in self._injected if fault.kind == "kill a worker"]
        taken = Transition.objects.filter(kind__in=TAKEN).select_related(None).order_by("at")
        owners = dict(_owners(runs))
        for row in taken:
            pid = owners.get((row.run_id, row.fence - 1))
            deaths = [at for at, pids in killed if pid in pids and at <= row.at.timestamp()]
            if deaths:
                report.takeover_seconds.append(round(row.at.timestamp() - deaths[-1], 2))
        ended = {
            (line["run"], line["fence"]) for line in probe_lines(self._stack.plan.probe_log) if line["phase"] == "end"
        }
        moved = {(str(run.pk), fence) for run in runs for fence in _won(run)}
        report.fenced_attempts = len(ended - moved)
        report.attempts = sum(run.attempts.count() for run in runs)


def _won(run: Run) -> list[int]:
    """Return the fences whose owner moved the run itself: only owners write `prev`."""
    return [row.fence - 1 for row in run.transitions.exclude(prev="")]


def _owners(runs: list[Run]) -> Iterator[tuple[tuple[Any, int], int]]:
    for run in runs:
        for attempt in run.attempts.all():
            yield (run.pk, attempt.fence), _pid_of(attempt.worker)


def _pid_of(worker: str) -> int:
    """Return the pid in a worker's unique name, `<name>-<pid>-<random>`."""
    return int(worker.rsplit("-", 2)[1])


def probe_lines(path: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def servers_of() -> list[str]:
    """Return the servers by their own words."""
    info = broker.client().info("server")
    name = info.get("server_name", "redis")
    version = info.get("valkey_version") or info.get("redis_version")
    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()" if connection.vendor == "sqlite" else "SELECT version()")
        database = str(cursor.fetchone()[0])
    return [database if connection.vendor != "sqlite" else f"SQLite {database}", f"{name} {version}"]
