"""Holds and settlements: reserved at the door, closed once, and nothing hidden (docs/money.md, rules 1, 3, 4, 8)."""

import datetime as dt
import uuid

import pytest
from django.utils import timezone

from quotas import services as money
from quotas.errors import QuotaExceeded, TooManyInFlight, WriteOffTooLarge
from quotas.models import Account, Hold, LedgerEntry
from quotas.prices import set_price
from quotas.selectors import quota_of, spent_in_period
from quotas.services import Bill
from quotas.services.accounts import store
from tests import builders, working

pytestmark = pytest.mark.django_db


@pytest.fixture
def purse():
    return builders.make_account("purse", limit=1000, max_in_flight=3)


def figures(account):
    row = Account.objects.get(pk=account.pk)
    return {"held": row.held, "spent": row.spent, "in_flight": row.in_flight}


def hold(account, amount=100, lapses_after=60.0):
    run_id = uuid.uuid4()
    money.place_hold(money.lock_account(account.pk), run_id=run_id, amount=amount, lapses_after=lapses_after)
    return run_id


def close(account, *bills):
    money.close_holds(money.lock_account(account.pk), bills)


def lapse(*run_ids):
    past = timezone.now() - dt.timedelta(seconds=5)
    assert Hold.objects.filter(run_id__in=run_ids).update(expires_at=past) == len(run_ids)


def expire(account):
    locked = money.lock_account(account.pk)
    count = money.expire_lapsed(locked)
    store(locked)
    return count


def states(*run_ids):
    return [Hold.objects.get(run_id=run_id).state for run_id in run_ids]


def test_a_hold_reserves_its_amount_and_a_place(purse):
    run_id = hold(purse, 400)

    row = Hold.objects.get(run_id=run_id)
    assert (row.amount, row.state, row.actual) == (400, "active", None)
    assert figures(purse) == {"held": 400, "spent": 0, "in_flight": 1}
    assert LedgerEntry.objects.count() == 0


def test_what_is_available_may_be_held_to_the_last_unit_and_not_beyond(purse):
    hold(purse, 1000)

    with pytest.raises(QuotaExceeded) as refused:
        hold(purse, 1)

    facts = refused.value.facts
    assert {name: facts[name] for name in ("limit", "spent", "held", "available", "needed")} == {
        "limit": 1000,
        "spent": 0,
        "held": 1000,
        "available": 0,
        "needed": 1,
    }
    assert refused.value.status == 402
    assert facts["period_ends_at"]
    assert refused.value.retry_after > 0
    assert Hold.objects.count() == 1
    assert figures(purse) == {"held": 1000, "spent": 0, "in_flight": 1}


def test_a_hold_of_nothing_needs_no_money(purse):
    hold(purse, 1000)
    hold(purse, 0)

    assert figures(purse) == {"held": 1000, "spent": 0, "in_flight": 2}


def test_an_account_over_its_limit_gets_no_hold_at_all(purse):
    hold(purse, 0)
    Account.objects.filter(pk=purse.pk).update(limit=0, spent=50, spent_period=timezone.now().strftime("%Y-%m"))

    with pytest.raises(QuotaExceeded):
        hold(purse, 0)


def test_the_places_of_an_account_are_counted(purse):
    for _ in range(3):
        money.check_in_flight(money.lock_account(purse.pk))
        hold(purse, 1)

    with pytest.raises(TooManyInFlight) as refused:
        money.check_in_flight(money.lock_account(purse.pk))

    assert refused.value.facts == {"account": "purse", "in_flight": 3, "limit": 3}
    assert refused.value.message == "The account purse has 3 runs in flight; its limit is 3."
    one = TooManyInFlight(account="purse", in_flight=1, limit=1)
    assert one.message == "The account purse has 1 run in flight; its limit is 1."


