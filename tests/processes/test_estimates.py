"""An honest estimate: what is typical is held, so a budget for twenty typical runs lets twenty run (money 2)."""

import pytest

from quotas.errors import QuotaExceeded
from quotas.models import Account
from runs.models import Run
from runs.services.estimating import forget_costs
from runs.states import RunState
from tests import builders, invariants
from tests.probes import eventually
from tests.processes.trials import submit, until
from tests.racing import in_parallel
from workers.agents.probe import TYPICAL_COST, WORST_COST

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
RUNS = 20


def account_for(typical: int, *, history: list[int]) -> Account:
    """Make an account that has room for so many typical runs, after runs of these costs."""
    account = builders.make_account(period="none", max_in_flight=1000)
    for cost in history:
        builders.make_run("succeeded", account=account, agent="probe.varied", cost=cost)
    Account.objects.filter(pk=account.pk).update(limit=sum(history) + typical * TYPICAL_COST)
    account.refresh_from_db()
    forget_costs()
    return account


def all_at_work(runs: list[Run]) -> None:
    running = Run.objects.filter(pk__in=[run.pk for run in runs], state=RunState.RUNNING)
    eventually(lambda: running.count() == len(runs), timeout=60)


@pytest.mark.parametrize("history", [[], [*[TYPICAL_COST] * 39, WORST_COST]], ids=["declared", "p95"])
def test_twenty_runs_whose_worst_case_is_ten_times_as_dear_run_at_once_on_a_budget_for_twenty(stack, history):
    account = account_for(RUNS, history=history)
    stack.worker(concurrency=RUNS)

    runs = in_parallel(*[lambda: submit(account, "probe.varied", seconds=10)] * RUNS)
    with pytest.raises(QuotaExceeded):
        submit(account, "probe.varied")

    all_at_work(runs)
    account.refresh_from_db()
    assert account.held == RUNS * TYPICAL_COST
    until("succeeded", *runs, timeout=90)
    account.refresh_from_db()
    assert (account.spent, account.held) == (account.limit, 0)
    eventually(lambda: invariants.check(account), timeout=20)


def test_the_one_that_meets_its_worst_case_gets_more_where_there_is_more(stack):
    account = account_for(RUNS + 9, history=[])
    stack.worker(concurrency=RUNS)

    runs = [submit(account, "probe.varied", seconds=10, is_worst=number == 7) for number in range(RUNS)]

    all_at_work(runs)
    until("succeeded", *runs, timeout=90)
    costs = Run.objects.filter(account=account).values_list("cost", flat=True)
    assert sorted(costs) == [*[TYPICAL_COST] * (RUNS - 1), WORST_COST]
    account.refresh_from_db()
    assert (account.spent, account.held) == (account.limit, 0)
    eventually(lambda: invariants.check(account), timeout=20)
