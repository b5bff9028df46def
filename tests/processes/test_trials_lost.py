"""Entries, groups and whole servers are lost around working processes: no run is lost with them (docs/faults.md)."""

import datetime as dt
import time
from contextlib import suppress

import pytest
from django.db import transaction

from quotas.models import Hold
from runs import keys
from runs.models import Run
from runs.services import cancel_run, submit_run
from tests import builders, invariants
from tests.probes import eventually, probe_log
from tests.processes.trials import RETAKEN_LIFE, kinds, phases, rerun, states, submit, until, until_begun

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]
RETRIED_LIFE = ["run.queued", "run.started", "run.retrying", "run.queued", "run.started", "run.succeeded"]
PATIENCE = 60.0
STREAM = "normal"


class Undone(Exception):
    """What rolls a transaction back."""


def test_f01_a_trimmed_entry_does_not_hide_the_run_of_a_killed_worker(stack, redis):
    account = builders.make_account()
    stream = keys.ready("default", STREAM)
    first = stack.worker()
    run = rerun(account, "probe.sleep", attempts=2, seconds=4)
    until_begun(run)

    redis.xtrim(stream, maxlen=0, approximate=False)
    first.kill()
    assert redis.xpending(stream, keys.GROUP)["pending"] == 1
    stack.worker()

    until("succeeded", run, timeout=PATIENCE)
    run.refresh_from_db()
    assert (run.attempt, kinds(run), phases(run)) == (2, RETAKEN_LIFE, ["start", "start", "end"])
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f04_f07_what_is_not_committed_or_cancelled_never_begins(stack, redis):
    account = builders.make_account()
    cancelled = submit(account, "probe.ret", value="cancelled")
    assert cancel_run(run_id=cancelled.pk, actor="test").what == "cancelled"
    assert Hold.objects.get(run_id=cancelled.pk).state == Hold.State.RELEASED  # nobody is there to hear of it
    stack.worker(concurrency=16)
    eventually(lambda: redis.xlen(keys.ready("default", STREAM)) == 0, timeout=PATIENCE)

    with suppress(Undone), transaction.atomic():
        undone = [submit(account, "probe.ret", value=number) for number in range(20)]
        stays_open(redis)
        raise Undone
    with transaction.atomic():
        runs = [submit(account, "probe.ret", value=number) for number in range(80)]
        stays_open(redis)

    until("succeeded", *runs, timeout=PATIENCE)
    assert [phases(run) for run in runs] == [["start", "end"]] * 80
    assert {line["run"] for line in probe_log()} == {str(run.pk) for run in runs}
    assert not Run.objects.filter(pk__in=[run.pk for run in undone]).exists()
    assert not Hold.objects.filter(run_id__in=[run.pk for run in undone]).exists()
    assert phases(cancelled) == []
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def stays_open(redis, seconds: float = 2.0) -> None:
    """Let idle workers look around for a while: there is nothing for them to see."""
    until_then = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until_then, timeout=2 * seconds)
    assert redis.xlen(keys.ready("default", STREAM)) == 0
    assert [line for line in probe_log() if line["phase"] == "start"] == []


def test_f09_a_server_that_may_evict_is_told_of_and_what_it_evicts_comes_back(own_redis, stack, redis):
    account = builders.make_account()
    redis.config_set("maxmemory-policy", "allkeys-lru")
    worker = stack.worker(concurrency=1)
    eventually(lambda: "redis.may_evict" in worker.output(), timeout=PATIENCE)
    assert "allkeys-lru" in worker.output()
    busy = submit(account, "probe.sleep", seconds=3)
    until_begun(busy)
    waiting = [
        submit_run(account=account, agent="probe.ret", input={}, actor="test", priority="high").run for _ in range(5)
    ]
    assert redis.xlen(keys.ready("default", "high")) == 5

    redis.delete(keys.ready("default", "high"))

    until("succeeded", busy, *waiting, timeout=PATIENCE)
    assert [kinds(run) for run in waiting] == [PLAIN_LIFE] * 5
    assert [phases(run) for run in waiting] == [["start", "end"]] * 5
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f24_f77_due_times_and_the_ear_for_cancels_outlive_a_server_that_comes_back_empty(own_redis, stack, redis):
    account = builders.make_account()
    worker = stack.worker(concurrency=16)
    long = submit(account, "probe.sleep", seconds=300)
    runs = [rerun(account, "probe.retryable", attempts=2, fails=1, after=12) for _ in range(10)]
    until_begun(long, *runs)
    until("scheduled", *runs)

    redis.flushall()
    own_redis.halt()
    eventually(lambda: "control.reconnecting" in worker.output(), timeout=PATIENCE)
    own_redis.start()
    asked = time.monotonic()
    assert cancel_run(run_id=long.pk, actor="test").what == "requested"

    until("cancelled", long, timeout=20)
    assert time.monotonic() - asked < 10  # a beat of the lease brings what nobody heard
    assert states(runs) == ["scheduled"] * 10
    until("succeeded", *runs, timeout=PATIENCE)
    for run in runs:
        assert kinds(run) == RETRIED_LIFE
        retrying, queued = run.transitions.get(kind="run.retrying"), run.transitions.get(fence=4)
        due = dt.datetime.fromisoformat(retrying.data["not_before"])
        assert dt.timedelta(0) <= queued.at - due < dt.timedelta(seconds=10)
    eventually(lambda: invariants.check(account, events=False), timeout=PATIENCE)
    assert worker.alive