def test_a_settlement_books_what_was_really_spent(purse):
    cheap, dear = hold(purse, 400), hold(purse, 100)

    close(purse, Bill(cheap, 30), Bill(dear, 150))

    assert figures(purse) == {"held": 0, "spent": 180, "in_flight": 0}
    assert states(cheap, dear) == ["settled", "settled"]
    lines = LedgerEntry.objects.order_by("amount").values_list("run_id", "settle_key", "kind", "amount", "overdraft")
    assert list(lines) == [(cheap, cheap, "settle", 30, False), (dear, dear, "settle", 150, False)]
    assert Hold.objects.get(run_id=cheap).actual == 30


def test_a_settlement_happens_once(purse):
    run_id = hold(purse, 400)
    close(purse, Bill(run_id, 30))
    after = figures(purse)

    close(purse, Bill(run_id, 30))
    close(purse, Bill(run_id, 999, started=False))
    close(purse, Bill(run_id, 500), Bill(uuid.uuid4(), 7))

    assert figures(purse) == after
    assert [(line.amount) for line in LedgerEntry.objects.all()] == [30]


def test_of_a_set_only_the_open_holds_are_closed(purse):
    first, second = hold(purse, 100), hold(purse, 200)
    close(purse, Bill(first, 1))

    close(purse, Bill(first, 50), Bill(second, 2))

    assert figures(purse) == {"held": 0, "spent": 3, "in_flight": 0}
    assert sorted(LedgerEntry.objects.values_list("amount", flat=True)) == [1, 2]


def test_a_run_that_never_started_is_released_without_a_line(purse):
    run_id, started = hold(purse, 400), hold(purse, 10)

    close(purse, Bill(run_id, 0, started=False), Bill(started, 0))

    assert states(run_id, started) == ["released", "settled"]
    assert figures(purse) == {"held": 0, "spent": 0, "in_flight": 0}
    assert [line.run_id for line in LedgerEntry.objects.all()] == [started]


def test_a_cost_above_what_is_left_is_booked_and_called_overdraft(purse):
    small, large = hold(purse, 10), hold(purse, 900)

    close(purse, Bill(small, 101))
    close(purse, Bill(large, 900))

    assert figures(purse) == {"held": 0, "spent": 1001, "in_flight": 0}
    lines = LedgerEntry.objects.order_by("id").values_list("amount", "overdraft")
    assert list(lines) == [(101, True), (900, True)]


def test_a_lapsed_hold_stops_counting_at_the_next_submit(purse):
    lapsed = hold(purse, 900)
    lapse(lapsed)

    fresh = hold(purse, 1000)

    assert states(lapsed, fresh) == ["expired", "active"]
    assert figures(purse) == {"held": 1000, "spent": 0, "in_flight": 2}


def test_a_lapsed_hold_is_settled_all_the_same_and_lowers_held_once(purse):
    run_id = hold(purse, 900)
    lapse(run_id)
    assert expire(purse) == 1
    assert figures(purse) == {"held": 0, "spent": 0, "in_flight": 1}
    hold(purse, 1000)

    close(purse, Bill(run_id, 40))

    assert states(run_id) == ["settled"]
    assert figures(purse) == {"held": 1000, "spent": 40, "in_flight": 1}
    assert list(LedgerEntry.objects.values_list("amount", "overdraft")) == [(40, True)]


def test_a_refusal_after_holds_lapsed_keeps_the_counters_true_inside_a_callers_transaction(purse):
    lapsed, _ = hold(purse, 300), hold(purse, 500)
    lapse(lapsed)

    with pytest.raises(QuotaExceeded):
        working.submit(purse, agent="probe.spend", input={"estimate": 600})

    row = Account.objects.get(pk=purse.pk)
    active = Hold.objects.filter(account=row, state="active").values_list("amount", flat=True)
    still_open = Hold.objects.filter(account=row, state__in=("active", "expired"))
    assert (row.held, row.in_flight) == (sum(active), still_open.count())


