"""What could keep runs from ever beginning or ending: leaked slots, keys without an end, sizes, versions, idle time."""

import json
import time

import pytest

from runs import keys
from runs.models import Run
from runs.services import cancel_run, submit_run
from tests import builders, invariants
from tests.api import Api
from tests.probes import eventually, probe_log
from tests.processes.trials import kinds, phases, states, submit, until, until_begun
from workers.models import DeadLetter
from workers.selectors import queue_status

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]
PATIENCE = 60.0
SLOTS = {"AGENTOPS_GLOBAL_SLOTS": "3"}
PAGE_BYTES = 64 * 1024  # more than any answer about one run may need
EVENT_BYTES = 20 * 1024


def test_f22_f30_neither_a_dead_owners_slots_nor_keys_without_an_end_stop_the_queue(stack, redis, isolation):
    account = builders.make_account()
    first = stack.worker(**SLOTS)
    lost = [submit(account, "probe.sleep", seconds=300) for _ in range(3)]
    until_begun(*lost)
    waiting = [submit(account, "probe.ret", value=number) for number in range(3)]
    assert redis.zcard(keys.slots("default")) == 3
    assert states(waiting) == ["queued"] * 3

    first.kill()
    for name in redis.scan_iter(f"*{isolation}*"):
        redis.persist(name)
    second = stack.worker(**SLOTS)

    until("succeeded", *waiting, timeout=PATIENCE)
    until("interrupted", *lost, timeout=PATIENCE)
    for name in redis.scan_iter(f"*{isolation}*"):
        redis.persist(name)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(6)], timeout=PATIENCE)
    eventually(lambda: redis.ttl(keys.sweeper()) > 0, timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    assert second.alive


def test_f25_f26_cancels_of_what_has_ended_and_a_busy_higher_priority(stack):
    account = builders.make_account(max_in_flight=1000)
    stack.worker(concurrency=1)
    done = submit(account, "probe.ret", value=1)
    until("succeeded", done)
    busy = submit(account, "probe.sleep", seconds=100)  # until it is cancelled, however busy the machine is
    until_begun(busy)

    def prioritised(priority: str, count: int) -> list[Run]:
        given = {"account": account, "agent": "probe.ret", "input": {}, "actor": "test"}
        return [submit_run(**given, priority=priority).run for _ in range(count)]

    low, high = prioritised("low", 5), prioritised("high", 40)
    rows = [row for row in queue_status()["queues"] if row["queue"] == "default"]  # agents of other tests have theirs
    waits = {row["priority"]: row["oldest_wait_seconds"] for row in rows}
    assert waits["low"] >= waits["high"] > 0  # the age of what may starve is told
    assert {cancel_run(run_id=done.pk, actor="test").what for _ in range(200)} == {"ended"}

    cancel_run(run_id=busy.pk, actor="test")
    until("succeeded", *low, *high, timeout=PATIENCE)
    begun = [line["run"] for line in probe_log() if line["phase"] == "start"][2:]
    assert begun == [str(run.pk) for run in [*high, *low]]
    assert kinds(done) == PLAIN_LIFE
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f28_what_is_far_too_large_ends_on_its_first_attempt_and_slows_nobody(stack):
    account = builders.make_account()
    stack.worker()
    api = Api(builders.make_api_key(account)[1])
    neighbour = submit(account, "probe.emit", count=50, seconds=5)
    result = submit(account, "probe.ret", bytes=20_000_000)
    errors = [submit(account, "probe.raise", text="x", bytes=5_000_000), submit(account, "probe.raise", frames=3000)]

    until("succeeded", neighbour, result, timeout=PATIENCE)
    until("failed", *errors, timeout=PATIENCE)

    runs = [neighbour, result, *errors]
    assert [run.attempts.count() for run in runs] == [1] * 4
    assert [phases(run) for run in runs] == [["start", "end"]] * 2 + [["start", "error"]] * 2
    artifact = api.get(f"/api/v1/runs/{result.pk}/artifacts").json()["results"][0]
    assert artifact["size"] > 20_000_000
    for run in runs:
        assert len(api.get(f"/api/v1/runs/{run.pk}").content) < PAGE_BYTES
        assert max(len(json.dumps(event)) for event in invariants.all_events(run.pk)) < EVENT_BYTES
    long, deep = (Run.objects.get(pk=run.pk).error for run in errors)
    assert "characters cut" in long["message"]
    assert 0 < len(deep["traceback"]) < PAGE_BYTES
    assert set(DeadLetter.objects.values_list("run_id", flat=True)) == {run.pk for run in errors}
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f72_an_older_worker_leaves_what_it_does_not_know_for_a_newer_one(stack, redis):
    account = builders.make_account()
    older = stack.worker("--agents", "probe.ret")
    stream = keys.ready("default", "normal")
    unknown = submit(account, "probe.sleep", seconds=0.1)
    more_fields, later_version = builders.make_run(account=account), builders.make_run(account=account)
    redis.xadd(stream, {"run_id": str(more_fields.pk), "fence": 1, "v": 1, "colour": "blue", "weight": b"\xff"})
    redis.xadd(stream, {"run_id": str(later_version.pk), "fence": 1, "v": 99, "traceparent": ""})

    until("succeeded", more_fields, timeout=PATIENCE)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(5)], timeout=PATIENCE)
    assert states([unknown]) == ["queued"]
    assert not DeadLetter.objects.exists()
    stack.worker()

    until("succeeded", unknown, later_version, timeout=PATIENCE)
    assert [kinds(run) for run in (unknown, more_fields, later_version)] == [PLAIN_LIFE] * 3
    assert older.alive
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f73_an_idle_worker_whose_reads_block_for_long_hears_at_once(stack):
    account = builders.make_account()
    worker = stack.worker(AGENTOPS_WAKE_WAIT_SECONDS="7")  # longer than the client library's own time-out of 5 s
    until("succeeded", submit(account, "probe.ret", value=1))
    idle_until = time.monotonic() + 16
    eventually(lambda: time.monotonic() > idle_until, timeout=20)
    assert "reconnecting" not in worker.output()

    asked = time.monotonic()
    run = submit(account, "probe.ret", value=2)
    until_begun(run)

    assert time.monotonic() - asked < 4  # of 7
    until("succeeded", run)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
