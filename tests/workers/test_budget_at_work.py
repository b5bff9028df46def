"""Runs that spend more than is reserved for them, on a whole worker: stopped or extended, settled once (money 5, 6)."""

import asyncio
import datetime as dt

import pytest
from django.utils import timezone
from structlog.testing import capture_logs

from quotas import services as money
from quotas.database import in_transaction
from quotas.models import AuditEntry, Hold, LedgerEntry, PriceBook
from quotas.prices import PriceTable, install_default_prices, set_price
from runs.models import Attempt, Run
from runs.outcomes import ErrorClass, Failed, HandedBack, Retryable
from runs.retry import Backoff
from runs.services import cancel_run, requeue_run, take_over
from runs.services.budget import Verdict
from runs.services.leaving import Lost
from runs.watch import Watcher
from tests import builders, invariants, working
from tests.api import Api
from tests.at_work import at_work, life, until
from tests.probes import eventually
from tests.racing import held_open
from tests.working import registered
from workers.aftermath import buried
from workers.attempt import EXTENDING_MAX, Attempts
from workers.leases import _renew
from workers.models import DeadLetter
from workers.owned import OwnedRuns
from workers.stream import Entry
from workers.units import Units

pytestmark = pytest.mark.django_db(transaction=True)
AT_ONCE = Backoff(base=0.0)
FOR_EVER = 60.0


def spending(*costs, then="done"):
    """Return a handler that reports costs until it is stopped, and else returns."""

    async def handler(ctx, run_input):
        for cost in costs:
            ctx.delta(f"{cost} ")
            ctx.usage.add_cost(cost)
            while ctx.usage._tell.__self__._deciding:
                await asyncio.sleep(0)
        return then

    return handler


def worked(account, handler, state, **spec):
    """Run a handler to its end on a worker. Returns the run."""
    with registered("test.spender", handler, **spec), at_work("test.spender"):
        run = working.submit(account, agent="test.spender")
        until(state, run)
    invariants.check(account)
    return run


def said(run, kind):
    return [event["data"] for event in invariants.all_events(run.pk) if event["kind"] == kind]


def numbers(account):
    account.refresh_from_db()
    return account.spent, account.held, account.in_flight


def test_a_run_over_its_budget_fails_keeps_its_text_and_is_settled_at_what_it_spent(account):
    run = worked(
        account, spending(600, 300, 600, 600), "failed", estimate=1000, max_attempts=3, retry_on=(ErrorClass.BUDGET,)
    )

    assert life(run) == ["run.queued", "run.started", "run.failed"]
    assert (run.error["class"], run.error["cause"], run.error["type"]) == (
        "budget",
        "budget_exceeded",
        "BudgetExceeded",
    )
    assert (run.result, run.cost, numbers(account)) == ("600 300 600 ", 1500, (1500, 0, 0))
    assert DeadLetter.objects.get().reason == "budget_exceeded"
    assert said(run, "budget.warning") == [{"budget": 1000, "spent": 900}]
    assert LedgerEntry.objects.get().amount == run.attempts.get().cost == 1500


def test_a_run_that_may_goes_on_with_more(account):
    run = worked(account, spending(600, 600, 600), "succeeded", estimate=1000, extend=True)

    assert (run.result, run.cost, run.budget) == ("done", 1800, 2200)
    assert said(run, "budget.extended") == [{"from": 1000, "budget": 2200, "spent": 1200}]
    hold = Hold.objects.get()
    assert (hold.amount, hold.actual, hold.extensions, numbers(account)) == (2200, 1800, 1, (1800, 0, 0))


def test_an_agent_without_an_estimate_is_extended_to_the_account_s_limit_and_stopped_there(account):
    type(account).objects.filter(pk=account.pk).update(limit=5000)

    run = worked(account, spending(*[900] * 10), "failed")

    assert run.error["cause"] == "budget_exceeded"
    assert "no room for more" in run.error["message"]
    assert (run.cost, numbers(account)) == (5400, (5400, 0, 0))
    assert [data["budget"] for data in said(run, "budget.extended")] == [1900, 4050, 4500]
    assert LedgerEntry.objects.get().overdraft


def test_a_success_that_costs_more_than_was_reserved_is_a_success_and_costs_what_it_cost(account):
    async def handler(ctx, run_input):
        ctx.usage.add_cost(9000)
        return "whole"

    run = worked(account, handler, "succeeded", estimate=1000)

    assert (run.result, numbers(account)) == ("whole", (9000, 0, 0))


def test_a_cancel_that_comes_before_the_stop_wins_and_what_was_made_is_kept_with_the_attempt(account):
    run = working.submit(account)
    (claimed,) = working.claim(run)
    cancel_run(run_id=run.pk, actor="tester")

    stopped = Failed(ErrorClass.BUDGET, "BudgetExceeded", "over", partial_json='"text"', cause="budget_exceeded")
    working.finish(working.finish_of(claimed, stopped, cost=5000))

    run.refresh_from_db()
    assert (run.state, run.result, run.attempts.get().result_json) == ("cancelled", None, '"text"')
    assert numbers(account) == (5000, 0, 0)


