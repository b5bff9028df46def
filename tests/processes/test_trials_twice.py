"""What could make a run begin twice, or never end: many takers, old rows, old names, dead workers (docs/faults.md)."""

import datetime as dt
import time

import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from quotas.models import Hold, LedgerEntry
from runs import keys
from runs.models import Run
from tests import builders, invariants
from tests.probes import WorkerProbe, eventually
from tests.processes.trials import RETAKEN_LIFE, kinds, phases, rerun, states, submit, until, until_begun
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
LEASE = settings.LEASE_SECONDS
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]
PATIENCE = 90.0
FIVE_STARTED_IN = 240.0  # interpreters, on a busy machine


def test_f11_f16_f17_a_live_lease_protects_a_long_run_and_what_has_ended_stays_so(stack):
    account = builders.make_account(max_in_flight=1000)
    stack.together(*[WorkerProbe() for _ in range(3)])
    long = submit(account, "probe.sleep", seconds=10 * LEASE)
    until_begun(long)
    Run.objects.filter(pk=long.pk).update(started_at=timezone.now() - dt.timedelta(hours=6))
    until("succeeded", long, timeout=PATIENCE)
    with transaction.atomic():  # all at once: this test is not about writers in each other's way
        short = [submit(account, "probe.ret", value=number) for number in range(200)]
    until("succeeded", *short, timeout=PATIENCE)

    ended = list(Run.objects.order_by("pk").values_list("pk", "state", "fence", "finished_at"))
    passes_over = time.monotonic() + 3  # several passes of the sweeper
    eventually(lambda: time.monotonic() > passes_over, timeout=10)
    assert list(Run.objects.order_by("pk").values_list("pk", "state", "fence", "finished_at")) == ended
    # One that a busy worker claimed too late to begin in time is handed back unbegun (6.6): that is no second run.
    moved = {kind for run in [long, *short] for kind in kinds(run)} - {"run.handed_back"}
    assert moved == set(PLAIN_LIFE)
    assert [phases(run) for run in [long, *short]] == [["start", "end"]] * 201
    assert not DeadLetter.objects.exists()
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f13_f15_of_many_takers_one_gets_each_run(stack, redis):
    account = builders.make_account(max_in_flight=1000)
    runs = [rerun(account, "probe.sleep", attempts=3, seconds=8) for _ in range(50)]
    first = stack.worker(concurrency=50)
    until_begun(*runs, timeout=PATIENCE)

    first.kill()
    orphans = states(runs).count("running")
    others = [WorkerProbe(concurrency=16) for _ in range(5)]
    stack.children += others
    for worker in others:
        worker.begin()

    until("succeeded", *runs, timeout=FIVE_STARTED_IN)
    assert orphans > 0
    lives = [kinds(run) for run in runs]
    assert [life for life in lives if life not in (PLAIN_LIFE, RETAKEN_LIFE)] == []
    assert lives.count(RETAKEN_LIFE) == orphans
    assert [phases(run) for run, life in zip(runs, lives, strict=True) if life == RETAKEN_LIFE] == (
        [["start", "start", "end"]] * orphans
    )
    eventually(lambda: all(worker.is_ready() for worker in others), timeout=FIVE_STARTED_IN)
    again = builders.make_run(account=account)
    for _ in range(10):
        redis.xadd(keys.ready("default", "normal"), {"run_id": str(again.pk), "fence": 1, "v": 1})
    until("succeeded", again, timeout=PATIENCE)
    assert (kinds(again), phases(again)) == (PLAIN_LIFE, ["start", "end"])
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f18_f20_a_name_that_comes_back_and_a_crash_on_the_last_attempt(stack):
    account = builders.make_account()
    run = rerun(account, "probe.sleep", attempts=2, seconds=300)
    traffic = []
    for number in range(2):
        worker = stack.worker("--name", "fixed")
        traffic += [submit(account, "probe.sleep", seconds=0.1) for _ in range(5)]
        eventually(lambda wanted=number + 1: phases(run) == ["start"] * wanted, timeout=PATIENCE)
        until("succeeded", *traffic, timeout=PATIENCE)
        worker.kill()
    last = stack.worker("--name", "fixed")
    traffic += [submit(account, "probe.sleep", seconds=0.1) for _ in range(5)]

    until("failed", run, timeout=PATIENCE)
    until("succeeded", *traffic, timeout=PATIENCE)

    run.refresh_from_db()
    assert kinds(run) == ["run.queued", "run.started", "run.retaken", "run.queued", "run.started", "run.failed"]
    assert (run.attempt, run.error["class"], run.error["cause"]) == (2, "lost_worker", "crash_loop")
    assert DeadLetter.objects.get().reason == DeadLetter.Reason.CRASH_LOOP
    assert Hold.objects.get(run_id=run.pk).state == Hold.State.SETTLED
    assert LedgerEntry.objects.filter(run_id=run.pk).count() == 1
    assert last.alive
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
