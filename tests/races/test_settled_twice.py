"""F40: a run that is completed twice, cancelled and taken over at once is settled once, and never paid back."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas import services as money
from quotas.database import in_transaction
from quotas.errors import Busy
from quotas.models import Account, Hold, LedgerEntry
from quotas.services import Bill
from runs.models import Run
from runs.outcomes import ErrorClass, Failed
from runs.services import cancel_run, take_over
from runs.services.leaks import reconcile, release_leaked
from runs.services.leaving import Lost
from tests import builders, invariants, working
from tests.racing import held_open, in_parallel

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]


def figures(account):
    return Account.objects.values_list("spent", "held", "in_flight").get(pk=account.pk)


def closing(account, bill):
    return lambda: in_transaction(lambda: money.close_holds(money.lock_account(account.pk), [bill]))


@pytest.mark.parametrize("rounds", range(3))
def test_f40_two_completions_a_cancel_and_a_takeover_at_once_settle_once(account, rounds):
    run = working.submit(account)
    owner = working.claim(run)[0]
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    row = Run.objects.get(pk=run.pk)
    lost = Lost(row.pk, row.fence, row.lease_expires_at)

    results = in_parallel(
        lambda: working.finish(working.finish_of(owner, cost=30)),
        lambda: working.finish(working.finish_of(owner, Failed(ErrorClass.AGENT_BUG, "T", "x"), cost=31)),
        lambda: cancel_run(run_id=run.pk, actor="tester"),
        lambda: in_transaction(lambda: take_over(lost, actor="sweeper")),
    )

    assert [result for result in results if isinstance(result, Exception) and not isinstance(result, Busy)] == []
    row.refresh_from_db()
    line = LedgerEntry.objects.get()
    assert row.is_terminal
    assert (line.settle_key, line.amount) == (run.pk, row.cost)
    assert figures(account) == (row.cost, 0, 0)
    assert Hold.objects.get().state == "settled"
    invariants.check_money([account])


def test_f40_the_second_completion_waits_for_the_first_and_changes_nothing(account):
    run = working.submit(account)
    owner = working.claim(run)[0]

    with held_open(lambda: working.finish(working.finish_of(owner, cost=30))) as commit:
        (second,) = in_parallel(lambda: _after(commit, lambda: working.finish(working.finish_of(owner, cost=99))))

    assert (second.moved, second.lost) == ([], [run.pk])
    assert LedgerEntry.objects.get().amount == 30
    assert figures(account) == (30, 0, 0)


def _after(commit, work):
    commit()
    return work()


def test_f40_nothing_is_paid_back_once_it_is_settled(account):
    run = working.submit(account)
    working.finish(working.finish_of(working.claim(run)[0], cost=30))
    settled = Hold.objects.values().get()

    in_parallel(
        closing(account, Bill(run.pk, 0, started=False)),
        closing(account, Bill(run.pk, 5)),
        lambda: cancel_run(run_id=run.pk, actor="tester"),
        lambda: release_leaked(account.pk, run.pk, actor="tester"),
        lambda: reconcile(account.pk, fix=True, actor="tester"),
        lambda: in_transaction(lambda: money.expire_holds_of(account.pk)),
    )

    assert figures(account) == (30, 0, 0)
    assert LedgerEntry.objects.values_list("amount", flat=True).get() == 30
    assert Hold.objects.values().get() == settled


def test_f40_a_released_hold_is_not_settled_later(account):
    run = working.submit(account)
    cancel_run(run_id=run.pk, actor="tester")

    in_parallel(*[closing(account, Bill(run.pk, 7))] * 4)

    assert (figures(account), LedgerEntry.objects.count()) == ((0, 0, 0), 0)
    assert Hold.objects.get().state == "released"
    assert builders.make_run(account=account).pk  # the place is free
