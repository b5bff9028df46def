"""Reconciling: counters against rows, and holds that are closed only with proof that their run is over (money 4)."""

import uuid

import pytest
from django.utils import timezone

from agentops import invariants
from agentops.counting import count
from quotas import services as money
from quotas.models import Account, AuditEntry, Hold, LedgerEntry
from runs.services import leaks
from tests import builders, working

pytestmark = pytest.mark.django_db
RIGHT = {"spent": 0, "held": 0, "in_flight": 0}


def look(account, *, fix=False):
    return leaks.reconcile(account.pk, fix=fix, actor="tester", request_id="req-1")


def leaked(account, state, **fields):
    """An ended run whose hold is open again, as after a restored table."""
    run = builders.make_run(state, account=account, **fields)
    hold = Hold.objects.get(run_id=run.pk)
    Hold.objects.filter(pk=hold.pk).update(state="active", actual=None, closed_at=None)
    return run, hold


def counters(account):
    row = Account.objects.get(pk=account.pk)
    return {"spent": row.spent, "held": row.held, "in_flight": row.in_flight}


def test_nothing_is_found_where_all_is_well(account):
    working.submit(account)
    builders.make_run("succeeded", account=account, cost=5)
    builders.make_run("running", account=account)

    found = look(account)

    assert (found.figures.drift, found.leaks) == ({}, [])
    assert found.figures.stored == found.figures.counted == counters(account)
    assert not AuditEntry.objects.filter(action="account.reconciled").exists()


@pytest.mark.parametrize("kind", RIGHT)
def test_each_counter_that_differs_is_told_and_repaired(account, kind):
    working.submit(account, agent="probe.spend", input={"estimate": 600})
    builders.make_run("succeeded", account=account, cost=5)
    right = counters(account)
    wrong = right | {kind: right[kind] + 11}
    Account.objects.filter(pk=account.pk).update(**wrong)

    assert look(account).figures.drift == {kind: 11}
    assert counters(account) == wrong
    assert look(account, fix=True).figures.drift == {kind: 11}

    assert counters(account) == right
    assert look(account).figures.drift == {}
    entry = AuditEntry.objects.get(action="account.reconciled")
    assert (entry.before, entry.after, entry.actor, entry.request_id) == (wrong, right, "tester", "req-1")


def test_what_is_booked_in_another_period_is_no_difference(account):
    builders.make_run("succeeded", account=account, cost=500)
    Account.objects.filter(pk=account.pk).update(period="day")
    money.grant(account, amount=20, reason="gift", actor="tester")

    assert look(account).figures.drift == {}
    assert counters(account)["spent"] == -20
    assert invariants.money_drift([account]) == []


def test_a_hold_whose_run_ended_is_settled_at_what_the_run_cost(account):
    run, _ = leaked(account, "succeeded", cost=7)
    money_lines = LedgerEntry.objects.filter(run_id=run.pk)
    assert money_lines.count() == 1

    found = look(account, fix=True)

    assert [(leak.run_id, leak.state) for leak in found.leaks] == [(run.pk, "succeeded")]
    assert money_lines.count() == 1  # it had been booked: not again
    hold = Hold.objects.get(run_id=run.pk)
    assert (hold.state, hold.actual) == ("settled", 7)
    assert counters(account) == {"spent": 7, "held": 0, "in_flight": 0}
    assert invariants.money_drift([account]) == []
    entry = AuditEntry.objects.get(action="hold.released")
    assert (entry.target_id, entry.reason) == (str(run.pk), "its run is over")


def test_a_cost_that_was_never_booked_is_booked_when_the_leak_is_closed(account):
    run = working.submit(account, agent="probe.spend", input={"estimate": 600})
    type(run).objects.filter(pk=run.pk).update(
        state="failed", started_at=timezone.now(), finished_at=timezone.now(), cost=40
    )

    look(account, fix=True)

    line = LedgerEntry.objects.get()
    assert (line.run_id, line.amount, line.agent) == (run.pk, 40, "probe.spend")
    assert counters(account) == {"spent": 40, "held": 0, "in_flight": 0}


def test_a_run_that_never_began_is_released_without_a_line(account):
    run, _ = leaked(account, "cancelled", started=False)

    look(account, fix=True)

    assert Hold.objects.get(run_id=run.pk).state == "released"
    assert not LedgerEntry.objects.exists()
    assert counters(account) == RIGHT


def test_a_hold_of_no_run_at_all_is_released(account):
    locked = money.lock_account(account.pk)
    hold = money.place_hold(locked, run_id=uuid.uuid4(), amount=9, lapses_after=60)

    found = look(account, fix=True)

    assert [(leak.run_id, leak.state) for leak in found.leaks] == [(hold.run_id, "")]
    assert counters(account) == RIGHT


@pytest.mark.parametrize("state", ["queued", "scheduled", "running"])
def test_a_hold_of_a_run_that_goes_on_is_never_touched(account, state):
    run = builders.make_run(state, account=account)
    before = Hold.objects.values().get(run_id=run.pk)

    found = look(account, fix=True)

    assert found.leaks == []
    assert Hold.objects.values().get(run_id=run.pk) == before


def test_an_expired_hold_of_a_run_that_goes_on_stays_for_its_settlement(account):
    run = builders.make_run("queued", account=account)
    Hold.objects.filter(run_id=run.pk).update(expires_at=timezone.now() - timezone.timedelta(days=1))
    assert money.expire_holds_of(account.pk) == 1

    assert look(account, fix=True).leaks == []
    assert Hold.objects.get(run_id=run.pk).state == "expired"


def test_a_hold_that_was_closed_between_two_looks_is_no_leak(account):
    """Read as open, and closed with its run before the account could be locked."""
    run = builders.make_run("succeeded", account=account, cost=7)

    assert leaks._prove(account.pk, [run.pk], fix=True, actor="tester", request_id="") == []
    assert not AuditEntry.objects.filter(action="hold.released").exists()


def test_without_fix_a_leak_is_told_and_left(account):
    run, _ = leaked(account, "failed", cost=3)

    assert [leak.run_id for leak in look(account).leaks] == [run.pk]
    assert Hold.objects.get(run_id=run.pk).state == "active"


def test_leaks_are_found_page_by_page(account, monkeypatch):
    monkeypatch.setattr(leaks, "PAGE", 2)
    ours = {leaked(account, "failed", cost=1)[0].pk for _ in range(5)}
    for _ in range(3):
        builders.make_run("queued", account=account)

    assert {leak.run_id for leak in look(account, fix=True).leaks} == ours
    assert look(account, fix=True).leaks == []
    assert invariants.money_drift([account]) == []


def test_one_hold_is_released_by_proof_alone(account):
    run, _ = leaked(account, "failed", cost=3)
    alive = working.submit(account)
    by = {"actor": "tester", "request_id": "req-1"}

    assert leaks.release_leaked(account.pk, alive.pk, **by) is None
    released = leaks.release_leaked(account.pk, run.pk, **by)
    again = leaks.release_leaked(account.pk, run.pk, **by)

    assert (released.state, again) == ("failed", None)
    assert [Hold.objects.get(run_id=one.pk).state for one in (run, alive)] == ["settled", "active"]
    assert AuditEntry.objects.filter(action="hold.released").count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fix", [False, True])
def test_an_account_without_a_difference_is_not_locked(account, fix):
    working.submit(account)

    with count() as counted:
        assert look(account, fix=fix).figures.drift == {}

    assert counted.transactions == 0
