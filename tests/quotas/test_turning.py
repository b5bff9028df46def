"""The turn of a period: at the account's own midnight, over clock changes, with and without overdraft (money 11)."""

import datetime as dt
import uuid

import pytest

from quotas import services as money
from quotas.errors import QuotaExceeded
from quotas.models import Account, LedgerEntry
from quotas.periods import carried_over
from quotas.selectors import quota_of, spent_by_account, spent_in_period
from quotas.services import Bill
from quotas.services.accounts import store, turn_period
from tests import builders

pytestmark = pytest.mark.django_db
LONG = 20 * 365 * 86_400.0  # the database's clock is not the one that is passed in


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def locked(account, now):
    """Lock the account at a moment that is given."""
    row = money.lock_account(account.pk)
    row.db_now = at(now)
    return row


def spend(account, cost, now, *, hold=0):
    """Run a run at `now` from submit to settlement."""
    run_id = uuid.uuid4()
    money.place_hold(locked(account, now), run_id=run_id, amount=hold, lapses_after=LONG)
    money.close_holds(locked(account, now), [Bill(run_id, cost)])


def lines(account):
    return list(LedgerEntry.objects.filter(account=account).order_by("id").values_list("kind", "amount", "period"))


def sums(account):
    """Return what is booked in each period."""
    booked = {}
    for _, amount, period in lines(account):
        booked[period] = booked.get(period, 0) + amount
    return booked


def turn(account, day):
    """Let somebody lock the account on a day and find its period old."""
    row = locked(account, f"{day}T12:00:00+00:00")
    turn_period(row, row.db_now)
    store(row)


# Each zone changes its clock within the period that ends here, or in the night in which it ends.
@pytest.mark.parametrize(
    ("zone", "period", "last", "first"),
    [
        # Clocks go back an hour on 25 October in Berlin, and forward on the last day of March 2024.
        ("Europe/Berlin", "month", "2026-10-31T22:59:59.999999+00:00", "2026-10-31T23:00:00+00:00"),
        ("Europe/Berlin", "month", "2024-03-31T21:59:59.999999+00:00", "2024-03-31T22:00:00+00:00"),
        ("Europe/Berlin", "day", "2026-10-25T22:59:59.999999+00:00", "2026-10-25T23:00:00+00:00"),
        # On 1 November in New York: the month begins before the clock changes, in summer time.
        ("America/New_York", "month", "2026-11-01T03:59:59.999999+00:00", "2026-11-01T04:00:00+00:00"),
        ("America/New_York", "month", "2026-12-01T04:59:59.999999+00:00", "2026-12-01T05:00:00+00:00"),
        ("America/New_York", "day", "2026-11-02T04:59:59.999999+00:00", "2026-11-02T05:00:00+00:00"),
        # By half an hour, in the night that ends a Sunday.
        ("Australia/Lord_Howe", "day", "2026-04-05T13:29:59.999999+00:00", "2026-04-05T13:30:00+00:00"),
        ("Asia/Tokyo", "month", "2026-10-31T14:59:59.999999+00:00", "2026-10-31T15:00:00+00:00"),
    ],
)
def test_spent_starts_at_nothing_at_the_accounts_own_midnight(zone, period, last, first):
    purse = builders.make_account("purse", limit=1000, period=period, timezone=zone)
    spend(purse, 600, last)
    open_run = uuid.uuid4()
    money.place_hold(locked(purse, last), run_id=open_run, amount=400, lapses_after=LONG)
    assert (quota_of(purse, at(last))["spent"], quota_of(purse, at(last))["available"]) == (600, 0)
    assert quota_of(purse, at(last))["period_ends_at"] == at(first)
    with pytest.raises(QuotaExceeded) as refused:
        money.place_hold(locked(purse, last), run_id=uuid.uuid4(), amount=1, lapses_after=LONG)
    assert at(refused.value.facts["period_ends_at"]) == at(first)

    assert (quota_of(purse, at(first))["spent"], quota_of(purse, at(first))["available"]) == (0, 600)
    money.place_hold(locked(purse, first), run_id=uuid.uuid4(), amount=600, lapses_after=LONG)
    money.close_holds(locked(purse, first), [Bill(open_run, 350)])

    row = Account.objects.get(pk=purse.pk)
    assert (row.spent, row.held) == (350, 600)
    assert [amount for _, amount, _ in lines(purse)] == [600, 350]
    old, new = (name for _, _, name in lines(purse))
    assert (old != new, row.spent_period) == (True, new)


def test_two_accounts_turn_each_in_its_own_zone():
    moment = "2026-10-31T23:30:00+00:00"  # November in Berlin, October in New York
    east = builders.make_account("east", limit=1000, timezone="Europe/Berlin")
    west = builders.make_account("west", limit=1000, timezone="America/New_York")
    for account in (east, west):
        spend(account, 700, "2026-10-31T12:00:00+00:00")

    assert [spent_in_period(Account.objects.get(pk=one.pk), at(moment)) for one in (east, west)] == [0, 700]
    for account in (east, west):
        spend(account, 10, moment)

    assert [Account.objects.get(pk=one.pk).spent for one in (east, west)] == [10, 710]
    assert (sums(east), sums(west)) == ({"2026-10": 700, "2026-11": 10}, {"2026-10": 710})


def test_overdraft_is_forgiven_by_the_default_rule():
    purse = builders.make_account("purse", limit=1000)
    spend(purse, 1700, "2026-10-10T00:00+00:00")

    spend(purse, 5, "2026-11-10T00:00+00:00")

    assert Account.objects.get(pk=purse.pk).spent == 5
    assert lines(purse) == [("settle", 1700, "2026-10"), ("settle", 5, "2026-11")]


