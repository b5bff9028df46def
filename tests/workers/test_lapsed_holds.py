"""Holds of runs nobody looked after in time: expired by the sweeper, armed again by the claim, hiding no cost."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.database import in_transaction
from quotas.models import Account, Hold, LedgerEntry
from runs import broker
from runs.models import Run
from runs.outcomes import ErrorClass, Failed
from runs.services import cancel_run, claims
from tests import builders, invariants, working
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def purse():
    return builders.make_account("purse", limit=1000, max_in_flight=10)


@pytest.fixture
def sweep():
    """Return a function that is one pass of the sweeper with this duty alone."""
    sweeper = Sweeper(working.config(), broker.client(), ["holds"])

    def once():
        assert sweeper.run_once().done == ["holds"]

    return once


def submit(account, estimate, **fields):
    return working.submit(account, agent="probe.spend", input={"estimate": estimate}, **fields)


def lapse(run):
    past = timezone.now() - dt.timedelta(seconds=5)
    assert Hold.objects.filter(run_id=run.pk, state="active").update(expires_at=past) == 1


def claim_alone(run):
    return in_transaction(lambda: claims.start_attempt_rearmed(run.pk, run.fence, working.owner()))


def hold_of(run):
    return Hold.objects.get(run_id=run.pk)


def counters(account):
    row = Account.objects.get(pk=account.pk)
    return row.spent, row.held, row.in_flight


def test_the_sweeper_expires_lapsed_holds_of_every_account_and_no_other(purse, account, sweep):
    lapsed = [submit(purse, 300), submit(account, 200)]
    kept = submit(purse, 100)
    (claimed,) = working.claim(submit(purse, 50))
    for run in lapsed:
        lapse(run)
    assert hold_of(claimed.run).expires_at is None

    sweep()
    sweep()

    assert [hold_of(run).state for run in (*lapsed, kept, claimed.run)] == ["expired", "expired", "active", "active"]
    assert (counters(purse), counters(account)) == ((0, 150, 3), (0, 0, 1))
    invariants.check_money([purse, account])


def test_a_claim_arms_it_again_and_the_run_is_settled_as_if_nothing_had_been(purse, sweep):
    run = submit(purse, 300)
    lapse(run)
    sweep()

    assert working.try_claim(run).unheld == [run.pk]
    claimed = claim_alone(run)

    assert (hold_of(run).state, hold_of(run).expires_at, counters(purse)) == ("active", None, (0, 300, 1))
    working.finish(working.finish_of(claimed, cost=120))
    assert (hold_of(run).state, counters(purse)) == ("settled", (120, 0, 0))
    assert not LedgerEntry.objects.get().overdraft
    invariants.check_money([purse])


def test_what_a_run_had_spent_before_its_hold_lapsed_is_booked_into_overdraft(purse, sweep):
    """Failed after 400, waiting for another attempt; meanwhile the room it had is somebody else's."""
    run = submit(purse, 500, max_attempts=2)
    (claimed,) = working.claim(run)
    again = Failed(ErrorClass.PROVIDER_TRANSIENT, "E", "e", retry_in=60.0)
    working.finish(working.finish_of(claimed, again, cost=400))
    assert hold_of(run).expires_at is not None
    lapse(run)
    sweep()
    submit(purse, 1000)
    assert counters(purse) == (0, 1000, 2)

    cancel_run(run_id=run.pk, actor="tester")

    line = LedgerEntry.objects.get()
    assert (line.amount, line.overdraft, line.run_id) == (400, True, run.pk)
    assert (hold_of(run).state, counters(purse)) == ("settled", (400, 1000, 1))
    invariants.check_money([purse])


def test_a_run_whose_room_is_gone_fails_at_its_claim_and_its_cost_is_booked(purse, sweep):
    run = submit(purse, 500, max_attempts=2)
    (claimed,) = working.claim(run)
    working.finish(working.finish_of(claimed, Failed(ErrorClass.PROVIDER_TRANSIENT, "E", "e", retry_in=0.0), cost=400))
    lapse(run)
    sweep()
    submit(purse, 900)

    left = claim_alone(Run.objects.get(pk=run.pk))

    assert left.moved.run.state == "failed"
    assert left.moved.run.error["cause"] == "quota_exceeded"
    assert LedgerEntry.objects.values_list("amount", "overdraft").get() == (400, True)
    assert counters(purse) == (400, 900, 1)
    invariants.check_money([purse])
