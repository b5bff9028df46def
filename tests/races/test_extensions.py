"""More wanted by several at once: exactly the room there is, and nothing for a run that is taken away (money 6, P3)."""

import datetime as dt

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from quotas.database import in_transaction
from quotas.errors import Busy
from quotas.models import Account, Hold
from runs.models import Run
from runs.services import cancel_run, take_over
from runs.services.budget import Verdict, extend_budget
from runs.services.leaving import Lost
from tests import builders, invariants, working
from tests.racing import held_open, in_parallel

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]
ROUNDS = 5
HELD = 1000


@pytest.fixture
def purse(db):
    account = builders.make_account(limit=10_000)
    yield account
    invariants.check_money([account])
    account.refresh_from_db()
    assert account.spent + account.held <= account.limit


def claims(account, count):
    return working.claim(*[working.submit(account) for _ in range(count)])


def extend(claim, spent):
    """Extend as a worker does: again when the database was busy."""
    run = claim.run
    while True:
        try:
            return extend_budget(
                run_id=run.pk, account_id=run.account_id, fence=claim.fence, claim_token=claim.token, spent=spent
            )
        except Busy:
            continue


def budget_of(claim):
    budget = Run.objects.get(pk=claim.run.pk).budget
    assert Hold.objects.get(run_id=claim.run.pk).amount == budget
    return budget


def test_two_reports_of_a_run_at_once_extend_it_once(purse):
    (claim,) = claims(purse, 1)

    found = in_parallel(*[lambda: extend(claim, 2000)] * 8)

    assert {extension.verdict for extension in found} == {Verdict.EXTENDED}
    assert {extension.budget for extension in found} == {budget_of(claim)} == {3000}
    assert Hold.objects.get(run_id=claim.run.pk).extensions == 1


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_of_two_runs_that_want_the_last_room_one_gets_it(purse, turn):
    first, second = claims(purse, 2)

    found = in_parallel(lambda: extend(first, 9000), lambda: extend(second, 9000))

    assert sorted(extension.verdict for extension in found) == [Verdict.EXTENDED, Verdict.NO_ROOM]
    assert sorted([budget_of(first), budget_of(second)]) == [HELD, 9000]
    assert Account.objects.get(pk=purse.pk).held == 10_000


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_extensions_and_submits_together_take_exactly_the_room_there_is(purse, turn):
    running = claims(purse, 4)  # 4,000 held, 6,000 left: as much as these four or six submits want

    found = in_parallel(
        *[lambda claim=claim: extend(claim, 2500) for claim in running],
        *[lambda: working.submit(purse)] * 6,
    )

    said = [one for one in found if isinstance(one, Exception) and type(one).__name__ not in {"QuotaExceeded", "Busy"}]
    assert said == []
    purse.refresh_from_db()
    assert purse.held <= purse.limit
    assert purse.limit - purse.held < 1500 or not [one for one in found[:4] if one.verdict is Verdict.NO_ROOM]


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_an_extension_and_a_cancel_mark_agree_on_who_was_first(purse, turn):
    (claim,) = claims(purse, 1)

    extension, what = in_parallel(
        lambda: extend(claim, 2000), lambda: cancel_run(run_id=claim.run.pk, actor="tester").what
    )

    assert what == "requested"
    assert extension.verdict in {Verdict.EXTENDED, Verdict.CANCELLED}
    assert budget_of(claim) == (3000 if extension.verdict is Verdict.EXTENDED else HELD)
    working.finish(working.finish_of(claim, cost=2000))
    assert Run.objects.get(pk=claim.run.pk).state == "cancelled"


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_an_extension_and_a_takeover_never_both_have_their_way_with_a_closed_hold(purse, turn):
    (claim,) = claims(purse, 1)
    Run.objects.filter(pk=claim.run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    row = Run.objects.get(pk=claim.run.pk)
    seen = Lost(row.pk, row.fence, row.lease_expires_at)

    extension, left = in_parallel(
        lambda: extend(claim, 2000), lambda: in_transaction(lambda: take_over(seen, actor="sweeper"))
    )

    assert left is not None
    assert extension.verdict in {Verdict.EXTENDED, Verdict.LOST}
    assert budget_of(claim) == (3000 if extension.verdict is Verdict.EXTENDED else HELD)
    purse.refresh_from_db()
    assert (purse.held, purse.in_flight) == (0, 0)


def test_an_extension_waits_for_an_end_and_changes_nothing_after_it(purse):
    (claim,) = claims(purse, 1)

    with held_open(lambda: working.finish(working.finish_of(claim, cost=2000))) as let_go:
        extension, _ = in_parallel(lambda: extend(claim, 2000), let_go)

    assert extension.verdict is Verdict.LOST
    purse.refresh_from_db()
    assert (purse.spent, purse.held) == (2000, 0)


def test_an_extension_whose_answer_is_lost_is_made_once(proxy, account):
    (claim,) = claims(account, 1)
    proxy.lose_next_commit()

    with pytest.raises(OperationalError):
        extend(claim, 2000)
    connection.close()
    again = extend(claim, 2000)

    assert (proxy.lost, again.verdict, again.budget) == (1, Verdict.EXTENDED, 3000)
    assert Hold.objects.get(run_id=claim.run.pk).extensions == 1
    invariants.check_money([account])
