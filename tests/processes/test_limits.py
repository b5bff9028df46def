"""Limits on runs at work at once, kept by workers that know nothing of each other and by none that died (6.4, 10)."""

import time

import pytest

from quotas.models import Account
from runs import broker, keys
from tests import builders, invariants
from tests.probes import WorkerProbe, eventually, probe_log
from tests.processes.trials import states, submit, until, until_begun

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
LEASE = 6.0  # not below the sweeper's own: it may be the one that dies
SLACK = 10.0  # a busy machine


def most_at_once(agent: str) -> int:
    """Return how many attempts of an agent were at work at the same time, by the probe log: ends count first."""
    marks = [(line["monotonic"], line["phase"] == "start") for line in probe_log() if line["agent"] == agent]
    now = most = 0
    for _, begins in sorted(marks):
        now += 1 if begins else -1
        most = max(most, now)
    return most


def test_an_agents_limit_holds_over_all_workers_and_every_run_ends(stack):
    account = builders.make_account()
    stack.together(WorkerProbe(), WorkerProbe())

    runs = [submit(account, "probe.few", seconds=0.5) for _ in range(10)]

    until("succeeded", *runs, timeout=90)
    assert most_at_once("probe.few") == 2
    eventually(lambda: invariants.check(account), timeout=20)


def test_the_places_of_a_killed_worker_are_free_within_two_leases(stack):
    account = builders.make_account()
    Account.objects.filter(pk=account.pk).update(max_running=3)
    victim = stack.worker(AGENTOPS_LEASE_SECONDS=str(LEASE))
    sleepers = [submit(account, "probe.sleep", seconds=300) for _ in range(3)]
    until_begun(*sleepers, timeout=60)
    stack.worker(AGENTOPS_LEASE_SECONDS=str(LEASE))
    waiting = [submit(account, "probe.sleep", seconds=0.2)]
    eventually(lambda: broker.client().zcard(keys.parked("default", f"account:{account.pk}")) == 1, timeout=30)

    victim.kill()
    killed = time.monotonic()
    waiting += [submit(account, "probe.sleep", seconds=0.2) for _ in range(3)]

    until_begun(*waiting, timeout=60)
    assert time.monotonic() - killed < 2 * LEASE + SLACK
    until("succeeded", *waiting, timeout=60)
    until("interrupted", *sleepers, timeout=60)
    assert states(sleepers) == ["interrupted"] * 3
    eventually(lambda: invariants.check(account), timeout=20)
