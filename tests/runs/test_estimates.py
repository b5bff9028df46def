"""Estimates: fixed, a function of the input, or the p95 of an account's recent costs (money 2)."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quotas.models import AMOUNT_MAX, Hold
from runs import agents
from runs.errors import InvalidInputRefused, InvalidRequest
from runs.estimates import recent
from runs.models import Run
from runs.services import estimating
from runs.services.estimating import ENOUGH, KEPT, LATEST, estimate_of, forget_costs, sample_estimate
from tests import builders, working
from tests.working import registered

pytestmark = pytest.mark.django_db
AGENT = "test.varied"
TYPICAL = 1000
WORST = 10 * TYPICAL


@pytest.fixture
def varied():
    with registered(AGENT, estimate=recent(floor=200, typical=TYPICAL)):
        yield agents.get_agent(AGENT)


def ended(account, costs, state="succeeded", agent=AGENT, **fields):
    """Make ended runs of these costs, and have the next estimate see them."""
    for cost in costs:
        builders.make_run(state, account=account, agent=agent, cost=cost, **fields)
    forget_costs()


@pytest.mark.parametrize(
    ("declared", "held"),
    [
        (recent(typical=TYPICAL, fixed=5), TYPICAL),
        (recent(fixed=700), 700),
        (recent(typical=0, fixed=700), 0),
        (recent(floor=1500, typical=TYPICAL), 1500),
        (recent(), 0),
    ],
)
def test_with_fewer_than_twenty_ended_runs_the_typical_cost_is_held_else_the_fixed_one(account, declared, held):
    with registered(AGENT, estimate=declared):
        ended(account, [WORST] * (ENOUGH - 1))

        run = working.submit(account, agent=AGENT)

    assert Hold.objects.get(run_id=run.pk).amount == held
    run.refresh_from_db()
    assert run.budget == held


def test_with_twenty_the_p95_is_held_which_one_odd_run_does_not_move(account, varied):
    ended(account, [*range(101, 120), WORST])

    assert estimate_of(varied, {}, account) == 200, "the floor"

    ended(account, [900] * 20)
    assert estimate_of(varied, {}, account) == 900
    ended(account, [WORST] * 3)
    assert estimate_of(varied, {}, account) == WORST


@pytest.mark.parametrize(("count", "rank"), [(20, 19), (21, 20), (100, 95), (199, 190), (200, 190)])
def test_the_p95_is_by_the_nearest_rank(account, varied, count, rank):
    ended(account, [1000 + number for number in range(1, count + 1)])

    assert estimate_of(varied, {}, account) == 1000 + rank


def test_only_the_latest_count(account, varied):
    ended(account, [WORST] * 15)
    ended(account, [300] * LATEST)

    assert estimate_of(varied, {}, account) == 300


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "interrupted"])
def test_however_a_run_ended_its_cost_counts(account, varied, state):
    ended(account, [400] * 20, state)

    assert estimate_of(varied, {}, account) == 400


def test_what_never_began_or_is_not_over_or_is_another_agents_does_not_count(account, varied):
    ended(account, [WORST] * 20, "cancelled", started=False)
    ended(account, [WORST] * 20, agent="probe.ret")
    ended(account, [WORST] * 20, "running")

    assert estimate_of(varied, {}, account) == TYPICAL


def test_what_another_account_does_with_an_agent_is_neither_seen_nor_felt(account, other_account, varied):
    ended(other_account, [WORST] * 30)

    assert estimate_of(varied, {}, account) == TYPICAL
    assert estimate_of(varied, {}, other_account) == WORST


def test_an_estimate_from_costs_reads_once_in_a_while_and_the_others_never(account, varied):
    ended(account, [400] * 20)
    with CaptureQueriesContext(connection) as first:
        estimate_of(varied, {}, account)
    with CaptureQueriesContext(connection) as again:
        estimate_of(varied, {}, account)
        estimate_of(agents.get_agent("probe.ret"), {}, account)
        estimate_of(agents.get_agent("probe.spend"), {"amount": 3}, account)

    assert (len(first), len(again)) == (1, 0)


def test_the_memory_of_costs_is_bounded(account, varied, monkeypatch):
    monkeypatch.setattr(estimating, "_known", {(-number, AGENT): (0.0, 1) for number in range(KEPT)})

    estimate_of(varied, {}, account)

    assert len(estimating._known) == 1


# -- amounts that are none (F42) -------------------------------------------------------------------------------------
@pytest.mark.parametrize("amount", [-1, 2**63, 1.5, float("nan"), True, "7"])
@pytest.mark.parametrize("field", ["floor", "typical", "fixed"])
def test_an_amount_that_is_none_stops_the_start(field, amount):
    with pytest.raises(ImproperlyConfigured, match="estimate"), registered(AGENT, estimate=recent(**{field: amount})):
        pass
    with pytest.raises(ImproperlyConfigured, match="estimate"), registered(AGENT, estimate=amount):
        pass


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (float("nan"), InvalidInputRefused),
        (float("inf"), InvalidInputRefused),
        (None, InvalidInputRefused),
        ("many", InvalidInputRefused),
        (2**63, InvalidRequest),
        (AMOUNT_MAX + 1, InvalidRequest),
    ],
)
def test_a_function_that_answers_nonsense_is_a_refusal(account, answer, error):
    with registered(AGENT, estimate=lambda _: answer, sample={}), pytest.raises(error):
        working.submit(account, agent=AGENT)
    assert not Run.objects.exists()


def test_the_list_of_agents_does_not_fail_of_a_function_that_breaks(account):
    with registered(AGENT, estimate=lambda run_input: run_input["x"], sample={}):
        assert sample_estimate(agents.get_agent(AGENT), account) is None
