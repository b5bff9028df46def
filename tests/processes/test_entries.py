"""Entries nobody of us wrote, and entries that are trimmed or delivered again: nothing runs twice, nothing is stuck."""

import uuid
from typing import Any

import pytest

from runs import keys
from runs.models import Run
from runs.services import cancel_run
from runs.states import RunState
from tests import builders, invariants
from tests.probes import eventually, probe_log
from tests.processes.trials import kinds, phases, submit, until, until_begun
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
STREAM = "normal"
JUNK: list[dict[Any, Any]] = [
    {"": ""},
    {"hello": "world"},
    {"run_id": "not-a-uuid", "fence": 1, "v": 1},
    {"run_id": str(uuid.uuid4()), "fence": "one", "v": 1},
    {"run_id": str(uuid.uuid4()), "v": 1},
    {b"\xff\xfe": b"\xff\xfe", b"run_id": b"\xff\xfe"},
    {"run_id": str(uuid.uuid4()), "fence": "9" * 5000},
    {"run_id": str(uuid.uuid4()), "fence": 1, "traceparent": b"\xff\xfe"},
    {"run_id": "nul\0nul", "fence": 1, "text": "a\0b" * 3000},
    {f"f{number}": "x" * 1000 for number in range(500)},
]
UNKNOWN = {"run_id": str(uuid.uuid4()), "fence": 1, "v": 1}


def test_junk_becomes_dead_letters_and_holds_up_nobody(stack, redis):
    account = builders.make_account()
    stream = keys.ready("default", STREAM)
    worker = stack.worker()
    for fields in [*JUNK, UNKNOWN]:
        redis.xadd(stream, fields)
    foreign = builders.make_run(account=account, agent="of.another.program", queue_wait_seconds=600)
    overdue = builders.make_run(account=account, agent="of.another.program", queue_wait_seconds=0.01)

    until("succeeded", submit(account, "probe.ret", value=1), timeout=5)

    letters = DeadLetter.objects.filter(run=None)
    eventually(lambda: letters.count() == len(JUNK) + 1)
    assert letters.filter(reason=DeadLetter.Reason.UNDECODABLE).count() == len(JUNK)
    assert letters.get(reason=DeadLetter.Reason.UNKNOWN_RUN).message == f"There is no run {UNKNOWN['run_id']}."
    until("failed", overdue)
    assert DeadLetter.objects.get(run=overdue).reason == DeadLetter.Reason.UNKNOWN_AGENT
    assert Run.objects.get(pk=foreign.pk).state == RunState.QUEUED
    cancel_run(run_id=foreign.pk, actor="test")
    eventually(lambda: invariants.check(account), timeout=20)
    assert worker.alive


def test_repeated_trimmed_and_rewound_entries_run_nothing_twice(stack, redis):
    account = builders.make_account()
    stream = keys.ready("default", STREAM)
    worker = stack.worker(AGENTOPS_LEASE_SECONDS="1.5")
    finished = [submit(account, "probe.ret", value=value) for value in range(30)]
    running = submit(account, "probe.sleep", seconds=3)
    until_begun(running)
    until("succeeded", *finished)

    for run in [running] * 10 + finished[:5]:
        redis.xadd(stream, {"run_id": str(run.pk), "fence": 1, "v": 1, "traceparent": ""})
    redis.xgroup_setid(stream, keys.GROUP, "0")
    until("succeeded", running)

    def drained():
        assert redis.xlen(stream) == 0

    eventually(drained, timeout=20)
    trimmed = submit(account, "probe.sleep", seconds=2)
    until_begun(trimmed)
    redis.xtrim(stream, maxlen=0)
    again = submit(account, "probe.ret", value=1)
    redis.xgroup_setid(stream, keys.GROUP, "0")
    for _ in range(10):
        redis.xadd(stream, {"run_id": str(again.pk), "fence": 1, "v": 1})
    until("succeeded", trimmed, again)

    runs = [*finished, running, trimmed, again]
    eventually(lambda: invariants.check(account), timeout=20)
    assert [phases(run) for run in runs] == [["start", "end"]] * len(runs)
    assert [kinds(run) for run in runs] == [["run.queued", "run.started", "run.succeeded"]] * len(runs)
    assert len(probe_log()) == 2 * len(runs)
    assert not DeadLetter.objects.exists()
    assert worker.alive
