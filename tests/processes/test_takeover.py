"""Workers that are killed, frozen or kept busy: their runs end once, by the right hand (protocol 7, 8)."""

import os
import subprocess
import sys
import textwrap
import time

import pytest
from django.conf import settings

from quotas.models import LedgerEntry
from runs import keys
from runs.models import Run
from runs.services import submit_run
from runs.states import RunState
from tests import builders, invariants
from tests.probes import ROOT, Stack, WorkerProbe, eventually, probe_log
from tests.racing import held_open
from workers.sweeper import HOLD_MS

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
LEASE = 2.0
TIMES = {"AGENTOPS_LEASE_SECONDS": str(LEASE), "AGENTOPS_HANDLER_GRACE_SECONDS": "1"}
SLACK = 6.0  # a busy machine


def takeover_seconds(lease: float, sweep: float) -> float:
    """Return the longest time from a worker's death to its run's end: lapse, a memory of half a lease, two passes.

    The dead worker may have been the sweeper: its successor begins when the holder's lease is over.
    """
    return max(lease, max(HOLD_MS / 1000, lease / 2) + lease / 2) + 2 * 1.2 * sweep


def submit(account, agent, **fields):
    session = fields.pop("session", "")
    return submit_run(account=account, agent=agent, input=fields, actor="test", session=session).run


def is_running(*runs):
    states = dict(Run.objects.filter(pk__in=[run.pk for run in runs]).values_list("pk", "state"))
    assert [states[run.pk] for run in runs] == ["running"] * len(runs)


def pair(stack: Stack, **env: str) -> tuple[WorkerProbe, WorkerProbe]:
    workers = WorkerProbe(**TIMES, **env), WorkerProbe(**TIMES, **env)
    stack.together(*workers)
    return workers


def owner_of(run: Run, *workers: WorkerProbe) -> tuple[WorkerProbe, WorkerProbe]:
    """Return (the worker that runs it, the other one)."""
    run.refresh_from_db()
    first, second = workers
    return (first, second) if first.row.name == run.worker else (second, first)


def kinds(run):
    return list(run.transitions.order_by("fence").values_list("kind", flat=True))


def test_the_default_times_take_over_within_thirty_seconds():
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    code = "from agentops import settings as s; print(s.LEASE_SECONDS, s.SWEEP_SECONDS)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=bare, capture_output=True, text=True, check=True)

    assert takeover_seconds(*map(float, done.stdout.split())) < 30


def test_a_killed_workers_run_is_interrupted_once(stack):
    account = builders.make_account()
    workers = pair(stack)
    run = submit(account, "probe.spend", amount=10, times=2000, seconds=100, session="talk")
    eventually(lambda: is_running(run))
    eventually(lambda: run.attempts.get().cost > 0, timeout=20)
    victim, other = owner_of(run, *workers)
    pid = other.pid

    victim.kill()
    killed = time.monotonic()

    eventually(lambda: Run.objects.get(pk=run.pk).state == RunState.INTERRUPTED, timeout=60)
    assert time.monotonic() - killed < takeover_seconds(LEASE, settings.SWEEP_SECONDS) + SLACK
    assert kinds(run) == ["run.queued", "run.started", "run.interrupted"]
    run.refresh_from_db()
    assert run.cost > 0
    assert LedgerEntry.objects.get(run_id=run.pk).amount == run.cost == run.attempts.get().cost
    after = submit(account, "probe.ret", value=1, session="talk")
    eventually(lambda: Run.objects.get(pk=after.pk).state == RunState.SUCCEEDED)
    eventually(lambda: invariants.check(account), timeout=20)
    assert other.alive
    assert other.pid == pid
    assert [line["phase"] for line in probe_log(run.pk)] == ["start"]


