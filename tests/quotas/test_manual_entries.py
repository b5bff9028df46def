"""Grants, adjustments and write-offs: checked amounts, a reason, and the audit trail (docs/money.md, rule 10)."""

import uuid

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from quotas import services as money
from quotas.errors import (
    InvalidAmount,
    NoSuchAccount,
    NotOnAccount,
    ReasonNeeded,
    SpentOutOfRange,
    WriteOffTooLarge,
)
from quotas.models import AMOUNT_MAX, Account, AuditEntry, LedgerEntry
from quotas.selectors import quota_of
from quotas.services import Bill
from tests import builders

pytestmark = pytest.mark.django_db
ACTS = {"grant": money.grant, "adjustment": money.adjust, "write_off": money.write_off}


@pytest.fixture
def purse():
    return builders.make_account("purse", limit=1000)


def settled(account, cost, agent="agent.a"):
    """Book a run's cost and return the run's id."""
    run_id = uuid.uuid4()
    money.place_hold(money.lock_account(account.pk), run_id=run_id, amount=0, lapses_after=60)
    money.close_holds(money.lock_account(account.pk), [Bill(run_id, cost, agent=agent)])
    return run_id


def spent(account):
    return Account.objects.get(pk=account.pk).spent


def why(**fields):
    return {"reason": "as agreed", "actor": "jane", **fields}


def test_a_grant_lowers_what_is_spent_even_below_nothing(purse):
    settled(purse, 300)

    line = money.grant(purse, amount=500, run_id=None, **why())

    assert (line.kind, line.amount, line.period, line.overdraft) == (
        "grant",
        -500,
        timezone.now().strftime("%Y-%m"),
        False,
    )
    assert (line.actor, line.reason) == ("jane", "as agreed")
    assert quota_of(purse) | {"spent": -200, "available": 1200} == quota_of(purse)


def test_an_adjustment_corrects_in_both_directions_and_says_overdraft(purse):
    money.adjust("purse", amount=700, **why())
    money.adjust("purse", amount=-100, **why())
    over = money.adjust("purse", amount=500, **why())

    assert spent(purse) == 1100
    assert over.overdraft
    assert list(LedgerEntry.objects.order_by("id").values_list("amount", "overdraft")) == [
        (700, False),
        (-100, False),
        (500, True),
    ]


def test_a_write_off_without_a_run_takes_only_what_is_overdrawn(purse):
    settled(purse, 1200)

    with pytest.raises(WriteOffTooLarge) as refused:
        money.write_off(purse, amount=201, **why())
    assert (refused.value.facts["allowed"], refused.value.facts["asked"]) == (200, 201)
    money.write_off(purse, amount=200, **why())

    assert spent(purse) == 1000
    with pytest.raises(WriteOffTooLarge):
        money.write_off(purse, amount=1, **why())


def test_a_write_off_of_a_run_takes_at_most_what_is_booked_for_it(purse):
    run_id = settled(purse, 300)
    settled(purse, 50)
    line = money.write_off(purse, amount=200, run_id=run_id, **why())
    assert (line.agent, line.run_id) == ("agent.a", run_id)

    with pytest.raises(WriteOffTooLarge) as refused:
        money.write_off(purse, amount=101, run_id=run_id, **why())

    assert refused.value.facts["allowed"] == 100
    assert spent(purse) == 150


def test_a_write_off_never_makes_spent_negative(purse):
    run_id = settled(purse, 300)
    money.grant(purse, amount=250, **why())

    with pytest.raises(WriteOffTooLarge) as refused:
        money.write_off(purse, amount=51, run_id=run_id, **why())

    assert refused.value.facts["allowed"] == 50
    money.write_off(purse, amount=50, run_id=run_id, **why())
    assert spent(purse) == 0


@pytest.mark.parametrize("amount", [0, -1, 1.0, True, "5", None, AMOUNT_MAX + 1, 2**63, -(2**63), float("nan")])
@pytest.mark.parametrize("kind", ACTS)
def test_odd_amounts_are_refused(purse, kind, amount):
    if kind == "adjustment" and amount == -1:
        return
    with pytest.raises(InvalidAmount):
        ACTS[kind](purse, amount=amount, **why())
    assert not LedgerEntry.objects.exists()
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("reason", ["", "   ", "a\0b", "\ud800", "x" * 501])
@pytest.mark.parametrize("kind", ACTS)
def test_a_reason_is_needed(purse, kind, reason):
    with pytest.raises(ReasonNeeded):
        ACTS[kind](purse, amount=5, reason=reason, actor="jane")
    assert not LedgerEntry.objects.exists()


def test_sums_cannot_leave_the_range_that_is_exact(purse):
    money.adjust(purse, amount=AMOUNT_MAX, **why())
    with pytest.raises(SpentOutOfRange):
        money.adjust(purse, amount=1, **why())
    money.grant(purse, amount=AMOUNT_MAX, **why())
    money.grant(purse, amount=AMOUNT_MAX, **why())
    with pytest.raises(SpentOutOfRange):
        money.grant(purse, amount=1, **why())

    assert spent(purse) == -AMOUNT_MAX


@pytest.mark.parametrize("kind", ACTS)
def test_a_run_of_another_account_is_refused(purse, kind):
    foreign = settled(builders.make_account("globex"), 900)

    for run_id in (foreign, uuid.uuid4()):
        with pytest.raises(NotOnAccount):
            ACTS[kind](purse, amount=5, run_id=run_id, **why())

    assert spent(purse) == 0


def test_an_unknown_account_is_refused(purse):
    with pytest.raises(NoSuchAccount):
        money.grant("Purse", amount=5, **why())


@pytest.mark.parametrize("kind", ACTS)
def test_every_entry_is_audited_with_who_why_and_the_figures(purse, kind):
    settled(purse, 1300)

    line = ACTS[kind](purse, amount=30, request_id="req-1", **why())

    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.reason, entry.request_id) == (
        f"ledger.{kind}",
        "jane",
        "as agreed",
        "req-1",
    )
    assert (entry.target_type, entry.target_id) == ("account", str(purse.pk))
    assert entry.before == {"spent": 1300}
    after = {"spent": 1300 + line.amount, "amount": line.amount, "line": line.pk, "run": None}
    assert entry.after == after


def test_the_period_is_turned_before_the_entry_is_booked(purse):
    settled(purse, 900)
    Account.objects.filter(pk=purse.pk).update(period="day")

    line = money.grant(purse, amount=10, **why())

    assert line.period == timezone.now().strftime("%Y-%m-%d")
    assert spent(purse) == -10


def test_the_permissions_of_manual_entries_exist():
    names = Permission.objects.filter(content_type__app_label="quotas", content_type__model="ledgerentry")
    assert {"grant", "adjust", "write_off"} <= set(names.values_list("codename", flat=True))


def test_what_costs_brought_beyond_the_range_can_be_brought_back(purse):
    bills = [Bill(uuid.uuid4(), AMOUNT_MAX) for _ in range(3)]
    for bill in bills:
        money.place_hold(money.lock_account(purse.pk), run_id=bill.run_id, amount=0, lapses_after=60)
    money.close_holds(money.lock_account(purse.pk), bills)

    money.grant(purse, amount=AMOUNT_MAX, **why())
    with pytest.raises(SpentOutOfRange):
        money.adjust(purse, amount=1, **why())

    assert spent(purse) == 2 * AMOUNT_MAX