def test_expiry_takes_only_what_has_lapsed(purse):
    young, pinned, old = hold(purse, 1), hold(purse, 2), hold(purse, 4)
    assert money.pin_holds([pinned]) == []
    lapse(old)

    assert expire(purse) == 1
    assert expire(purse) == 0
    assert states(young, pinned, old) == ["active", "active", "expired"]


def test_a_pinned_hold_does_not_lapse_until_it_is_let_go(purse):
    run_id = hold(purse, 5)

    money.pin_holds([run_id])
    assert Hold.objects.get(run_id=run_id).expires_at is None
    money.lapse_from_now([run_id], seconds=-1)

    assert expire(purse) == 1


def test_a_claim_hears_of_the_holds_that_are_not_active(purse):
    good, lapsed, closed, unknown = hold(purse, 1), hold(purse, 2), hold(purse, 3), uuid.uuid4()
    lapse(lapsed)
    expire(purse)
    close(purse, Bill(closed, 0))

    assert set(money.pin_holds([good, lapsed, closed, unknown])) == {lapsed, closed, unknown}


def test_an_expired_hold_is_rearmed_when_there_is_room(purse):
    run_id = hold(purse, 600)
    lapse(run_id)
    expire(purse)

    assert money.rearm_hold(money.lock_account(purse.pk), run_id=run_id)

    assert states(run_id) == ["active"]
    assert Hold.objects.get(run_id=run_id).expires_at is None
    assert figures(purse) == {"held": 600, "spent": 0, "in_flight": 1}
    assert money.rearm_hold(money.lock_account(purse.pk), run_id=run_id)
    assert figures(purse)["held"] == 600


def test_an_expired_hold_is_not_rearmed_beyond_the_limit(purse):
    run_id = hold(purse, 600)
    lapse(run_id)
    hold(purse, 500)

    assert not money.rearm_hold(money.lock_account(purse.pk), run_id=run_id)
    assert states(run_id) == ["expired"]
    assert figures(purse) == {"held": 500, "spent": 0, "in_flight": 2}


def test_a_closed_hold_is_not_rearmed(purse):
    run_id = hold(purse, 600)
    close(purse, Bill(run_id, 1))

    assert not money.rearm_hold(money.lock_account(purse.pk), run_id=run_id)
    assert figures(purse) == {"held": 0, "spent": 1, "in_flight": 0}


def test_a_hold_is_extended_while_there_is_room(purse):
    run_id, other = hold(purse, 300), hold(purse, 200)

    assert money.extend_hold(money.lock_account(purse.pk), run_id=run_id, amount=800)

    row = Hold.objects.get(run_id=run_id)
    assert (row.amount, row.extensions, row.state) == (800, 1, "active")
    assert figures(purse) == {"held": 1000, "spent": 0, "in_flight": 2}
    close(purse, Bill(run_id, 750), Bill(other, 1))
    assert figures(purse) == {"held": 0, "spent": 751, "in_flight": 0}
    assert not LedgerEntry.objects.filter(overdraft=True).exists()


def test_a_hold_is_not_extended_beyond_what_is_available(purse):
    run_id, _ = hold(purse, 300), hold(purse, 200)

    assert not money.extend_hold(money.lock_account(purse.pk), run_id=run_id, amount=801)

    assert Hold.objects.get(run_id=run_id).amount == 300
    assert figures(purse) == {"held": 500, "spent": 0, "in_flight": 2}


def test_an_extension_may_be_repeated_and_never_lowers_a_hold(purse):
    run_id = hold(purse, 300)

    for amount in (400, 400, 350, 0):
        assert money.extend_hold(money.lock_account(purse.pk), run_id=run_id, amount=amount)

    assert Hold.objects.values_list("amount", "extensions").get() == (400, 1)
    assert figures(purse)["held"] == 400


