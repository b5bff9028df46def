"""Many at the door at once: money for one, one key, one session, one place (protocol 4; money, rule 1)."""

import pytest

from quotas.errors import Busy, QuotaExceeded, Refusal, TooManyInFlight
from quotas.models import Account, AuditEntry
from quotas.prices import PriceTable, set_price
from runs import errors, keys
from runs.models import Run
from runs.services import cancel_run, requeue_run, submit_run
from runs.services.submit import Submitted
from tests import builders, invariants, working
from tests.racing import in_parallel
from workers import dead_letters
from workers.errors import NotOpen
from workers.models import DeadLetter

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]


def accepted(results):
    """Return what was accepted, and the refusals by class. A refusal as `busy` accepted nothing either."""
    good = [result for result in results if isinstance(result, Submitted | Run)]
    bad = {type(result) for result in results if not isinstance(result, Submitted | Run)}
    assert all(issubclass(kind, Refusal) for kind in bad), results
    return good, bad - {Busy}


def submits(account, count, **fields):
    options = {"account": account, "agent": "probe.ret", "input": {}, "actor": "tester"} | fields
    return in_parallel(*[lambda: submit_run(**options)] * count)


def test_of_fifty_submits_with_money_for_one_exactly_one_is_accepted(account, redis):
    Account.objects.filter(pk=account.pk).update(limit=1999)
    before = working.rows()

    good, bad = accepted(submits(account, 50))

    assert (len(good), bad) == (1, {QuotaExceeded})
    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1}
    account.refresh_from_db()
    assert (account.held, account.in_flight) == (1000, 1)
    assert redis.xlen(keys.ready("default", "normal")) == 1


def test_of_many_submits_as_many_are_accepted_as_there_are_places(account):
    Account.objects.filter(pk=account.pk).update(max_in_flight=3)

    good, bad = accepted(submits(account, 20))

    assert (len(good), bad) == (3, {TooManyInFlight})
    account.refresh_from_db()
    assert (account.held, account.in_flight) == (3000, 3)


def test_thirty_submits_with_one_key_are_one_run(account):
    before = working.rows()

    good, bad = accepted(submits(account, 30, idempotency_key="k"))

    assert bad == set()
    assert len({one.run.pk for one in good}) == 1
    assert [one.replayed for one in good].count(False) == 1
    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1}
    invariants.check_money([account])


def test_of_many_submits_to_one_session_one_gets_it(account):
    good, bad = accepted(submits(account, 12, session="s"))

    assert (len(good), bad) == (1, {errors.SessionBusy})
    assert Run.objects.exclude(session_slot=None).count() == 1


def test_of_many_submits_of_one_input_within_the_window_one_is_accepted(account):
    with working.registered("test.once", dedupe_seconds=60.0):
        good, bad = accepted(submits(account, 12, agent="test.once"))

    assert (len(good), bad) == (1, {errors.DuplicateRun})


def test_of_many_requeues_one_makes_a_run(account):
    old = builders.make_run("failed", account=account)
    before = working.rows()

    good, bad = accepted(in_parallel(*[lambda: requeue_run(run_id=old.pk, actor="tester")] * 12))

    assert (len(good), bad) == (1, {errors.AlreadyRequeued})
    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1, "AuditEntry": 1}
    old.refresh_from_db()
    assert old.retried_by == good[0].run.pk
    invariants.check_money([account])


def test_a_dead_letter_requeued_from_two_places_makes_one_run(account):
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))
    before = working.rows()

    calls = [lambda: dead_letters.requeue(dead_letter_id=letter.pk, actor="tester", reason="again")] * 8
    results = in_parallel(*calls)
    good, bad = accepted(results)

    assert (len(good), bad) == (1, {NotOpen})
    assert {refusal.facts["state"] for refusal in results if isinstance(refusal, NotOpen)} == {"requeued"}
    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1, "AuditEntry": 2}
    assert DeadLetter.objects.get().state == "requeued"


def test_a_dead_letter_is_either_requeued_or_discarded(account):
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))

    results = in_parallel(
        lambda: dead_letters.requeue(dead_letter_id=letter.pk, actor="tester", reason=""),
        lambda: dead_letters.discard(dead_letter_id=letter.pk, actor="tester", reason=""),
    )

    refused = [result for result in results if isinstance(result, NotOpen)]
    requeued = DeadLetter.objects.get().state == "requeued"
    assert len(refused) == 1
    assert Run.objects.count() == 1 + requeued
    assert AuditEntry.objects.filter(action="dead_letter.requeue").count() == requeued


def test_of_many_cancels_of_a_queued_run_one_moves_it(account):
    run = working.submit(account)

    results = in_parallel(*[lambda: cancel_run(run_id=run.pk, actor="tester").what] * 10)

    assert sorted(results) == ["cancelled", *["ended"] * 9]
    assert run.transitions.count() == 2
    assert AuditEntry.objects.filter(action="run.cancel").count() == 1
    invariants.check_money([account])


def test_two_accounts_do_not_wait_for_one_another(account, other_account):
    results = in_parallel(
        *[lambda: working.submit(account)] * 5, *[lambda: working.submit(other_account, session="s")] * 5
    )

    assert sum(isinstance(result, Run) for result in results) == 6
    invariants.check_money([account, other_account])


def test_prices_set_at_once_are_all_kept(db):
    set_price(model="first", prices={"input": 1}, actor="tester")

    in_parallel(*[lambda n=n: set_price(model=f"m{n}", prices={"input": n}, actor="tester") for n in range(6)])

    PriceTable.forget()
    assert sorted(PriceTable.current().prices) == ["first", *[f"m{n}" for n in range(6)]]
