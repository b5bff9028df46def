"""Why a run is not moving, in situations that real processes make: killed, frozen, busy, draining, without Redis.

Asked as clients ask, `GET /api/v1/runs/{id}`. Situations made by rows and by hand are in tests/workers/test_why.py.
"""

import signal

import pytest
from django.test import Client

from quotas.models import Account
from runs import controls
from runs.services import cancel_run, submit_run
from tests import builders
from tests.probes import eventually
from tests.processes.trials import submit, until, until_begun

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
SLOW = {"AGENTOPS_LEASE_SECONDS": "12"}  # long enough to be asked while it runs down


@pytest.fixture
def ask(transactional_db, client: Client):
    """A function that returns what the API says of a run: (code, text, facts), or None."""
    keys: dict[int, str] = {}

    def asked(run):
        key = keys.setdefault(run.account_id, "") or builders.make_api_key(run.account)[1]
        keys[run.account_id] = key
        answer = client.get(f"/api/v1/runs/{run.pk}", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        why = answer.json()["why"]
        return None if why is None else (why["code"], why["text"], why["facts"])

    return asked


@pytest.fixture
def until_says(ask):
    """A function that waits until the API gives this reason, and returns its text and facts."""

    def waited(run, code: str):
        def said():
            found = ask(run)
            assert found is not None
            assert found[0] == code, found
            return found[1:]

        return eventually(said, timeout=40)

    return waited


@pytest.fixture
def account(transactional_db) -> Account:
    return builders.make_account("acme")


def test_a_worker_that_is_killed_leaves_a_lease_that_runs_down(stack, account, ask, until_says, settings):
    settings.LEASE_SECONDS = 12
    worker = stack.worker(**SLOW)
    run = submit(account, "probe.sleep", seconds=60)
    until_begun(run)
    assert ask(run) is None

    worker.kill()

    text, facts = until_says(run, "owner_silent")
    assert f"Its worker {worker.row.name} is " in text
    assert "then it is interrupted, and what it spent is settled. No other worker is alive to see to that." in text
    assert (facts["then"], facts["other_workers"]) == ("interrupted", 0)
    text, _ = until_says(run, "lease_expired")
    assert "gone and its lease expired" in text
    stack.worker(**SLOW)
    until("interrupted", run, timeout=40)
    assert ask(run) is None


def test_a_worker_that_is_frozen_is_silent_and_then_overtaken(stack, account, until_says, settings):
    settings.LEASE_SECONDS = 12
    first = stack.worker(**SLOW)
    run = submit_run(
        account=account, agent="probe.sleep", input={"seconds": 60}, actor="t", on_lost="rerun", max_attempts=2
    ).run
    until_begun(run)
    stack.worker(**SLOW)

    first.pause()

    text, facts = until_says(run, "owner_silent")
    assert "then attempt 2 of 2 is scheduled." in text
    assert (facts["worker"], facts["policy"], facts["other_workers"]) == (first.row.name, "rerun", 1)
    text, facts = until_says(run, "retry_backoff")
    assert "in attempt 1 the worker was lost." in text
    assert facts["event"] == "run.retaken"
    first.resume()


def test_every_place_is_busy(stack, account, until_says):
    stack.worker(concurrency=1)
    busy = submit(account, "probe.sleep", seconds=60)
    until_begun(busy)
    submit(account, "probe.ret")
    run = submit(account, "probe.ret")

    text, facts = until_says(run, "slots_busy")

    assert text.startswith("The one place of the worker for it is in use; 1 run is before it.")
    assert (facts["position"], facts["places"], facts["workers"]) == (2, 1, 1)
    cancel_run(run_id=busy.pk, actor="t")
    until("succeeded", run)


def test_a_worker_that_drains_takes_nothing_more(stack, account, until_says):
    worker = stack.worker(AGENTOPS_DRAIN_GRACE_SECONDS="60")
    busy = submit(account, "probe.sleep", seconds=60)
    until_begun(busy)
    worker.signal(signal.SIGTERM)
    eventually(lambda: worker.row.draining_since is not None)

    run = submit(account, "probe.ret")

    text, facts = until_says(run, "workers_draining")
    assert text.startswith("The only worker that could run it is draining and takes nothing more.")
    assert facts["draining"] == 1


def test_a_paused_queue_holds_a_run_until_it_is_resumed(live_stack, account, ask, until_says):
    controls.pause_queue(queue="default", actor="alice", reason="The model is down")
    run = submit(account, "probe.ret")

    text, facts = until_says(run, "queue_paused")

    assert ": The model is down. Nothing is taken from it until somebody resumes it." in text
    assert facts["reason"] == "The model is down"
    controls.resume_queue(queue="default", actor="alice")
    until("succeeded", run)
    assert ask(run) is None


def test_no_worker_that_lives_knows_its_agent(stack, account, until_says):
    stack.worker("--agents", "probe.sleep")
    run = submit(account, "probe.ret")

    text, facts = until_says(run, "unknown_agent")

    assert text.startswith("The live worker of the queue default does not know the agent probe.ret. It fails at ")
    assert (facts["agent"], facts["serving"]) == ("probe.ret", 1)


def test_no_worker_that_lives_serves_its_queue_and_then_none_lives(stack, account, until_says):
    worker = stack.worker("--queues", "gpu")
    run = submit(account, "probe.ret")

    text, _ = until_says(run, "no_worker_for_queue")
    assert text.startswith("No live worker serves the queue default; 1 worker serves gpu.")
    worker.kill()
    text, facts = until_says(run, "no_worker")
    assert f"{worker.row.name} was the last to be heard of" in text
    assert facts["last_worker"] == worker.row.name


def test_redis_is_gone_and_comes_back(own_redis, stack, account, ask, until_says):
    stack.worker()
    own_redis.kill()
    run = submit(account, "probe.ret")

    text, _ = until_says(run, "redis_away")

    assert text.startswith("Redis does not answer, so 1 worker cannot take it.")
    own_redis.start()
    until("succeeded", run, timeout=60)
    assert ask(run) is None


def test_a_retry_backs_off_after_a_real_failure(stack, account, until_says):
    stack.worker()
    run = submit(account, "probe.retryable", fails=1, after=60)

    text, facts = until_says(run, "retry_backoff")

    assert text.startswith("Attempt 2 of ")
    assert "in attempt 1 it failed with " in text
    assert (facts["attempt"], facts["event"]) == (2, "run.retrying")


def test_a_handler_that_ignores_its_cancel_is_waited_for(stack, account, until_says):
    stack.worker(AGENTOPS_HANDLER_GRACE_SECONDS="20")
    run = submit(account, "probe.stubborn", seconds=60)
    until_begun(run)
    cancel_run(run_id=run.pk, actor="t")

    text, facts = until_says(run, "cancel_requested")

    assert "and its worker has not confirmed it yet" in text
    assert facts["cancel_requested_at"].endswith("Z")
