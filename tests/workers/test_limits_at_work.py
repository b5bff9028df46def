"""Limits in time on a whole worker: its owner ends a run first, and never as interrupted (protocol 10, 7.5)."""

import asyncio
import datetime as dt
import threading
from contextlib import suppress

import pytest

from runs import limits
from runs.limits import Limit
from runs.models import Run
from runs.outcomes import ErrorClass
from runs.retry import Backoff
from tests import invariants, working
from tests.at_work import at_work, life, until
from tests.probes import eventually, probe_log
from workers import metrics
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)


async def endless(ctx, run_input):
    await asyncio.Event().wait()


async def talking(ctx, run_input):
    """Talk for a while, then fall silent."""
    for number in range(3):
        ctx.emit("said", {"n": number})
    await asyncio.Event().wait()


SHORT = 0.4
LIMITED = {
    Limit.TIME_LIMIT: ({"time_limit_seconds": SHORT}, {}),
    Limit.WALL_CLOCK: ({"wall_clock_seconds": SHORT}, {}),
    Limit.DEADLINE: ({}, {"deadline_seconds": 5}),
    Limit.NO_PROGRESS: ({"no_progress_seconds": SHORT}, {}),
}


@pytest.mark.parametrize("limit", Limit)
def test_the_owner_ends_its_run_at_the_limit(account, limit):
    spec, fields = LIMITED[limit]
    with working.registered("test.endless", talking, estimate=1000, **spec), at_work("test.endless") as worker:
        run = working.submit(account, agent="test.endless", **fields)
        until("failed", run)

    assert (run.error["class"], run.error["type"], run.error["cause"]) == ("timeout", "TimeLimit", "fatal")
    assert run.error["message"] == limits.message_of(limit, run)
    assert life(run) == ["run.queued", "run.started", "run.failed"]
    assert run.transitions.get(fence=3).actor == worker.config.consumer
    assert DeadLetter.objects.get().error_class == "timeout"
    invariants.check(account)


def test_a_handler_that_goes_on_showing_progress_is_not_stopped_for_having_none(account):
    done = threading.Event()

    async def busy(ctx, run_input):
        while not done.is_set():
            ctx.progress(1, 2, "still here")
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.02)
        return "done"

    with (
        working.registered("test.busy", busy, no_progress_seconds=10.0, estimate=1000),
        at_work("test.busy", lease=3.0) as worker,
    ):
        run = working.submit(account, agent="test.busy")
        until("running", run)
        first = run.quiet_at
        eventually(lambda: Run.objects.get(pk=run.pk).quiet_at > first + dt.timedelta(seconds=1), timeout=60)
        assert worker.owned.silent() == []
        done.set()
        until("succeeded", run)

    invariants.check(account)


def test_a_time_limit_is_tried_again_where_the_agent_says_so(account):
    with (
        working.registered(
            "test.endless",
            endless,
            time_limit_seconds=SHORT,
            retry_on=(ErrorClass.TIMEOUT,),
            max_attempts=2,
            backoff=Backoff(base=0.0),
            estimate=1000,
        ),
        at_work("test.endless"),
    ):
        run = working.submit(account, agent="test.endless")
        until("failed", run)

    assert (run.attempt, run.error["cause"]) == (2, "exhausted")
    assert life(run) == ["run.queued", "run.started", "run.retrying", "run.started", "run.failed"]
    assert [attempt.error_class for attempt in run.attempts.all()] == ["timeout", "timeout"]
    invariants.check(account)


def test_a_handler_that_ignores_its_cancellation_is_abandoned_and_counted(account):
    before = metrics.abandoned._value.get()
    with at_work("probe.stubborn", "probe.ret", concurrency=1) as worker:
        run = working.submit(account, agent="probe.stubborn", input={"seconds": 4}, time_limit=SHORT)
        until("failed", run)
        after = working.submit(account)  # its place is free again
        until("succeeded", after)
        assert metrics.abandoned._value.get() == before + 1
        eventually(lambda: not worker.attempts.abandoned, timeout=60)

    assert run.error["class"] == "timeout"
    assert [line["phase"] for line in probe_log(run.pk)] == ["start", "cancelled", "end"]
    assert life(run) == ["run.queued", "run.started", "run.failed"]
    invariants.check(account)


def test_the_sweeper_ends_a_run_whose_owner_is_blocked_and_the_owner_is_fenced(account, settings):
    """A handler that holds the event loop: its lease is renewed, and nobody in its loop can end it."""
    settings.HANDLER_GRACE_SECONDS = 0.2
    begun, release = threading.Event(), threading.Event()

    async def blocking(ctx, run_input):
        begun.set()
        release.wait(120)
        return "late"

    fenced = metrics.fenced_writes._value.get()
    with (
        working.registered("test.blocking", blocking, time_limit_seconds=SHORT, estimate=1000),
        at_work("test.blocking", lease=3.0) as worker,
    ):
        run = working.submit(account, agent="test.blocking")
        try:
            assert begun.wait(60)
            until("failed", run)
            assert run.transitions.get(fence=3).actor == worker.config.consumer  # its sweeper's thread
            row = Run.objects.filter(pk=run.pk).values().get()
        finally:
            release.set()
        eventually(lambda: not worker.owned.all(), timeout=60)

    assert metrics.fenced_writes._value.get() > fenced
    found = Run.objects.filter(pk=run.pk).values().get()
    assert {**found, "log_closed_at": None} == {**row, "log_closed_at": None}
    assert (run.error["class"], run.result) == ("timeout", None)
    assert DeadLetter.objects.count() == 1
    invariants.check(account)
