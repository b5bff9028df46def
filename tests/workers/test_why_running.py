"""Why a running run is not moving, by its rows and its log. Those of real processes: tests/processes/test_why.py."""

import pytest

from runs import broker, keys
from runs.services import cancel_run
from tests import builders, working
from tests.reasons import ago, changed, why, worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def times(settings):
    settings.LEASE_SECONDS = 15


def running(account, **fields):
    run = working.submit(account, **fields)
    working.claim(run)
    worker(name="w1")
    return run


def test_a_run_that_is_well_or_over_has_no_reason(account):
    run = running(account)
    assert why(run) is None
    assert why(builders.make_run("succeeded", account=account)) is None


@pytest.mark.parametrize(
    ("columns", "then", "said"),
    [
        ({}, "interrupted", "then it is interrupted, and what it spent is settled."),
        ({"on_lost": "rerun", "max_attempts": 3}, "rerun", "then attempt 2 of 3 is scheduled."),
        ({"on_lost": "rerun"}, "failed", "then it fails, because that was attempt 1 of 1."),
        ({"cancel_requested_at": ago(1)}, "cancelled", "then it is cancelled, as was asked."),
        ({"stop_requested": "time_limit"}, "timeout", "then it ends as timed out, or is tried again"),
    ],
)
def test_a_lease_that_is_not_renewed_says_what_comes_of_it(account, columns, then, said):
    run = changed(running(account), lease_expires_at=ago(-4), **columns)
    worker(name="w2")

    found = why(run)

    assert found["code"] == "owner_silent"
    assert found["text"].startswith("Its worker w1 is silent: its lease was not renewed and expires in 4 s, then ")
    assert said in found["text"]
    assert (found["facts"]["then"], found["facts"]["seconds"], found["facts"]["other_workers"]) == (then, 4, 1)


def test_an_expired_lease_of_a_worker_that_is_gone_and_nobody_to_look(account):
    run = working.submit(account)
    working.claim(run)
    changed(run, lease_expires_at=ago(20))

    said = why(run)

    assert said["code"] == "lease_expired"
    assert said["text"] == (
        "Its worker w1 is gone and its lease expired 20 s ago: at the next look of a sweeper it is interrupted, "
        "and what it spent is settled. No other worker is alive to see to that."
    )


def test_a_cancel_that_is_not_confirmed(account, settings):
    settings.HANDLER_GRACE_SECONDS = 10
    run = running(account)
    cancel_run(run_id=run.pk, actor="tester")

    said = why(run)

    assert said["code"] == "cancel_requested"
    assert said["text"] == (
        "Cancel was requested 0 s ago and its worker has not confirmed it yet; "
        "a handler that does not stop is abandoned 10 s after its worker told it to."
    )


def test_a_limit_that_passed_and_was_not_obeyed(account, settings):
    settings.HANDLER_GRACE_SECONDS = 10
    run = changed(running(account), stop_requested="wall_clock", stop_requested_at=ago(3))

    said = why(run)

    assert said["code"] == "stop_requested"
    assert said["text"].startswith("Its wall clock passed, and its worker was asked 3 s ago to stop it;")


def test_a_silent_handler_and_its_limit_of_no_progress(account):
    run = changed(running(account), no_progress_seconds=60.0, quiet_at=ago(-20), stop_at=ago(-500))
    broker.client().delete(keys.log(run.pk))

    said = why(run)

    assert said["code"] == "handler_silent"
    assert said["text"].startswith("Its handler has sent no event for 40 s; its limit of no progress ends the ")
    assert (said["facts"]["limit"], said["facts"]["seconds"]) == ("no_progress", 20)


def test_a_silent_handler_without_such_a_limit_is_seen_by_its_log(account, redis):
    run = changed(running(account), stop_at=ago(-500))
    redis.delete(keys.log(run.pk))
    at = ago(45).isoformat()
    redis.xadd(keys.log(run.pk), {"e": f'{{"kind":"run.started","at":"{at}","data":{{}}}}', "p": ""}, id="2-1")

    said = why(run)

    assert said["text"].startswith("Its handler has sent no event for 45 s; its time limit ends the attempt at ")
