"""The sweeper in processes of its own: the holder is killed, and somebody else goes on (protocol 10, F19)."""

import signal
import sys

import pytest

from runs import keys
from runs.models import Run
from tests import aged, builders, working
from tests.probes import Child, child_env, eventually
from tests.processes.trials import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
TIMES = {"AGENTOPS_LEASE_SECONDS": "2", "AGENTOPS_SWEEP_SECONDS": "0.3"}
SECONDS = 60.0


class SweepProbe(Child):
    """A `manage.py sweep` process. It is ready when it says so."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "manage.py", "sweep"], child_env(**TIMES))

    def is_ready(self) -> bool:
        return "Sweeping" in self.output()

    def holds(self, redis) -> bool:
        return f"-{self.pid}-".encode() in (redis.get(keys.sweeper()) or b"")


def pair(stack, redis):
    """Return (the process that sweeps, one that waits for its turn)."""
    probes = SweepProbe(), SweepProbe()
    stack.together(*probes)
    eventually(lambda: any(probe.holds(redis) for probe in probes), timeout=SECONDS)
    return probes if probes[0].holds(redis) else probes[::-1]


def orphan(account):
    """Return a run whose owner is gone, its lease lapsed."""
    run = working.submit(account)
    working.claim(run, worker="gone", lease=0.5)
    Run.objects.filter(pk=run.pk).update(lease_expires_at=aged.ago(1))
    return run


@pytest.mark.parametrize("how", ["killed", "its lease has no end"])
def test_the_holder_dies_and_another_one_recovers_what_is_lost(stack, redis, how):
    account = builders.make_account()
    holder, other = pair(stack, redis)

    holder.kill()
    if how != "killed":
        redis.set(keys.sweeper(), f"sweep-host-{holder.pid}-dead")
    waiting, lost = builders.make_run("queued", account=account), orphan(account)

    until("interrupted", lost, timeout=SECONDS)
    eventually(lambda: redis.hexists(keys.index("default"), str(waiting.pk)), timeout=SECONDS)
    assert other.holds(redis)
    assert lost.transitions.get(kind="run.interrupted").actor.startswith("sweep-")


def test_a_holder_that_sleeps_is_replaced_and_harms_nobody_when_it_wakes(stack, redis):
    account = builders.make_account()
    holder, other = pair(stack, redis)

    holder.pause()
    eventually(lambda: other.holds(redis), timeout=SECONDS)
    lost = orphan(account)
    until("interrupted", lost, timeout=SECONDS)
    holder.resume()

    waiting = builders.make_run("queued", account=account)
    eventually(lambda: redis.hexists(keys.index("default"), str(waiting.pk)), timeout=SECONDS)
    assert redis.xlen(keys.ready("default", "normal")) == 1
    assert [probe.alive for probe in (holder, other)] == [True, True]
    assert lost.transitions.count() == 3


def test_a_sweeper_that_is_told_to_end_gives_its_turn_away(stack, redis):
    probe = SweepProbe()
    stack.together(probe)
    eventually(lambda: probe.holds(redis), timeout=SECONDS)

    assert probe.term(SECONDS) == 0

    assert not redis.exists(keys.sweeper())
    assert "Traceback" not in probe.output()
    second = SweepProbe()
    stack.together(second)
    eventually(lambda: second.holds(redis), timeout=SECONDS)
    second.signal(signal.SIGINT)
    assert second.wait(SECONDS) == 0