def test_a_handler_in_a_process_of_its_own_is_stopped_too_and_its_answer_kept(account):
    over = {"do": "overspend", "amount": 1200, "times": 1, "seconds": FOR_EVER}  # 1000 are reserved
    with at_work("probe.isolated"):
        runs = [working.submit(account, agent="probe.isolated", input=over | more) for more in ({"answer": [1, 2]}, {})]
        until("failed", *runs)

    assert {run.error["cause"] for run in runs} == {"budget_exceeded"}
    assert [run.result for run in runs] == [[1, 2], "part 1. "]
    assert numbers(account) == (2400, 0, 0)
    invariants.check_money([account])


def test_extensions_that_wait_for_their_account_leave_threads_to_everything_else(account):
    units = Units(EXTENDING_MAX + 1)
    attempts = Attempts(working.config(), OwnedRuns(), None, None, units)
    with registered("test.spender", estimate=1000, extend=True):
        claims = working.claim(*[working.submit(account, agent="test.spender") for _ in range(4)])
        budgets = [attempts._budget_of(working.owned_run(claim, None)) for claim in claims]

    async def wanted():
        more = [asyncio.ensure_future(budget._extend(2000)) for budget in budgets]
        while not attempts._extending.locked():
            await asyncio.sleep(0)
        await units.run(lambda: None)
        still = [one.done() for one in more]
        let_go()
        return still, await asyncio.gather(*more)

    try:
        with held_open(lambda: money.lock_account(account.pk)) as let_go:
            still, told = asyncio.run(wanted())
    finally:
        units.close()
        attempts.close()

    assert still == [False] * 4
    assert {(one.verdict, one.budget) for one in told} == {(Verdict.EXTENDED, 3000)}


# -- attempts add up -------------------------------------------------------------------------------------------------
def test_the_budget_is_of_the_run_and_a_retry_begins_with_what_is_left(account):
    async def handler(ctx, run_input):
        ctx.usage.add_cost(400)
        if ctx.attempt < 4:
            raise Retryable("again")

    run = worked(account, handler, "failed", estimate=1000, max_attempts=4, backoff=AT_ONCE)

    # The third attempt reports at its end and fails by itself; the fourth has nothing left, and does not begin.
    assert [attempt.cost for attempt in run.attempts.order_by("fence")] == [400, 400, 400, 0]
    assert (run.error["cause"], run.attempt, run.cost) == ("budget_exceeded", 4, 1200)
    assert numbers(account) == (1200, 0, 0)
    retried = said(run, "run.retrying")
    assert [(data["paid_by"], data["cost"]) for data in retried] == [
        (account.name, 400),
        (account.name, 800),
        (account.name, 1200),
    ]


def test_an_extension_stays_with_the_run_over_its_attempts(account):
    async def handler(ctx, run_input):
        ctx.usage.add_cost(2000)
        while ctx.usage._tell.__self__._deciding:
            await asyncio.sleep(0)
        if ctx.attempt == 1:
            raise Retryable("again")

    run = worked(account, handler, "succeeded", estimate=1000, extend=True, max_attempts=2, backoff=AT_ONCE)

    assert [data["budget"] for data in said(run, "budget.extended")] == [3000, 6000]
    assert (run.budget, run.cost, numbers(account)) == (6000, 4000, (4000, 0, 0))


def test_costs_add_up_over_a_hand_back_a_takeover_and_a_retry(account):
    with registered("test.spender", estimate=10_000, policy="rerun", max_attempts=5, backoff=AT_ONCE):
        run = working.submit(account, agent="test.spender")
        working.finish(working.finish_of(working.claim(run)[0], HandedBack("drain"), cost=100))
        run.refresh_from_db()
        lose(begin(run, cost=20))
        claimed = begin(run)
        assert (claimed.run.cost, claimed.run.budget) == (120, 10_000)
        working.finish(working.finish_of(claimed, cost=3))

    run.refresh_from_db()
    assert [attempt.cost for attempt in run.attempts.order_by("fence")] == [100, 20, 3]
    assert (run.cost, numbers(account)) == (123, (123, 0, 0))
    retaken = run.transitions.get(kind="run.retaken").data
    assert (retaken["paid_by"], retaken["cost"]) == (account.name, 120)
    invariants.check_money([account])


def begin(run, cost=0, **columns):
    """Claim a run whose time has come; its worker's last beat reported a cost."""
    run.refresh_from_db()
    if run.state == "scheduled":
        Run.objects.filter(pk=run.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))
        working.promote()
        run.refresh_from_db()
    claimed = working.claim(run)[0]
    Attempt.objects.filter(run=run, ended_at=None).update(cost=cost, **columns)
    return claimed


