"""The gauges of money: what is held and spent, and counters that differ from their rows."""

import pytest
from prometheus_client import REGISTRY

from agentops.counting import count
from quotas.models import Account, Hold
from runs import broker
from tests import builders, working
from workers import drift, holder
from workers.drift import DriftWatch
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


def shown(name, **labels):
    return REGISTRY.get_sample_value(f"agentops_{name}", labels)


def drift_shown():
    return {kind: shown("hold_drift", kind=kind) for kind in ("spent", "held", "in_flight")}


@pytest.fixture
def watch():
    made = DriftWatch()
    yield made
    made.hush()


def test_what_is_held_and_spent_is_shown_of_all_accounts_together(watch, account, other_account):
    for one, cost in ((account, 5), (other_account, 7)):
        builders.make_run("succeeded", account=one, cost=cost)
        builders.make_run("queued", account=one, estimate=100)
    Hold.objects.filter(account=other_account, state="active").update(state="expired")
    Account.objects.filter(pk=other_account.pk).update(held=0)

    watch.run_once()

    assert (shown("units", kind="spent"), shown("units", kind="held")) == (12, 100)
    assert (shown("holds", state="active"), shown("holds", state="expired")) == (1, 1)
    assert drift_shown() == {"spent": 0, "held": 0, "in_flight": 0}


def test_counters_that_differ_are_shown_by_how_much(watch, account, other_account):
    Account.objects.filter(pk=account.pk).update(spent=30, in_flight=-1)
    Account.objects.filter(pk=other_account.pk).update(spent=-5)

    watch.run_once()

    assert drift_shown() == {"spent": 35, "held": 0, "in_flight": 1}


def test_a_pass_that_has_taken_its_time_leaves_the_rest_of_the_walk_to_the_next(watch, monkeypatch):
    monkeypatch.setattr(drift, "PAGE", 2)
    monkeypatch.setattr(drift, "PASS_SECONDS", 0.0)
    for number in range(5):
        Account.objects.filter(pk=builders.make_account(f"a{number}").pk).update(held=1)

    for expected in (None, None, 5):
        watch.run_once()
        assert drift_shown()["held"] == expected
    with count() as counted:
        watch.run_once()

    assert counted.statements == 0  # the next walk begins in a minute


def test_it_costs_three_statements_for_ten_accounts(watch):
    for number in range(30):
        builders.make_run("queued", account=builders.make_account(f"a{number}"))

    with count() as counted:
        watch.run_once()

    assert counted.statements <= 11, counted.sql  # three full pages, the end of the walk, and the holds by state


def test_only_the_holder_of_the_sweepers_lease_shows_them(account, redis):
    sweeper = Sweeper(working.config(), broker.client(), ["drift"])
    assert sweeper.run_once().done == ["drift"]
    assert drift_shown()["held"] == 0

    sweeper.let_go()
    assert holder.hold(broker.client(), "somebody else").mine
    assert sweeper.run_once().done == []

    assert drift_shown()["held"] is None