def test_overdraft_is_carried_where_the_account_says_so():
    purse = builders.make_account("purse", limit=1000, overdraft_rule="carry")
    spend(purse, 1700, "2026-10-10T00:00+00:00")
    assert quota_of(purse, at("2026-11-10T00:00+00:00"))["spent"] == 700

    spend(purse, 5, "2026-11-10T00:00+00:00")

    assert Account.objects.get(pk=purse.pk).spent == 705
    assert lines(purse)[1:] == [("carry", -700, "2026-10"), ("carry", 700, "2026-11"), ("settle", 5, "2026-11")]
    assert sums(purse) == {"2026-10": 1000, "2026-11": 705}


def test_what_is_within_the_limit_is_not_carried():
    purse = builders.make_account("purse", limit=1000, overdraft_rule="carry")
    spend(purse, 1000, "2026-10-10T00:00+00:00")

    spend(purse, 5, "2026-11-10T00:00+00:00")

    assert sums(purse) == {"2026-10": 1000, "2026-11": 5}


def test_carried_overdraft_can_refuse_a_run():
    purse = builders.make_account("purse", limit=1000, overdraft_rule="carry")
    spend(purse, 2500, "2026-10-10T00:00+00:00")

    with pytest.raises(QuotaExceeded) as refused:
        money.place_hold(locked(purse, "2026-11-10T00:00+00:00"), run_id=uuid.uuid4(), amount=0, lapses_after=LONG)

    assert (refused.value.facts["spent"], refused.value.facts["available"]) == (1500, -500)


@pytest.mark.parametrize("looks", [(), ("2027-01-02",), ("2026-11-03", "2026-12-30", "2027-01-31")])
def test_it_does_not_matter_how_often_an_account_is_looked_at_meanwhile(looks):
    purse = builders.make_account("purse", limit=1000, overdraft_rule="carry")
    spend(purse, 3400, "2026-10-10T00:00+00:00")

    for day in looks:
        turn(purse, day)
    turn(purse, "2027-01-31")

    assert Account.objects.get(pk=purse.pk).spent == 400
    assert sums(purse) == {"2026-10": 1000, "2026-11": 1000, "2026-12": 1000, "2027-01": 400}
    turn(purse, "2027-02-01")
    assert Account.objects.get(pk=purse.pk).spent == 0
    assert sum(sums(purse).values()) == 3400


@pytest.mark.parametrize(
    ("limit", "period", "key", "carried"),
    [
        (1000, "2026-10", "2026-11", {"2026-11": 2400}),
        (1000, "2026-10", "2027-01", {"2026-11": 1000, "2026-12": 1000, "2027-01": 400}),
        (1000, "2026-12", "2027-03", {"2027-01": 1000, "2027-02": 1000, "2027-03": 400}),
        (1000, "2026-10", "2027-06", {"2026-11": 1000, "2026-12": 1000, "2027-01": 400}),
        (1000, "2026-12-31", "2027-01-02", {"2027-01-01": 1000, "2027-01-02": 1400}),
        (0, "2026-10", "2027-06", {"2027-06": 3400}),
        (-50, "2026-10", "2027-06", {"2027-06": 3400}),
        (3400, "2026-10", "2026-11", {}),
        (1000, "2026-10", "2026-10-05", {"2026-10-05": 2400}),  # from months to days: no period lies between
        (1000, "", "2026-10", {"2026-10": 2400}),
        (1000, "2026-11", "2026-10", {"2026-10": 2400}),  # another time zone, and the clock went back
    ],
)
def test_what_is_carried_is_a_function_of_the_row_and_the_new_period(limit, period, key, carried):
    account = Account(limit=limit, spent=3400, spent_period=period, overdraft_rule="carry")

    assert carried_over(account, key) == carried
    assert sum(carried.values()) in (0, 3400 - max(0, limit))


def test_going_back_to_a_period_finds_what_was_booked_in_it():
    purse = builders.make_account("purse", limit=1000)
    spend(purse, 300, "2026-10-10T00:00+00:00")
    Account.objects.filter(pk=purse.pk).update(period="day")
    spend(purse, 20, "2026-10-10T01:00+00:00")
    assert Account.objects.get(pk=purse.pk).spent == 20
    Account.objects.filter(pk=purse.pk).update(period="month")
    moment = at("2026-10-10T02:00+00:00")
    assert (quota_of(purse, moment)["spent"], quota_of(purse, moment)["available"]) == (300, 700)

    spend(purse, 1, "2026-10-10T02:00+00:00")

    assert Account.objects.get(pk=purse.pk).spent == 301


def test_what_many_accounts_have_spent_is_one_statement_for_each_period(django_assert_num_queries):
    purses = [builders.make_account(f"purse{number}", limit=1000, overdraft_rule="carry") for number in range(6)]
    for number, purse in enumerate(purses):
        spend(purse, 1000 + number, "2026-10-10T00:00+00:00")
    rows = list(Account.objects.order_by("pk"))

    with django_assert_num_queries(0):
        now = spent_by_account(rows, at("2026-10-10T00:00+00:00"))
    with django_assert_num_queries(1):
        later = spent_by_account(rows, at("2026-11-10T00:00+00:00"))

    assert list(now.values()) == [1000, 1001, 1002, 1003, 1004, 1005]
    assert list(later.values()) == [0, 1, 2, 3, 4, 5]


def test_an_account_without_a_period_never_turns():
    purse = builders.make_account("purse", limit=1000, period="none", overdraft_rule="carry")
    spend(purse, 1200, "2026-10-10T00:00+00:00")
    with pytest.raises(QuotaExceeded):
        spend(purse, 1, "2030-10-10T00:00+00:00")

    assert Account.objects.get(pk=purse.pk).spent == 1200
    assert lines(purse) == [("settle", 1200, "")]
