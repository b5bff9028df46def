"""Cancel, drain and death of workers: each run ends by the rule, and nothing else is harmed (protocol 12)."""

import signal
import textwrap
import time

import pytest

from quotas.models import LedgerEntry
from runs.services import cancel_run
from tests import builders, invariants
from tests.probes import WorkerProbe, eventually
from tests.processes.trials import kinds, phases, states, submit, until, until_begun
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
GRACE = {"AGENTOPS_HANDLER_GRACE_SECONDS": "1"}


def cancel(run):
    return cancel_run(run_id=run.pk, actor="test").what


def test_cancel_of_every_kind_of_run(stack):
    account = builders.make_account()
    worker = stack.worker(concurrency=2, **GRACE)
    sleep, stubborn = submit(account, "probe.sleep", seconds=100), submit(account, "probe.stubborn", seconds=60)
    until_begun(sleep, stubborn)
    queued = submit(account, "probe.ret", value=1)

    assert cancel(queued) == "cancelled"
    assert cancel(queued) == "ended"
    assert cancel(sleep) == "requested"
    until("cancelled", sleep, timeout=5)
    assert cancel(stubborn) == "requested"
    until("cancelled", stubborn, timeout=10)

    assert phases(queued) == []
    assert phases(sleep) == ["start", "cancelled"]
    assert phases(stubborn) == ["start", "cancelled"]  # it goes on, and nobody listens
    assert not LedgerEntry.objects.filter(run_id=queued.pk).exists()
    until("succeeded", *[submit(account, "probe.sleep", seconds=0.1) for _ in range(4)])
    eventually(lambda: invariants.check(account), timeout=20)
    assert "handler.abandoned" in worker.output()

    asked = time.monotonic()
    assert worker.term() == 0
    assert time.monotonic() - asked < 15  # the abandoned handler would go on for a minute


def test_sigterm_finishes_what_runs_and_leaves_what_waits(stack):
    account = builders.make_account()
    worker = stack.worker(concurrency=2)
    running = [submit(account, "probe.sleep", seconds=2), submit(account, "probe.emit", count=200, seconds=2)]
    until_begun(*running)
    waiting = [submit(account, "probe.ret", value=value) for value in range(3)]

    assert worker.term() == 0

    assert states(running) == ["succeeded"] * 2
    assert states(waiting) == ["queued"] * 3
    assert worker.row.stopped_at is not None
    stack.worker()
    until("succeeded", *waiting)
    eventually(lambda: invariants.check(account), timeout=20)


def test_a_short_grace_and_a_second_signal_interrupt(stack):
    account = builders.make_account()
    short = WorkerProbe(concurrency=1, AGENTOPS_DRAIN_GRACE_SECONDS="0.5", **GRACE)
    long = WorkerProbe(concurrency=2, AGENTOPS_DRAIN_GRACE_SECONDS="600", **GRACE)
    stack.together(short, long)
    runs = [submit(account, "probe.sleep", seconds=100) for _ in range(2)]
    runs.append(submit(account, "probe.stubborn", seconds=60))
    until_begun(*runs)

    assert short.term() == 0
    long.signal(signal.SIGTERM)
    eventually(lambda: "worker.draining" in long.output())
    assert sorted(states(runs)) == ["interrupted", "running", "running"]
    assert long.term() == 0

    assert states(runs) == ["interrupted"] * 3
    eventually(lambda: invariants.check(account), timeout=20)


def test_a_run_that_kills_its_worker_harms_no_other(stack):
    account = builders.make_account()
    victim, other = WorkerProbe(concurrency=1), WorkerProbe(concurrency=1)
    stack.together(victim, other)
    first = submit(account, "probe.suicide", seconds=1)
    until_begun(first)
    others = [submit(account, "probe.sleep", seconds=0.1) for _ in range(20)]

    until("succeeded", *others, timeout=30)
    until("interrupted", first, timeout=30)

    eventually(lambda: invariants.check(account), timeout=20)
    assert [victim.alive, other.alive].count(True) == 1
    dead = other if victim.alive else victim
    assert dead.wait() == -signal.SIGKILL


ODD_AGENTS = """
import asyncio
from runs.agents import agent

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def raises(name, error):
    @agent(name)
    def handler(ctx, run_input):
        raise error
    handler.__module__ = __name__

for error in (StopIteration("stop"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopAsyncIteration()):
    raises("sync." + type(error).__name__, error)

@agent("odd.unprintable")
async def unprintable(ctx, run_input):
    raise Unprintable

@agent("odd.exits_in_a_task")
async def exits_in_a_task(ctx, run_input):
    async def leave():
        raise SystemExit(7)
    await asyncio.create_task(leave())

@agent("odd.many_events")
async def many_events(ctx, run_input):
    for number in range(3000):
        ctx.emit("tick", {"n": number})
"""
ODD = ["sync.StopIteration", "sync.SystemExit", "sync.KeyboardInterrupt", "sync.GeneratorExit"]
ODD += ["sync.StopAsyncIteration", "odd.unprintable", "odd.exits_in_a_task"]
RAISED = ["MemoryError", "RecursionError", "SystemExit", "KeyboardInterrupt", "CancelledError"]


def test_whatever_a_handler_raises_fails_its_own_run_only(stack, tmp_path):
    account = builders.make_account()
    (tmp_path / "odd_agents.py").write_text(textwrap.dedent(ODD_AGENTS))
    worker = stack.worker(concurrency=16, AGENTOPS_APPS=str(tmp_path / "odd_agents.py"))
    neighbour = submit(account, "probe.sleep", seconds=4)
    until_begun(neighbour)

    runs = [submit(account, "probe.raise", text="x", type=name) for name in RAISED]
    runs += [builders.make_run(account=account, agent=name) for name in ODD]
    until("failed", *runs)
    many = builders.make_run(account=account, agent="odd.many_events")
    until("succeeded", neighbour, many)

    eventually(lambda: invariants.check(account), timeout=20)
    assert len(invariants.all_events(many.pk)) == 3003
    assert DeadLetter.objects.filter(run__in=runs).count() == len(runs)
    assert [kinds(run)[-1] for run in runs] == ["run.failed"] * len(runs)
    assert worker.term() == 0
