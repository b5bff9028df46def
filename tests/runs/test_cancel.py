"""Cancel: one decision under the locks (protocol 12.1)."""

import pytest

from quotas.models import AuditEntry, Hold, LedgerEntry
from runs import errors, keys
from runs.ids import new_run_id
from runs.models import Run
from runs.outcomes import ErrorClass, Failed, Succeeded
from runs.services import cancel_run
from runs.states import TERMINAL
from tests import builders, invariants, working
from tests.probes import eventually

pytestmark = pytest.mark.django_db


def cancel(run, **fields):
    return cancel_run(**({"run_id": run.pk, "actor": "tester"} | fields))


def test_a_queued_run_is_cancelled_at_once_and_costs_nothing(account):
    run = working.submit(account, session="s")

    verdict = cancel(run, reason="not needed", request_id="r1")

    run.refresh_from_db()
    assert (verdict.what, run.state, run.fence, run.session_slot) == ("cancelled", "cancelled", 2, None)
    assert Hold.objects.get(run_id=run.pk).state == "released"
    assert LedgerEntry.objects.count() == 0
    last = run.transitions.get(fence=2)
    assert (last.kind, last.actor, last.data) == ("run.cancelled", "tester", {"reason": "not needed", "cost": 0})
    entry = AuditEntry.objects.get(action="run.cancel")
    assert (entry.before, entry.after) == ({"state": "queued"}, {"state": "cancelled", "cancel": "cancelled"})
    assert (entry.reason, entry.request_id) == ("not needed", "r1")
    invariants.check_money([account])


def test_a_running_run_is_marked_and_its_worker_decides(account):
    run = working.submit(account)
    working.claim(run)

    assert cancel(run).what == "requested"

    run.refresh_from_db()
    assert (run.state, run.fence) == ("running", 2)
    assert run.cancel_requested_at is not None
    assert Hold.objects.get(run_id=run.pk).state == "active"


def test_a_second_cancel_keeps_the_first_mark(account):
    run = working.submit(account)
    working.claim(run)
    cancel(run)
    first = Run.objects.get(pk=run.pk).cancel_requested_at

    assert cancel(run).what == "requested"
    assert Run.objects.get(pk=run.pk).cancel_requested_at == first


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_run_is_left_alone_and_said_to_have_ended(account, state):
    run = builders.make_run(state, account=account, cost=5)
    before = working.rows()

    verdict = cancel(run)

    assert (verdict.what, verdict.run.state) == ("ended", state)
    assert working.new_rows(before) == {}


def test_cancelling_twice_moves_the_money_once(account):
    run = working.submit(account)
    cancel(run)
    before = working.rows()

    assert cancel(run).what == "ended"
    assert working.new_rows(before) == {}
    invariants.check_money([account])


def test_another_accounts_run_is_not_there(account, other_account):
    run = working.submit(account)

    for target in (run.pk, new_run_id()):
        with pytest.raises(errors.NoSuchRun):
            cancel_run(run_id=target, actor="tester", account=other_account)
    assert Run.objects.get(pk=run.pk).state == "queued"


def test_a_result_that_comes_after_the_mark_is_kept_on_the_attempt(account):
    run = working.submit(account)
    (claimed,) = working.claim(run)
    cancel(run)

    working.finish(working.finish_of(claimed, Succeeded('"late"'), cost=7))

    run.refresh_from_db()
    assert (run.state, run.result, run.cost) == ("cancelled", None, 7)
    attempt = run.attempts.get()
    assert (attempt.outcome, attempt.result_json, attempt.cost) == ("succeeded", '"late"', 7)
    assert run.transitions.get(fence=3).data["after"] == "succeeded"
    assert LedgerEntry.objects.get(run_id=run.pk).amount == 7
    invariants.check_money([account])


def test_a_failure_that_comes_after_the_mark_is_no_failure_of_the_run(account):
    run = working.submit(account)
    (claimed,) = working.claim(run)
    cancel(run)

    boom = Failed(ErrorClass.AGENT_BUG, "RuntimeError", "boom", partial_json='"part"')
    finished = working.finish(working.finish_of(claimed, boom))

    run.refresh_from_db()
    assert (finished.failed, run.state, run.error, run.error_class) == ([], "cancelled", None, "")
    assert run.attempts.get().error["message"] == "boom"


def test_a_success_before_the_mark_stays_a_success(account):
    run = working.submit(account)
    working.finish(working.finish_of(*working.claim(run)))

    assert cancel(run).what == "ended"
    assert Run.objects.get(pk=run.pk).state == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_a_cancel_of_a_waiting_run_reaches_the_log_and_of_a_running_one_the_workers(account, redis):
    waiting, running = working.submit(account), working.submit(account)
    working.claim(running)
    with redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.control())
        eventually(lambda: redis.pubsub_numsub(keys.control())[0][1] == 1)
        cancel(waiting)
        cancel(running)
        got = []
        eventually(lambda: got.append(heard.get_message()) or any(got))

    assert [message["data"] for message in got if message] == [f'{{"cancel":"{running.pk}"}}'.encode()]
    assert working.log_of(waiting) == ["1-1", "2-1"]


@pytest.mark.django_db(transaction=True)
def test_a_cancel_without_redis_is_a_cancel(account, own_redis):
    waiting, running = working.submit(account), working.submit(account)
    working.claim(running)
    own_redis.kill()

    assert (cancel(waiting).what, cancel(running).what) == ("cancelled", "requested")
