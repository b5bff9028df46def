"""Workers that are killed, frozen or kept busy: their runs end once, by the right hand (protocol 7, 8)."""

import os
import subprocess
import sys
import time

import pytest
from django.conf import settings

from quotas.models import LedgerEntry
from runs.models import Run
from tests import builders, invariants
from tests.probes import ROOT, Stack, WorkerProbe, eventually
from tests.processes.trials import kinds, phases, submit, until, until_begun
from workers.holder import HOLD_MS

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
LEASE = 3.0
TIMES = {"AGENTOPS_LEASE_SECONDS": str(LEASE), "AGENTOPS_HANDLER_GRACE_SECONDS": "1"}
SLACK = 6.0  # a busy machine
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]
LOST_LIFE = ["run.queued", "run.started", "run.interrupted"]


def takeover_seconds(lease: float, sweep: float) -> float:
    """Return the longest time from a worker's death to its run's end: lapse, a memory of half a lease, two passes.

    The dead worker may have been the sweeper: its successor begins when the holder's lease is over.
    """
    return max(lease, max(HOLD_MS / 1000, lease / 2) + lease / 2) + 2 * 1.2 * sweep


def pair(stack: Stack) -> tuple[WorkerProbe, WorkerProbe]:
    workers = WorkerProbe(**TIMES), WorkerProbe(**TIMES)
    stack.together(*workers)
    return workers


def owner_of(run: Run, *workers: WorkerProbe) -> tuple[WorkerProbe, WorkerProbe]:
    """Return (the worker that runs it, the other one)."""
    run.refresh_from_db()
    first, second = workers
    return (first, second) if first.row.name == run.worker else (second, first)


def test_the_default_times_take_over_within_thirty_seconds():
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    code = "from agentops import settings as s; print(s.LEASE_SECONDS, s.SWEEP_SECONDS)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=bare, capture_output=True, text=True, check=True)

    assert takeover_seconds(*map(float, done.stdout.split())) < 30


def test_a_killed_workers_run_is_interrupted_once(stack):
    account = builders.make_account()
    workers = pair(stack)
    run = submit(account, "probe.spend", amount=10, times=2000, seconds=100, session="talk")
    eventually(lambda: run.attempts.get().cost > 0, timeout=20)
    victim, other = owner_of(run, *workers)
    pid = other.pid

    victim.kill()
    killed = time.monotonic()

    until("interrupted", run, timeout=60)
    assert time.monotonic() - killed < takeover_seconds(LEASE, settings.SWEEP_SECONDS) + SLACK
    assert kinds(run) == LOST_LIFE
    run.refresh_from_db()
    assert run.cost > 0
    assert LedgerEntry.objects.get(run_id=run.pk).amount == run.cost == run.attempts.get().cost
    after = submit(account, "probe.ret", value=1, session="talk")
    until("succeeded", after)
    eventually(lambda: invariants.check(account), timeout=20)
    assert other.alive
    assert other.pid == pid
    assert phases(run) == ["start"]


def test_a_sleeper_that_wakes_up_writes_nothing(stack):
    account = builders.make_account()
    frozen, other = pair(stack)
    other.pause()
    sleep = submit(account, "probe.sleep", seconds=100)
    short = submit(account, "probe.sleep", seconds=LEASE)  # its time is over while the worker is frozen
    emit = submit(account, "probe.emit", seconds=100, count=10_000)
    runs = [sleep, short, emit]
    until_begun(*runs)

    frozen.pause()
    woken_at = time.monotonic() + 3 * LEASE
    other.resume()
    until("interrupted", *runs, timeout=takeover_seconds(LEASE, settings.SWEEP_SECONDS) + SLACK)
    eventually(lambda: time.monotonic() > woken_at, timeout=3 * LEASE)
    before = [invariants.all_events(run.pk) for run in runs]
    frozen.resume()

    def handlers_ended():
        assert phases(sleep) == phases(emit) == ["start", "cancelled"]
        assert len(phases(short)) == 2

    eventually(handlers_ended, timeout=20)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(8)])
    eventually(lambda: invariants.check(account), timeout=20)
    assert [kinds(run) for run in runs] == [LOST_LIFE] * 3
    assert [invariants.all_events(run.pk) for run in runs] == before
    assert frozen.alive


def test_a_handler_that_blocks_the_loop_costs_nobody_the_lease(stack):
    account = builders.make_account()
    blocked, other = pair(stack)
    other.pause()
    neighbours = [submit(account, "probe.sleep", seconds=0.5), submit(account, "probe.emit", count=500, seconds=2)]
    until_begun(*neighbours)
    block = submit(account, "probe.block", seconds=3 * LEASE)
    late = [submit(account, "probe.sleep", seconds=0.2) for _ in range(3)]
    until_begun(block)
    other.resume()

    runs = [block, *neighbours, *late]
    until("succeeded", *runs, timeout=3 * LEASE + 20)

    eventually(lambda: invariants.check(account), timeout=20)
    assert [kinds(run) for run in runs] == [PLAIN_LIFE] * len(runs)
    said = blocked.output() + other.output()
    assert "run.taken_over" not in said
    assert "run.lost" not in said