def test_a_sleeper_that_wakes_up_writes_nothing(stack):
    account = builders.make_account()
    frozen, other = pair(stack)
    other.pause()
    runs = [
        submit(account, "probe.sleep", seconds=100),
        submit(account, "probe.sleep", seconds=LEASE),  # it ends while the worker is frozen
        submit(account, "probe.emit", seconds=100, count=10_000),
    ]
    eventually(lambda: is_running(*runs))
    eventually(lambda: len(probe_log()) == 3)

    frozen.pause()
    until = time.monotonic() + 3 * LEASE
    other.resume()
    states = Run.objects.filter(state=RunState.INTERRUPTED)
    eventually(lambda: states.count() == 3, timeout=takeover_seconds(LEASE, settings.SWEEP_SECONDS) + SLACK)
    eventually(lambda: time.monotonic() > until, timeout=3 * LEASE)
    before = [invariants.all_events(run.pk) for run in runs]
    frozen.resume()

    def handlers_ended():
        assert [line["phase"] for line in probe_log(runs[0].pk)] == ["start", "cancelled"]
        assert [line["phase"] for line in probe_log(runs[2].pk)] == ["start", "cancelled"]
        assert len(probe_log(runs[1].pk)) == 2

    eventually(handlers_ended, timeout=20)
    more = [submit(account, "probe.ret", value=number) for number in range(8)]
    done = Run.objects.filter(pk__in=[run.pk for run in more], state=RunState.SUCCEEDED)
    eventually(lambda: done.count() == 8, timeout=20)
    eventually(lambda: invariants.check(account), timeout=20)
    assert [kinds(run) for run in runs] == [["run.queued", "run.started", "run.interrupted"]] * 3
    assert [invariants.all_events(run.pk) for run in runs] == before
    assert frozen.alive


def test_a_handler_that_blocks_the_loop_costs_nobody_the_lease(stack):
    account = builders.make_account()
    blocked, other = pair(stack)
    other.pause()
    neighbours = [submit(account, "probe.sleep", seconds=0.5), submit(account, "probe.emit", count=500, seconds=2)]
    eventually(lambda: len(probe_log()) == 2)
    block = submit(account, "probe.block", seconds=3 * LEASE)
    late = [submit(account, "probe.sleep", seconds=0.2) for _ in range(3)]
    eventually(lambda: len(probe_log(block.pk)) == 1)
    other.resume()

    runs = [block, *neighbours, *late]
    ended = Run.objects.filter(state=RunState.SUCCEEDED)
    eventually(lambda: ended.count() == len(runs), timeout=3 * LEASE + 20)

    eventually(lambda: invariants.check(account), timeout=20)
    assert [kinds(run) for run in runs] == [["run.queued", "run.started", "run.succeeded"]] * len(runs)
    assert "run.taken_over" not in blocked.output() + other.output()
    assert "run.lost" not in blocked.output() + other.output()


LATE_BLOCK = """
import asyncio, os, time
from runs.agents import agent

@agent("late.block")
async def late_block(ctx, run_input):
    open(run_input["flag"] + ".begun", "w").close()
    while not os.path.exists(run_input["flag"]):
        await asyncio.sleep(0.005)
    open(run_input["flag"] + ".seen", "w").close()
    time.sleep(run_input["seconds"])
"""


def test_a_run_claimed_while_the_loop_is_blocked_keeps_its_lease(stack, tmp_path, redis):
    """Its handler has not begun, and the beat renews it all the same."""
    account = builders.make_account()
    (tmp_path / "late.py").write_text(textwrap.dedent(LATE_BLOCK))
    worker, other = pair(stack, AGENTOPS_APPS=str(tmp_path / "late.py"))
    other.pause()
    flag = tmp_path / "flag"
    block = builders.make_run(account=account, agent="late.block", input={"flag": str(flag), "seconds": 3 * LEASE})
    eventually(lambda: flag.with_suffix(".begun").exists())
    worker.pause()
    late = submit(account, "probe.ret", value=1)
    stream = keys.ready(late.queue, late.priority)

    with held_open(lambda: Run.objects.select_for_update().filter(pk=late.pk).update(tags=[])):
        worker.resume()
        # Taken, and waiting for the row's lock: the claim commits when the loop is blocked.
        eventually(lambda: redis.xpending(stream, keys.GROUP)["pending"] == 2)
        flag.touch()
        eventually(lambda: flag.with_suffix(".seen").exists())

    other.resume()
    ended = Run.objects.filter(state=RunState.SUCCEEDED)
    eventually(lambda: ended.count() == 2, timeout=3 * LEASE + 20)
    eventually(lambda: invariants.check(account), timeout=20)
    assert kinds(late) == ["run.queued", "run.started", "run.succeeded"]