def lose(claimed):
    Run.objects.filter(pk=claimed.run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    row = Run.objects.get(pk=claimed.run.pk)
    seen = Lost(row.pk, row.fence, row.lease_expires_at)
    assert in_transaction(lambda: buried(take_over(seen, actor="sweeper"))) is not None


def test_who_pays_is_told_with_every_attempt_and_with_the_requeue(account):
    run = worked(account, spending(2000, 2000), "failed", estimate=1000)

    with registered("test.spender", estimate=1000):
        new = requeue_run(run_id=run.pk, actor="ada").run

    told = AuditEntry.objects.get(action="run.requeue")
    assert told.before == {"cost": 2000}
    assert told.after == {"retried_by": str(new.pk), "paid_by": account.name, "reserved": 1000}
    api = Api(builders.make_api_key(account)[1])
    assert [one["paid_by"] for one in api.get(f"/api/v1/runs/{run.pk}").json()["attempts"]] == [account.name]


# -- prices ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def prices(db):
    install_default_prices()
    PriceTable.forget()


@pytest.mark.parametrize("swallows", [False, True])
def test_an_unknown_model_ends_the_run_priced_usage_is_settled_and_the_rest_is_shown(account, prices, swallows):
    async def handler(ctx, run_input):
        ctx.usage.add("gpt-4o-mini", input=1_000_000)
        try:
            ctx.usage.add("nobody-knows", input=7, output=5)
        except Exception:
            if not swallows:
                raise
        return "as if nothing had been"

    run = worked(account, handler, "failed", estimate=200_000, max_attempts=3)

    assert (run.error["class"], run.error["cause"], run.attempt) == ("unknown_price", "fatal", 1)
    assert run.result == ("as if nothing had been" if swallows else None)
    assert numbers(account) == (150_000, 0, 0)
    usage = {"gpt-4o-mini": {"input": 1_000_000}, "nobody-knows": {"unpriced_input": 7, "unpriced_output": 5}}
    shown = Api(builders.make_api_key(account)[1]).get(f"/api/v1/runs/{run.pk}").json()
    assert shown["usage"] == shown["attempts"][0]["usage"] == usage
    assert LedgerEntry.objects.get().price_book_id == run.price_book == PriceBook.objects.get().pk
    line = money.adjust(account, amount=700, reason="12 tokens of nobody-knows", actor="ada", run_id=run.pk)
    assert (line.run_id, numbers(account)) == (run.pk, (150_700, 0, 0))


def test_the_ledger_names_the_price_book_of_the_attempt_and_not_the_one_of_its_takeover(account, prices):
    run = working.submit(account, agent="probe.ret")
    (claimed,) = working.claim(run)
    owned = working.owned_run(claimed, Entry("default", "s", "1-1", {}, 1))
    owned.ctx.usage.add("gpt-4o-mini", input=1_000_000)
    _renew([owned], 15.0)
    priced_by = PriceTable.current().version
    newer = set_price(model="gpt-4o-mini", prices={"input": 1}, actor="tester")

    lose(claimed)

    line = LedgerEntry.objects.get()
    assert (line.amount, line.price_book_id) == (150_000, priced_by)
    assert newer.pk != priced_by


def test_a_run_that_ends_while_it_waits_keeps_the_price_book_of_its_earlier_attempts(account, prices):
    run = working.submit(account, agent="probe.ret")
    book = PriceBook.objects.get().pk
    (claimed,) = working.claim(run)
    working.finish(working.finish_of(claimed, HandedBack("drain"), cost=9, price_book=book))

    cancel_run(run_id=run.pk, actor="tester")

    line = LedgerEntry.objects.get()
    assert (line.amount, line.price_book_id) == (9, book)


def test_a_worker_names_at_its_start_the_models_of_its_agents_that_have_no_price(account, prices):
    with (
        registered("test.prices", models=lambda given: ["nobody-knows"], sample={}),
        capture_logs() as logs,
        at_work("test.prices"),
    ):
        eventually(lambda: any(line["event"] == "worker.model_without_price" for line in logs))

    (named,) = [line for line in logs if line["event"] == "worker.model_without_price"]
    assert (named["model"], named["agents"]) == ("nobody-knows", ["test.prices"])


def test_the_page_of_a_run_and_a_terminal_tell_of_the_budget(account, client):
    run = worked(account, spending(800, 700), "failed", estimate=1000)
    client.force_login(builders.make_operator("root"))

    facts = client.get(f"/admin/runs/run/{run.pk}/facts.json").json()
    lines: list[str] = []
    Watcher(run.pk, account=account, write=lines.append).watch()

    assert (facts["result_name"], facts["result"]) == ("Partial output", '"800 700 "')
    assert ["Paid by", account.name, ""] in facts["money"]
    assert "[budget.warning] 0.0008 of 0.001 reserved credits are spent" in "".join(lines)
    assert 'partial output: "800 700 "' in "".join(lines)
