"""More is reserved for a running run that spends more: by its owner, within its account's room (money 6)."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quotas.models import Account, Hold, LedgerEntry
from runs.models import Run
from runs.services import cancel_run, requeue_run
from runs.services.budget import STEP_MIN, Extension, Verdict, extend_budget
from tests import builders, invariants, working

pytestmark = pytest.mark.django_db
LIMIT = 100_000
HELD = 1000  # the estimate of probe.ret


@pytest.fixture
def purse(db):
    yield builders.make_account(limit=LIMIT)
    invariants.check_money(Account.objects.all())


def claimed(account):
    return working.claim(working.submit(account))[0]


def extend(claim, spent, **other):
    run = claim.run
    known = {"run_id": run.pk, "account_id": run.account_id, "fence": claim.fence, "claim_token": claim.token}
    return extend_budget(**(known | {"spent": spent} | other))


def reserved(claim):
    """Return (the run's budget, its hold's amount, how often that was raised, what the account holds)."""
    hold = Hold.objects.get(run_id=claim.run.pk)
    return Run.objects.get(pk=claim.run.pk).budget, hold.amount, hold.extensions, hold.account.held


def test_a_submit_and_a_requeue_note_what_they_reserve(purse):
    run = working.submit(purse)
    again = requeue_run(run_id=cancel_run(run_id=run.pk, actor="tester").run.pk, actor="tester").run

    for each in (run, again):
        each.refresh_from_db()
        assert each.budget == Hold.objects.get(run_id=each.pk).amount == HELD


def test_half_as_much_again_is_reserved_where_there_is_room(purse):
    claim = claimed(purse)

    small, large = extend(claim, HELD + 1), extend(claim, 10_000)

    assert small == Extension(Verdict.EXTENDED, HELD + 1 + STEP_MIN)
    assert large == Extension(Verdict.EXTENDED, 15_000)
    assert reserved(claim) == (15_000, 15_000, 2, 15_000)


def test_without_room_for_the_step_exactly_what_is_spent_is_reserved(purse):
    claim = claimed(purse)

    assert extend(claim, LIMIT) == Extension(Verdict.EXTENDED, LIMIT)
    assert reserved(claim) == (LIMIT, LIMIT, 1, LIMIT)


def test_without_room_for_what_is_spent_nothing_changes(purse):
    claim = claimed(purse)

    assert extend(claim, LIMIT + 1) == Extension(Verdict.NO_ROOM, HELD)
    assert extend(claim, 2**53) == Extension(Verdict.NO_ROOM, HELD)
    assert reserved(claim) == (HELD, HELD, 0, HELD)


def test_near_the_limit_a_small_report_need_not_ask_for_each_unit(purse):
    claim = claimed(purse)

    assert extend(claim, LIMIT - 3 * STEP_MIN) == Extension(Verdict.EXTENDED, LIMIT - 2 * STEP_MIN)
    assert extend(claim, LIMIT - STEP_MIN) == Extension(Verdict.EXTENDED, LIMIT)


def test_a_refused_extension_in_a_new_period_carries_the_overdraft_once(purse):
    Account.objects.filter(pk=purse.pk).update(overdraft_rule="carry")
    claim = claimed(purse)
    LedgerEntry.objects.create(account=purse, kind="settle", amount=LIMIT + 500, period="2020-01")
    Account.objects.filter(pk=purse.pk).update(spent=LIMIT + 500, spent_period="2020-01", limit=400)
    carried = LedgerEntry.objects.filter(kind="carry")

    for _ in range(2):
        assert extend(claim, 5000).verdict is Verdict.NO_ROOM
        invariants.check_money([purse])
    booked = list(carried.order_by("id").values_list("amount", "period"))
    working.finish(working.finish_of(claim, cost=5000))

    assert list(carried.order_by("id").values_list("amount", "period")) == booked
    assert sum(amount for amount, _ in booked) == 0
    assert len({period for _, period in booked}) == len(booked)


def test_what_others_hold_and_spent_is_no_room(purse):
    builders.make_run("succeeded", account=purse, cost=60_000)
    builders.make_run("running", account=purse, estimate=30_000)
    claim = claimed(purse)

    assert extend(claim, 10_001).verdict is Verdict.NO_ROOM
    assert extend(claim, 10_000) == Extension(Verdict.EXTENDED, 10_000)


def test_what_is_reserved_already_is_not_reserved_again(purse):
    claim = claimed(purse)
    first = extend(claim, 10_000)

    with CaptureQueriesContext(connection) as queries:
        assert extend(claim, 10_000) == first  # its answer had been lost
        assert extend(claim, 4_000) == first

    assert not [query for query in queries if query["sql"].startswith("UPDATE")]
    assert reserved(claim) == (15_000, 15_000, 1, 15_000)


@pytest.mark.parametrize("wrong", ["fence", "token", "state"])
def test_whoever_is_not_the_owner_extends_nothing(purse, wrong):
    claim = claimed(purse)
    other = {}
    if wrong == "fence":
        other = {"fence": claim.fence + 1}
    if wrong == "token":
        other = {"claim_token": "another"}
    if wrong == "state":  # a row that no service would leave behind
        Run.objects.filter(pk=claim.run.pk).update(state="scheduled")

    assert extend(claim, 5000, **other) == Extension(Verdict.LOST, 0)
    assert reserved(claim) == (HELD, HELD, 0, HELD)


def test_a_run_that_ended_is_not_extended(purse):
    claim = claimed(purse)
    working.finish(working.finish_of(claim, cost=5000))

    assert extend(claim, 5000) == Extension(Verdict.LOST, 0)
    assert reserved(claim) == (HELD, HELD, 0, 0)


def test_a_run_that_is_to_be_cancelled_gets_no_more(purse):
    claim = claimed(purse)
    cancel_run(run_id=claim.run.pk, actor="tester")

    assert extend(claim, 5000) == Extension(Verdict.CANCELLED, HELD)
    assert reserved(claim) == (HELD, HELD, 0, HELD)


def test_an_extended_run_is_settled_at_what_it_cost_and_its_hold_is_given_back_whole(purse):
    claim = claimed(purse)
    extend(claim, 10_000)

    working.finish(working.finish_of(claim, cost=12_000))

    purse.refresh_from_db()
    assert (purse.spent, purse.held) == (12_000, 0)


def test_an_extension_costs_one_transaction_of_seven_statements(purse):
    claim = claimed(purse)

    with CaptureQueriesContext(connection) as queries:
        extend(claim, 5000)

    said = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert len(said) <= 7, said
