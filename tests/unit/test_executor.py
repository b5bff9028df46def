"""Every way a handler can end, and the outcome it becomes. An execution never raises."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from quotas.errors import UnknownPrice
from runs.agents import AgentSpec
from runs.outcomes import Cancelled, ErrorClass, Failed, Fatal, Interrupted, InvalidInput, Succeeded
from tests import working
from workers.executor import Execution, Stop, Time


def execution(handler, *, run_input=None, time_limit=20.0, grace=0.05, **fields):
    spec = AgentSpec(name="test", handler=handler, **fields)
    return Execution(spec, working.context(), run_input, time=Time(time_limit), grace=grace)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(2) as pool:
        yield pool


async def ended(handler, threads, **fields):
    async with asyncio.timeout(10):
        return await execution(handler, **fields).run(threads)


def both(body):
    """Return an async and a sync handler of one body."""

    async def later(ctx, run_input):
        return body()

    return later, lambda ctx, run_input: body()


def raising(error):
    def body():
        raise error

    return body


@pytest.mark.parametrize("value", [None, 1, "text", {"a": [1, None]}, "a\0b", 2**70, []])
async def test_a_returned_value_is_kept_as_json(threads, value):
    for handler in both(lambda: value):
        outcome = await ended(handler, threads)
        assert isinstance(outcome, Succeeded)
        assert json.loads(outcome.result_json) == value


async def test_a_handler_gets_its_context_and_its_input(threads):
    async def handler(ctx, run_input):
        return [ctx.attempt, ctx.fence, ctx.operation_id("pay") == f"{ctx.run_id}:pay", run_input]

    outcome = await ended(handler, threads, run_input={"x": 1})

    assert outcome == Succeeded('[1,2,true,{"x":1}]')


@pytest.mark.parametrize(
    ("error", "error_class", "kind"),
    [
        (RuntimeError("boom"), ErrorClass.AGENT_BUG, "RuntimeError"),
        (Fatal("boom"), ErrorClass.AGENT_BUG, "Fatal"),
        (Fatal("boom", ErrorClass.NOT_CONFIGURED), ErrorClass.NOT_CONFIGURED, "Fatal"),
        (InvalidInput("boom"), ErrorClass.INPUT, "InvalidInput"),
        (UnknownPrice(model="boom", kind="input"), ErrorClass.UNKNOWN_PRICE, "UnknownPrice"),
        (MemoryError("boom"), ErrorClass.AGENT_BUG, "MemoryError"),
        (RecursionError("boom"), ErrorClass.AGENT_BUG, "RecursionError"),
        (SystemExit("boom"), ErrorClass.AGENT_BUG, "SystemExit"),
        (KeyboardInterrupt("boom"), ErrorClass.AGENT_BUG, "KeyboardInterrupt"),
        (GeneratorExit("boom"), ErrorClass.AGENT_BUG, "GeneratorExit"),
        (ExceptionGroup("boom", [ValueError("inner")]), ErrorClass.AGENT_BUG, "ExceptionGroup"),
        (TimeoutError("boom"), ErrorClass.AGENT_BUG, "TimeoutError"),
    ],
)
async def test_whatever_a_handler_raises_fails_its_own_run(threads, error, error_class, kind):
    for handler in both(raising(error)):
        outcome = await ended(handler, threads)
        assert isinstance(outcome, Failed)
        assert (outcome.error_class, outcome.type) == (error_class, kind)
        assert "boom" in outcome.message
        assert "raise error" in outcome.traceback


async def test_an_iterator_that_ran_dry_is_a_failure_and_no_endless_wait(threads):
    for handler in both(lambda: next(iter([]))):
        outcome = await ended(handler, threads)
        assert isinstance(outcome, Failed)
        assert outcome.error_class is ErrorClass.AGENT_BUG


async def test_endless_recursion_fails_its_own_run(threads):
    def deeper():
        return deeper()

    for handler in both(deeper):
        outcome = await ended(handler, threads)
        assert (outcome.type, len(outcome.traceback) < 21_000) == ("RecursionError", True)


async def test_a_handler_that_cancels_itself_has_failed(threads):
    for handler in both(raising(asyncio.CancelledError("boom"))):
        outcome = await ended(handler, threads)
        assert isinstance(outcome, Failed)
        assert outcome.type == "CancelledError"


async def test_a_huge_message_is_cut_and_cleaned(threads):
    outcome = await ended(both(raising(ValueError("a\0\ud83d" + "x" * 5_000_000)))[0], threads)

    assert len(outcome.message) < 5_000
    assert len(outcome.traceback) < 25_000
    assert "\0" not in outcome.message + outcome.traceback
    (outcome.message + outcome.traceback).encode("utf-8")


async def test_an_exception_that_cannot_be_shown_is_still_a_failure(threads):
    class Broken(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    outcome = await ended(both(raising(Broken()))[0], threads)

    assert (outcome.type, outcome.message) == ("Broken", "(Broken cannot be shown)")


def _endless():
    value = []
    value.append(value)
    return value


def _deep():
    value = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("make", [lambda: float("nan"), object, lambda: {1, 2}, lambda: b"x", _endless, _deep])
async def test_a_result_that_is_not_json_fails_the_run(threads, make):
    outcome = await ended(both(make)[0], threads)

    assert isinstance(outcome, Failed)
    assert outcome.error_class is ErrorClass.AGENT_BUG
    assert outcome.message.startswith("The result is not JSON")


async def test_a_result_outside_the_output_schema_fails_and_is_kept(threads):
    schema = {"type": "object", "required": ["answer"]}

    good = await ended(both(lambda: {"answer": 1})[0], threads, output_schema=schema)
    bad = await ended(both(lambda: {"other": 1})[0], threads, output_schema=schema)

    assert isinstance(good, Succeeded)
    assert (bad.error_class, bad.partial_json) == (ErrorClass.BAD_OUTPUT, '{"other":1}')
    assert "answer" in bad.message


async def test_an_output_schema_that_cannot_be_applied_fails_the_run(threads):
    outcome = await ended(both(lambda: 1)[0], threads, output_schema={"$ref": "#/nowhere"})

    assert isinstance(outcome, Failed)
    assert outcome.error_class is ErrorClass.BAD_OUTPUT


async def test_the_time_limit_ends_a_handler_and_says_so(threads):
    outcome = await ended(_sleeper()[0], threads, time_limit=0.05)

    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.message) == (
        ErrorClass.TIMEOUT,
        "The time limit passed.",
    )


def _sleeper(*, stubborn=False):
    """Return a handler that waits, and what it noticed."""
    noticed: list[str] = []

    async def handler(ctx, run_input):
        noticed.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            noticed.append(f"cancelled {ctx.cancelled}")
            if not stubborn:
                raise
            await asyncio.Event().wait()

    return handler, noticed


async def stopped(handler, threads, noticed, *reasons):
    one = execution(handler)
    task = asyncio.create_task(one.run(threads))
    while "started" not in noticed:
        await asyncio.sleep(0)
    for reason in reasons:
        one.stop(reason)
    async with asyncio.timeout(20):
        return one, await task


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (Stop.CANCEL, Cancelled()),
        (Stop.DRAIN, Interrupted("the worker was stopped before the run could end")),
        (Stop.LOST, Interrupted("the worker could not renew its lease")),
    ],
)
async def test_a_stopped_handler_ends_by_the_reason_of_the_stop(threads, reason, outcome):
    handler, noticed = _sleeper()

    one, said = await stopped(handler, threads, noticed, reason)

    assert said == outcome
    assert noticed == ["started", "cancelled True"]
    assert not one.abandoned


async def test_the_first_reason_to_stop_counts(threads):
    handler, noticed = _sleeper()

    assert (await stopped(handler, threads, noticed, Stop.CANCEL, Stop.DRAIN))[1] == Cancelled()


async def test_a_handler_that_answers_in_spite_of_a_cancel_is_heard(threads):
    noticed = []

    async def handler(ctx, run_input):
        noticed.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "partial"

    assert (await stopped(handler, threads, noticed, Stop.CANCEL))[1] == Succeeded('"partial"')


async def test_a_stubborn_handler_is_abandoned_after_its_grace(threads):
    handler, noticed = _sleeper(stubborn=True)

    one, said = await stopped(handler, threads, noticed, Stop.CANCEL)

    assert said == Cancelled()
    assert one.abandoned
    for task in asyncio.all_tasks():
        if task.get_name().startswith("run "):
            task.cancel()


async def test_a_sync_handler_sees_the_cancel_and_is_abandoned_if_it_does_not_look(threads):
    looked, release = [], threading.Event()

    def handler(ctx, run_input):
        looked.append("started")
        release.wait(20)
        return ctx.cancelled

    one, said = await stopped(handler, threads, looked, Stop.CANCEL)
    release.set()

    assert said == Cancelled()
    assert one.abandoned
    assert one.ctx.cancelled


async def test_a_sync_handler_that_looks_at_the_cancel_is_waited_for(threads):
    looked = []

    def handler(ctx, run_input):
        looked.append("started")
        while not ctx.cancelled:
            pass
        return "partial"

    one, said = await stopped(handler, threads, looked, Stop.CANCEL)

    assert said == Succeeded('"partial"')
    assert not one.abandoned


async def test_a_handler_that_was_stopped_before_it_began_does_not_begin(threads):
    handler, noticed = _sleeper()
    one = execution(handler)
    one.stop(Stop.CANCEL)

    assert await one.run(threads) == Cancelled()
    assert noticed == []
