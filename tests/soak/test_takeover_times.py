"""`kill -9` of what holds ten runs, twenty times: how long until the last of them is in other hands (protocol 8)."""

import os
import signal
import sys
import time
from functools import partial

import pytest
from django.conf import settings

from runs import keys
from runs.models import Run
from tests import builders, invariants
from tests.probes import Child, Stack, WorkerProbe, child_env, eventually
from tests.processes.test_up import is_alive
from tests.processes.trials import submit, until
from tests.soak.killing import RUNS_EACH, Kill, end_all, have_waiting, held_by, now, percentile, spread
from workers.models import WorkerProcess

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
KILLS = 20
GROUP = 5
EVERY_SECONDS = 5.0
STARTED_IN = 240.0
LONE_SECONDS, SUPERVISED_SECONDS = 25.0, 2.0  # at the 95th percentile


def kill(pid: int, worker: str) -> Kill:
    """Kill the process, and insist that it held enough runs when it died."""
    held, at = held_by(worker), now()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), timeout=10)
    assert len(held) >= RUNS_EACH
    return Kill(at, held)


def paced(kills: list[Kill], seconds: float) -> bool:
    """Whether the last kill is long enough ago for the next."""
    return not kills or (now() - kills[-1].at).total_seconds() >= seconds


def settle(account, runs: list[Run], kills: list[Kill]) -> list[float]:
    """Let everything end and go on; return the seconds for which runs were with the dead."""
    seconds = [seconds for one in kills for seconds in one.seconds()]
    end_all(runs, timeout=120)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(20)], timeout=60)
    eventually(lambda: invariants.check(account), timeout=60, interval=0.5)
    return seconds


def all_full(workers: list[WorkerProbe]) -> None:
    assert [len(held_by(worker.row.name)) for worker in workers] == [RUNS_EACH] * len(workers)


def test_2a_the_runs_of_a_killed_worker_are_in_other_hands_within_25_seconds(stack: Stack, redis, report):
    """Killed in groups, one a second. No worker starts in between: it would repair after the dead of its machine."""
    account = builders.make_account(max_in_flight=10_000)
    assert settings.LEASE_SECONDS == 15
    workers = [stack.worker(concurrency=RUNS_EACH)]
    runs, kills, sweepers = [], [], 0

    while len(kills) < KILLS:
        new = [WorkerProbe(concurrency=RUNS_EACH) for _ in range(GROUP)]
        stack.together(*new)
        workers += new
        runs += have_waiting(account, (GROUP + 1) * RUNS_EACH)
        eventually(partial(all_full, workers), timeout=STARTED_IN, interval=0.1)
        victims, workers = workers[:GROUP], workers[GROUP:]  # the oldest first: it is the sweeper
        for victim in victims:
            eventually(lambda: paced(kills, 1.0), timeout=5)
            sweepers += redis.get(keys.sweeper()) == victim.row.name.encode()
            kills.append(kill(victim.pid, victim.row.name))
        eventually(lambda: [one.left() for one in kills], timeout=90, interval=0.2)

    seconds = settle(account, runs, kills)
    assert sweepers >= KILLS / GROUP
    assert min(seconds) > settings.LEASE_SECONDS / 2  # it was the lease that ran out
    assert percentile(seconds, 95) <= LONE_SECONDS
    figures = f"{len(kills)} kills -9 of a worker ({sweepers} of the sweeper), {len(seconds)} runs held"
    report("2a", f"{figures}: taken over after {spread(seconds)} (p95 at most {LONE_SECONDS:.0f} s)")


class Fleet(Child):
    """`runworker_streams --processes 2`."""

    def __init__(self, name: str) -> None:
        self.name = name
        options = ["--processes", "2", "--name", name, "--concurrency", str(RUNS_EACH)]
        super().__init__([sys.executable, "manage.py", "runworker_streams", *options], child_env())

    def workers(self) -> list[WorkerProcess]:
        """Return the rows of the workers that are alive, the oldest first."""
        rows = WorkerProcess.objects.filter(name__startswith=f"{self.name}-", stopped_at=None).order_by("started_at")
        return [row for row in rows if is_alive(row.pid)]

    def is_ready(self) -> bool:
        return len(self.workers()) == 2


def full_child(fleets: list[Fleet]) -> WorkerProcess:
    """Return the oldest child whose places are all taken."""
    children = sorted((row for fleet in fleets for row in fleet.workers()), key=lambda row: row.started_at)
    full = [row for row in children if len(held_by(row.name)) >= RUNS_EACH]
    assert full != []
    return full[0]


def test_2b_the_runs_of_a_killed_child_are_in_other_hands_within_2_seconds(stack: Stack, report):
    account = builders.make_account(max_in_flight=10_000)
    fleets = [Fleet("left"), Fleet("right")]
    stack.together(*fleets)
    began = time.monotonic()
    runs, kills = [], []

    while len(kills) < KILLS:
        runs += have_waiting(account, 5 * RUNS_EACH)
        victim = eventually(lambda: full_child(fleets), timeout=STARTED_IN, interval=0.1)
        eventually(lambda: paced(kills, EVERY_SECONDS), timeout=EVERY_SECONDS + 1)
        kills.append(kill(victim.pid, victim.name))
    took = time.monotonic() - began

    eventually(lambda: [one.left() for one in kills], timeout=60, interval=0.2)
    seconds = settle(account, runs, kills)
    assert {row.actor for one in kills for row in one.left()} == {"supervisor"}
    assert [fleet.alive for fleet in fleets] == [True, True]
    assert percentile(seconds, 95) <= SUPERVISED_SECONDS
    figures = f"{len(kills)} kills -9 of a child of --processes 2 in {took:.0f} s, {len(seconds)} runs held"
    report("2b", f"{figures}: taken over after {spread(seconds)} (p95 at most {SUPERVISED_SECONDS:.0f} s)")