def test_only_an_active_hold_of_this_account_is_extended(purse, other_account):
    lapsed, closed, foreign = hold(purse, 1), hold(purse, 2), hold(other_account, 3)
    lapse(lapsed)
    expire(purse)
    close(purse, Bill(closed, 0))

    for run_id in (lapsed, closed, foreign, uuid.uuid4()):
        assert not money.extend_hold(money.lock_account(purse.pk), run_id=run_id, amount=10)

    assert figures(purse)["held"] == 0


@pytest.mark.parametrize("arms", [False, True])
def test_the_room_of_others_lapsed_holds_is_there_for_an_extension_and_a_rearming(purse, arms):
    mine = hold(purse, 300)
    if arms:
        lapse(mine)
        expire(purse)
    lapsed = hold(purse, 700)
    lapse(lapsed)

    locked = money.lock_account(purse.pk)
    had_room = money.rearm_hold(locked, run_id=mine) if arms else money.extend_hold(locked, run_id=mine, amount=1000)

    assert had_room
    assert states(mine, lapsed) == ["active", "expired"]
    assert figures(purse)["held"] == Hold.objects.get(run_id=mine).amount


def test_an_extension_without_room_leaves_the_counters_true_where_others_lapsed(purse):
    mine, lapsed, _ = hold(purse, 300), hold(purse, 200), hold(purse, 500)
    lapse(lapsed)

    assert not money.extend_hold(money.lock_account(purse.pk), run_id=mine, amount=501)

    assert states(mine, lapsed) == ["active", "expired"]
    assert figures(purse) == {"held": 800, "spent": 0, "in_flight": 3}


def test_a_settle_line_names_the_period_and_the_agent(purse):
    run_id = hold(purse, 5)

    close(purse, Bill(run_id, 3, agent="team.writer"))

    line = LedgerEntry.objects.get()
    assert (line.period, line.agent) == (timezone.now().strftime("%Y-%m"), "team.writer")


def test_a_waived_cost_is_settled_and_written_off_at_once(purse):
    run_id = hold(purse, 100)

    close(purse, Bill(run_id, 130, agent="team.writer", waived_by="ann"))

    lines = LedgerEntry.objects.filter(run_id=run_id).order_by("pk").values_list("kind", "amount", "agent", "actor")
    assert list(lines) == [("settle", 130, "team.writer", ""), ("write_off", -130, "team.writer", "ann")]
    assert figures(purse) == {"held": 0, "spent": 0, "in_flight": 0}
    assert Hold.objects.get(run_id=run_id).actual == 130
    dear = hold(purse, 100)
    close(purse, Bill(dear, 5000, waived_by="ann"))
    assert not LedgerEntry.objects.get(settle_key=dear).overdraft  # the account never was beyond its limit
    with pytest.raises(WriteOffTooLarge):  # nothing is left of it to be forgiven
        money.write_off(purse, amount=1, reason="again", actor="bob", run_id=run_id)


def test_a_new_period_begins_with_nothing_spent_and_keeps_what_is_held(purse):
    run_id = hold(purse, 300)
    Account.objects.filter(pk=purse.pk).update(spent=700, spent_period="2020-01")
    assert spent_in_period(Account.objects.get(pk=purse.pk), timezone.now()) == 0
    assert quota_of(purse)["available"] == 700

    hold(purse, 700)
    close(purse, Bill(run_id, 250))

    assert figures(purse) == {"held": 700, "spent": 250, "in_flight": 1}


def test_each_line_names_the_price_book_its_own_run_was_priced_by(purse):
    book = set_price(model="m", prices={"input": 1}, actor="tester")
    unpriced, priced = hold(purse, 1), hold(purse, 1)

    close(purse, Bill(unpriced, 0), Bill(priced, 5, price_book=book.pk))

    books = dict(LedgerEntry.objects.values_list("run_id", "price_book_id"))
    assert books == {unpriced: None, priced: book.pk}


def test_an_account_is_made_once_with_the_defaults():
    first, second = money.ensure_account("default"), money.ensure_account("default")

    assert first.pk == second.pk
    assert (first.limit, first.max_in_flight, first.period) == (100_000_000, 100, "month")
