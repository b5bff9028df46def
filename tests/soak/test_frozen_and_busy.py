"""A worker that sleeps for three leases, and one whose loop is blocked for three (protocol 7, 8)."""

import time
from typing import Any

import pytest
from django.conf import settings
from django.db import models

from quotas.models import Account, Hold, LedgerEntry
from runs.models import Artifact, Attempt, EventArchive, Run, Transition
from tests import builders, invariants
from tests.probes import Stack, WorkerProbe, eventually, probe_log
from tests.processes.trials import RETAKEN_LIFE, kinds, rerun, submit, until, until_begun
from tests.soak.killing import held_by
from workers.models import DeadLetter

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]
LOST_LIFE = ["run.queued", "run.started", "run.interrupted"]
LEASES = 3
OF_A_RUN = (Transition, Attempt, EventArchive, Artifact, DeadLetter, Hold, LedgerEntry)


def rows_of(account: Account, runs: list[Run]) -> dict[str, Any]:
    """Return every row that an owner of one of the runs could write, and their events."""
    ids = [run.pk for run in runs]
    tables: dict[str, models.QuerySet[Any]] = {
        model.__name__: model.objects.filter(run_id__in=ids) for model in OF_A_RUN
    }
    tables |= {"Run": Run.objects.filter(pk__in=ids), "Account": Account.objects.filter(pk=account.pk)}
    found: dict[str, Any] = {name: list(rows.order_by("pk").values()) for name, rows in tables.items()}
    return found | {"events": [invariants.all_events(run.pk) for run in runs]}


def closed(runs: list[Run]) -> None:
    """Insist that nothing is left to do for the runs."""
    assert not Run.objects.filter(pk__in=[run.pk for run in runs], log_closed_at=None).exists()


def lines_of(worker: str) -> list[dict[str, Any]]:
    return [line for line in probe_log() if line["worker"] == worker]


def passes(seconds: float) -> None:
    """Let time go by."""
    over = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > over, timeout=seconds + 5)


def test_2c_every_write_of_a_sleeper_is_refused(stack: Stack, report):
    account = builders.make_account()
    sleeper = stack.worker(concurrency=10)
    name, lease = sleeper.row.name, settings.LEASE_SECONDS
    again = [rerun(account, "probe.sleep", attempts=3, seconds=15) for _ in range(3)]  # over while it sleeps
    again += [rerun(account, "probe.emit", attempts=3, seconds=15, count=400) for _ in range(3)]
    midway = [rerun(account, "probe.spend", attempts=3, seconds=20, times=200, amount=5) for _ in range(3)]
    gone = submit(account, "probe.spend", seconds=20, times=200, amount=5)
    runs = [*again, *midway, gone]
    until_begun(*runs)

    sleeper.pause()
    slept, wakes = time.monotonic(), time.monotonic() + LEASES * lease
    assert len(held_by(name)) == len(runs)
    other = stack.worker(concurrency=10)
    until("interrupted", gone, timeout=90)
    until("succeeded", *again, *midway, timeout=90)
    eventually(lambda: closed(runs), timeout=30)
    eventually(lambda: time.monotonic() > wakes, timeout=LEASES * lease)
    assert {line["phase"] for line in lines_of(name)} == {"start"}
    before = rows_of(account, runs)
    sleeper.resume()
    woke = time.monotonic()

    def stopped() -> None:
        assert len(lines_of(name)) == 2 * len(runs)

    eventually(stopped, timeout=30)
    took = max(line["monotonic"] for line in lines_of(name)) - woke
    phases = {line["run"]: line["phase"] for line in lines_of(name) if line["phase"] != "start"}
    assert {phases[str(run.pk)] for run in [*midway, gone]} == {"cancelled"}
    passes(lease)  # three beats of the sleeper, and several passes of the sweepers
    assert rows_of(account, runs) == before
    assert [kinds(run) for run in [*again, *midway]] == [RETAKEN_LIFE] * (len(runs) - 1)
    assert kinds(gone) == LOST_LIFE
    assert LedgerEntry.objects.filter(run_id__in=[run.pk for run in runs]).count() == len(runs)
    other.term(60)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(20)])  # it is awake and well
    eventually(lambda: invariants.check(account, overlap=woke - slept + took), timeout=30)
    cancelled = list(phases.values()).count("cancelled")
    figures = f"SIGSTOP for {woke - slept:.0f} s ({LEASES} leases), {len(runs)} runs ended elsewhere meanwhile"
    report(
        "2c", f"{figures}; woken: no row and no event changed, {cancelled} tasks cancelled, all over in {took:.1f} s"
    )


def test_3_a_blocked_loop_costs_nobody_the_lease(stack: Stack, report):
    account = builders.make_account()
    busy = stack.worker(concurrency=10)
    seconds = LEASES * settings.LEASE_SECONDS
    neighbours = [submit(account, "probe.sleep", seconds=number) for number in (1, 5, 20, 60)]
    neighbours += [rerun(account, "probe.emit", attempts=3, count=500, seconds=10) for _ in range(2)]
    neighbours += [submit(account, "probe.spend", amount=2, times=50, seconds=10) for _ in range(2)]
    until_begun(*neighbours)
    block = submit(account, "probe.block", seconds=seconds)
    until_begun(block)
    idle = WorkerProbe(concurrency=10)
    stack.together(idle)
    beside = len(held_by(busy.row.name)) - 1
    assert beside >= 6
    late = [submit(account, "probe.sleep", seconds=0.2) for _ in range(10)]

    until("succeeded", *late, timeout=30)  # the other one takes them
    runs = [block, *neighbours, *late]
    until("succeeded", *runs, timeout=seconds + 60)

    assert [kinds(run) for run in runs] == [PLAIN_LIFE] * len(runs)
    blocked = [line["monotonic"] for line in probe_log(block.pk)]
    assert blocked[1] - blocked[0] >= seconds
    said = busy.output() + idle.output()
    assert "run.taken_over" not in said
    assert "run.lost" not in said
    eventually(lambda: invariants.check(account), timeout=30)
    figures = f"probe.block for {blocked[1] - blocked[0]:.0f} s ({LEASES} leases) beside {beside} running runs"
    report("3", f"{figures}: no takeover, {len(runs)} runs ended once, in their first attempt")
