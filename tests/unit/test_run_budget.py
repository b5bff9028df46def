"""The budget of a run while its handler works: warned of, raised, or the end of it, whoever reports (money 6)."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.db import OperationalError

from agentops.testing import arun_agent
from quotas.errors import Busy
from runs.agents import AgentSpec
from runs.estimates import recent
from runs.outcomes import BadOutput, Cancelled, ErrorClass, Failed, InvalidInput, Succeeded
from runs.services.budget import Extension, Verdict
from tests import working
from tests.probes import aeventually
from workers.budget import Budget
from workers.executor import Execution, Time

SECONDS = 30.0


class Trial:
    """A handler under a budget. `answers` are what its wishes for more get, one after the other; None: no wishes."""

    def __init__(self, handler, amount, *, answers=None, before=0, grace=5.0, **fields):
        self.ctx = working.context()
        spec = AgentSpec(name="test", handler=handler, **fields)
        self.execution = Execution(spec, self.ctx, None, time=Time(SECONDS), grace=grace)
        self.asked = []
        self.answers = list(answers or ())
        extend = None if answers is None else self._extend
        self.budget = Budget(self.execution, self.ctx._buffer, amount=amount, before=before, extend=extend)

    async def _extend(self, spent):
        self.asked.append(spent)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run(self):
        with ThreadPoolExecutor(2) as threads:
            self.budget.begin()
            outcome = await self.execution.run(threads)
        self.budget.close()
        return outcome

    def events(self, kind):
        lines = [json.loads(line.body) for line in self.ctx._buffer.after("")]
        return [line["data"] for line in lines if line["kind"] == kind]


async def decided(ctx):
    """Wait until it is decided what a report leads to; where it leads to the end, for that."""
    while ctx.usage._tell.__self__._deciding:
        await asyncio.sleep(0)


def reporting(*costs, then=None):
    """Return a handler that reports costs, one after the other, and returns."""

    async def handler(ctx, run_input):
        for cost in costs:
            ctx.delta(f"{cost} ")
            ctx.usage.add_cost(cost)
            await decided(ctx)
        return then

    return handler


def extended(budget):
    return Extension(Verdict.EXTENDED, budget)


async def test_within_the_budget_nothing_is_said_and_at_four_fifths_once():
    trial = Trial(reporting(79, 1, 10, 10, then="done"), 100)

    outcome = await trial.run()

    assert outcome == Succeeded('"done"')
    assert trial.events("budget.warning") == [{"budget": 100, "spent": 80}]


@pytest.mark.parametrize("budget", [0, 99])
async def test_a_run_over_its_budget_is_stopped_and_its_text_is_kept(budget):
    trial = Trial(reporting(50, 50, 50, 50), budget)

    outcome = await trial.run()

    spent = 50 if budget == 0 else 100
    assert isinstance(outcome, Failed)
    assert (outcome.error_class, outcome.type, outcome.cause) == (
        ErrorClass.BUDGET, "BudgetExceeded", "budget_exceeded",
    )  # fmt: skip
    assert f"spent {spent} micro-units of the {budget}" in outcome.message
    assert (outcome.retry_in, trial.ctx.usage.cost) == (None, spent)
    assert json.loads(outcome.partial_json) == "50 " * (spent // 50)
    assert trial.events("budget.warning") == []


async def test_a_stop_for_the_budget_is_never_tried_again_whatever_the_agent_says():
    outcome = await Trial(reporting(50, 50), 10, retry_on=(ErrorClass.BUDGET,), max_attempts=3).run()

    assert (outcome.error_class, outcome.retry_in) == (ErrorClass.BUDGET, None)


async def test_what_a_handler_returns_when_it_is_told_to_stop_is_its_partial_output_whatever_the_schema():
    async def handler(ctx, run_input):
        try:
            ctx.delta("text")
            ctx.usage.add_cost(50)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {"half": True}

    outcome = await Trial(handler, 10, output_schema={"required": ["whole"]}).run()

    assert (outcome.error_class, json.loads(outcome.partial_json)) == (ErrorClass.BUDGET, {"half": True})


async def test_an_answer_of_no_use_is_partial_output_too_and_any_other_failure_leaves_the_text():
    def raising(error):
        async def handler(ctx, run_input):
            ctx.delta("text")
            ctx.usage.add_cost(50)
            try:
                await asyncio.Event().wait()
            finally:
                raise error

        return handler

    bad = await Trial(raising(BadOutput("no", {"answer": 1})), 10).run()
    other = await Trial(raising(RuntimeError("boom")), 10).run()

    assert (bad.error_class, json.loads(bad.partial_json)) == (ErrorClass.BUDGET, {"answer": 1})
    assert (other.error_class, json.loads(other.partial_json)) == (ErrorClass.BUDGET, "text")


async def test_a_handler_that_reports_at_its_end_and_returns_has_succeeded():
    async def later(ctx, run_input):
        ctx.usage.add_cost(500)
        return "whole"

    def at_once(ctx, run_input):
        ctx.usage.add_cost(500)
        return "whole"

    for handler in (later, at_once):
        trial = Trial(handler, 10)
        assert await trial.run() == Succeeded('"whole"')
        assert trial.ctx.usage.cost == 500


async def test_a_handler_that_fails_by_itself_after_its_last_report_has_failed_by_itself():
    async def handler(ctx, run_input):
        ctx.usage.add_cost(500)
        raise InvalidInput("nothing in it")

    outcome = await Trial(handler, 10).run()

    assert (outcome.error_class, outcome.message) == (ErrorClass.INPUT, "nothing in it")


async def test_a_sync_handler_sees_it_in_its_next_look_and_what_it_returns_is_partial():
    def handler(ctx, run_input):
        for number in range(100):
            ctx.usage.add_cost(30)
            if ctx.cancelled:
                return number
        return "never looked"

    outcome = await Trial(handler, 50).run()

    assert (outcome.error_class, outcome.partial_json) == (ErrorClass.BUDGET, "1")


async def test_a_handler_that_ignores_the_stop_is_abandoned():
    over = asyncio.Event()

    async def handler(ctx, run_input):
        ctx.delta("text")
        ctx.usage.add_cost(30)
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    trial = Trial(handler, 10, grace=0.05)
    outcome = await trial.run()
    over.set()
    await trial.execution.abandoned

    assert (outcome.error_class, outcome.partial_json) == (ErrorClass.BUDGET, '"text"')


async def test_the_text_that_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr("workers.context.TEXT_MAX", 10)

    async def handler(ctx, run_input):
        for _ in range(5):
            ctx.delta("12345678")
        ctx.usage.add_cost(50)
        await asyncio.Event().wait()

    outcome = await Trial(handler, 10).run()

    assert json.loads(outcome.partial_json) == "1234567812"


async def test_more_is_asked_for_as_much_as_is_spent_and_the_run_goes_on():
    trial = Trial(reporting(50, 30, 70, then="done"), 60, answers=[extended(120), extended(225)])

    assert await trial.run() == Succeeded('"done"')

    assert trial.asked == [80, 150]
    assert trial.events("budget.extended") == [
        {"from": 60, "budget": 120, "spent": 80},
        {"from": 120, "budget": 225, "spent": 150},
    ]
    assert [data["budget"] for data in trial.events("budget.warning")] == [60]


async def test_a_budget_that_is_extended_to_just_what_is_spent_warns_again():
    trial = Trial(reporting(85, 35, then="done"), 100, answers=[extended(120)])

    await trial.run()

    assert trial.events("budget.warning") == [{"budget": 100, "spent": 85}, {"budget": 120, "spent": 120}]


async def test_reports_that_come_while_more_is_asked_for_are_asked_for_next():
    answered = asyncio.Event()

    async def handler(ctx, run_input):
        await asyncio.gather(*[asyncio.to_thread(ctx.usage.add_cost, 20) for _ in range(6)])
        answered.set()
        await decided(ctx)
        return "done"

    trial = Trial(handler, 10, answers=[extended(30), extended(200)])
    answer = trial.budget._extend

    async def late(spent):
        await answered.wait()
        return await answer(spent)

    trial.budget._extend = late

    assert await trial.run() == Succeeded('"done"')
    assert trial.budget.amount == 200
    assert trial.asked[-1] == 120


@pytest.mark.parametrize("error", [Busy(), OperationalError("the database is away")])
async def test_a_wish_that_the_database_could_not_hear_is_repeated(error):
    trial = Trial(reporting(50, then="done"), 10, answers=[error, error, extended(75)])

    assert await trial.run() == Succeeded('"done"')

    assert trial.asked == [50, 50, 50]
    assert trial.budget.amount == 75


@pytest.mark.parametrize(("verdict", "kind"), [(Verdict.NO_ROOM, Failed), (Verdict.CANCELLED, Cancelled)])
async def test_a_refused_wish_stops_the_run_by_its_reason(verdict, kind):
    trial = Trial(reporting(50), 10, answers=[Extension(verdict, 10)])

    outcome = await trial.run()

    assert isinstance(outcome, kind)
    assert trial.asked == [50]
    if verdict is Verdict.NO_ROOM:
        assert "no room for more" in outcome.message


async def test_a_wish_of_a_run_that_is_somebody_elses_is_not_repeated_and_stops_nothing():
    trial = Trial(None, 10, answers=[Extension(Verdict.LOST, 0)])
    trial.budget.begin()

    trial.ctx.usage.add_cost(50)
    await aeventually(lambda: trial.budget._task and trial.budget._task.done())
    trial.ctx.usage.add_cost(50)

    assert (trial.asked, trial.execution.reason) == ([50], None)


async def test_an_attempt_begins_with_what_the_earlier_ones_left():
    within, over, beyond = (Trial(reporting(20, then="done"), 100, before=before) for before in (80, 90, 101))

    assert await within.run() == Succeeded('"done"')
    assert (await over.run()).error_class is ErrorClass.BUDGET
    assert (await beyond.run()).error_class is ErrorClass.BUDGET

    assert within.events("budget.warning") == [{"budget": 100, "spent": 100}]
    assert (over.ctx.usage.cost, beyond.ctx.usage.cost) == (20, 0)  # the last one did not begin


async def test_after_the_end_nothing_is_decided():
    trial = Trial(reporting(1, then="done"), 10, answers=[])
    await trial.run()

    trial.ctx.usage.add_cost(1000)
    await asyncio.sleep(0)

    assert (trial.asked, trial.execution.reason) == ([], None)


@pytest.mark.parametrize("kind", ["budget.warning", "budget.extended"])
def test_an_agent_cannot_say_what_is_the_services_to_say(kind):
    with pytest.raises(ValueError, match=kind):
        working.context().emit(kind)


@pytest.mark.parametrize(
    ("estimate", "extend", "may"),
    [
        ({}, None, True),
        ({}, False, False),
        ({"estimate": 5}, None, False),
        ({"estimate": 5}, True, True),
        ({"estimate": recent(typical=5)}, None, True),
    ],
)
def test_who_declares_an_amount_is_held_to_it_unless_told_otherwise(estimate, extend, may):
    with working.registered("test.amount", extend=extend, **estimate) as name:
        assert working.agents.get_agent(name).may_extend is may


@pytest.mark.django_db(transaction=True)
async def test_an_authors_test_may_give_a_budget():
    with working.registered("test.spends", reporting(40, 40, 40)):
        stopped = await arun_agent("test.spends", {}, budget=100)
        enough = await arun_agent("test.spends", {}, budget=120)

    assert (stopped.outcome, stopped.error["class"], stopped.error["cause"]) == ("failed", "budget", "budget_exceeded")
    assert (stopped.partial, stopped.cost) == ("40 40 40 ", 120)
    assert [event["kind"] for event in enough.events].count("budget.warning") == 1
    assert (enough.outcome, enough.cost) == ("succeeded", 120)
