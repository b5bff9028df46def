"""What is tried again: what a handler raises and returns, on a whole worker (protocol 2, 11.2, 11.4)."""

import asyncio
import datetime as dt

import pytest

from quotas.models import LedgerEntry
from runs.outcomes import BadOutput, ErrorClass, Fatal, InvalidInput, Retryable
from runs.retry import Backoff
from runs.services import cancel_run
from tests import invariants, working
from tests.at_work import at_work, life, until
from tests.working import registered
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)
AT_ONCE = Backoff(base=0.0)


class Flaky(Exception):
    """An error of the agent's own."""


def scripted(*acts):
    """Return a handler that does one act an attempt: raises it, or returns it."""

    async def handler(ctx, run_input):
        act = acts[min(ctx.attempt, len(acts)) - 1]
        ctx.delta(f"<{ctx.attempt}>")
        ctx.usage.add_cost(10)
        if isinstance(act, BaseException):
            raise act
        return act

    return handler


def worked(account, *acts, attempts=3, **spec):
    """Run a handler of these acts to its end on a worker. Returns the run."""
    spec = {"backoff": AT_ONCE, "max_attempts": attempts, "estimate": 1000} | spec
    with registered("test.acts", scripted(*acts), **spec), at_work("test.acts"):
        run = working.submit(account, agent="test.acts")
        until("succeeded" if not isinstance(acts[-1], BaseException) else "failed", run)
    invariants.check(account)
    return run


FOR_GOOD = ("run.queued", "run.started", "run.failed")
TWICE = ("run.queued", "run.started", "run.retrying", "run.queued", "run.started", "run.failed")


@pytest.mark.parametrize(
    ("error", "spec", "cause"),
    [
        (RuntimeError("boom"), {}, "exhausted"),
        (Retryable("later"), {}, "exhausted"),
        (BadOutput("no verse", {"answer": 1}), {}, "exhausted"),
        (Fatal("never"), {}, "fatal"),
        (InvalidInput("no page"), {}, "fatal"),
        (Flaky("x"), {"retry_on": (Flaky,)}, "exhausted"),
        (RuntimeError("boom"), {"retry_on": (Flaky,)}, "fatal"),
        (RuntimeError("boom"), {"retry_on": (ErrorClass.AGENT_BUG,)}, "exhausted"),
        (Flaky("x"), {"fatal_on": (Flaky,)}, "fatal"),
        (Flaky("x"), {"retry_on": (Exception,), "fatal_on": (Flaky,)}, "fatal"),
        (BadOutput("no verse"), {"fatal_on": (ErrorClass.BAD_OUTPUT,)}, "fatal"),
        (Retryable("later"), {"retry_on": (Flaky,)}, "exhausted"),
        (Fatal("never"), {"retry_on": (Fatal,)}, "fatal"),
        (asyncio.CancelledError(), {}, "exhausted"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_agent_says_what_is_tried_again(account, error, spec, cause):
    run = worked(account, error, attempts=2, **spec)

    assert run.error["cause"] == cause
    assert (run.attempt, run.cost) == ((2, 20) if cause == "exhausted" else (1, 10))
    assert life(run).count("run.started") == run.attempt
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_class) == (cause, run.error_class)


def test_a_run_that_fails_twice_and_then_succeeds_is_a_success_with_three_attempts(account):
    run = worked(account, RuntimeError("one"), Retryable("two", after=0), "three")

    assert (run.result, run.attempt, run.cost, run.error) == ("three", 3, 30, None)
    assert [attempt.error_class for attempt in run.attempts.order_by("fence")] == [
        "agent_bug", "provider_transient", "",
    ]  # fmt: skip
    assert LedgerEntry.objects.get().amount == 30
    assert DeadLetter.objects.count() == 0


def test_what_an_attempt_showed_is_voided_by_the_first_event_of_the_next(account):
    run = worked(account, Retryable("one", after=0), Retryable("two", after=0.001), "three")

    events = [event for event in invariants.all_events(run.pk) if not event["kind"].startswith("run.")]
    said = [(event["kind"], event["data"].get("text", event["data"].get("after"))) for event in events]
    assert said == [
        ("output.delta", "<1>"),
        ("output.rollback", ""),
        ("output.delta", "<2>"),
        ("output.rollback", ""),
        ("output.delta", "<3>"),
    ]
    for event in events:
        if event["kind"] == "output.rollback":
            assert invariants.position(event["id"])[1] == 2


def test_a_provider_that_says_when_is_asked_again_then(account):
    with registered("test.acts", scripted(Retryable("busy", after=900)), max_attempts=2), at_work("test.acts"):
        run = working.submit(account, agent="test.acts")
        until("scheduled", run)
    wait = run.not_before - run.attempts.get().ended_at

    assert dt.timedelta(seconds=890) < wait < dt.timedelta(seconds=960)
    cancel_run(run_id=run.pk, actor="tester")
    invariants.check(account)


def test_a_provider_that_asks_for_more_time_than_is_left_ends_the_run(account):
    run = worked(account, Retryable("busy", after=3600), attempts=2, wall_clock_seconds=1800.0)

    assert (run.attempt, run.error["cause"]) == (1, "exhausted")


def test_a_result_that_does_not_fit_the_schema_is_tried_again_and_the_last_one_kept(account):
    run = worked(account, "1", RuntimeError("boom"), attempts=2, output_schema={"type": "integer"})

    assert [attempt.result_json for attempt in run.attempts.order_by("fence")] == ['"1"', None]
    assert (run.error["cause"], run.error_class) == ("exhausted", "agent_bug")


def test_bad_output_as_a_context_says_it_carries_its_answer(account):
    async def handler(ctx, run_input):
        ctx.bad_output("no verse", {"said": "ä"})

    with registered("test.bad", handler, backoff=AT_ONCE, max_attempts=2), at_work("test.bad"):
        run = working.submit(account, agent="test.bad")
        until("failed", run)

    assert (run.error_class, run.error["cause"], run.result) == ("bad_output", "exhausted", {"said": "ä"})
    invariants.check(account)
