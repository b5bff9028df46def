"""Why a run that waits is not moving: each situation by its rows and its Redis. A running one: test_why_running.py.

Those that real processes make are in tests/processes/test_why.py: killed, frozen, busy, draining, paused, without the
agent, without the queue, all gone, Redis stopped, a retry's back-off, a cancel that is ignored.
"""

import re
from pathlib import Path

import pytest
from django.utils import timezone

from agentops.counting import count
from quotas.models import Account, Hold
from runs import controls, keys
from runs.models import Run
from runs.why import MANY, WhyCode, why_not_moving
from tests import builders, crowds, working
from tests.desk import Desk
from tests.reasons import AGENTS, ago, changed, why, worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def times(settings):
    settings.LEASE_SECONDS = 15


# -- queued: what the workers lack -------------------------------------------------------------------------------------
def test_a_paused_queue_comes_before_everything_else(account):
    run = working.submit(account)
    controls.pause_queue(queue="default", actor="alice", reason="The model is down.")

    said = why(run)

    assert said["code"] == "queue_paused"
    assert said["text"].startswith("The queue default is paused since ")
    assert ": The model is down. Nothing is taken from it until somebody resumes it. It fails at " in said["text"]
    assert (said["facts"]["queue"], said["facts"]["reason"]) == ("default", "The model is down.")
    assert said["facts"]["waits_until"].endswith("Z")
    assert "alice" not in str(said)


def test_no_worker_is_alive_and_the_last_one_is_named(account):
    run = working.submit(account)
    assert why(run)["text"].startswith("No worker is alive, and none ever was. It fails at ")
    worker(name="gone-1", heartbeat_at=ago(200))

    said = why(run)

    assert said["code"] == "no_worker"
    assert said["text"].startswith("No worker is alive: gone-1 was the last to be heard of, 3 m 20 s ago.")
    assert (said["facts"]["last_worker"], said["facts"]["workers"]) == ("gone-1", 0)


def test_no_live_worker_serves_the_queue(account):
    run = working.submit(account)
    worker(queues=["gpu", "slow"])

    said = why(run)

    assert said["code"] == "no_worker_for_queue"
    assert said["text"].startswith("No live worker serves the queue default; 1 worker serves gpu, slow.")
    assert said["facts"]["workers"] == 1


def test_no_worker_of_the_queue_knows_the_agent(account):
    run = working.submit(account)
    worker(agents=["other"])
    worker(agents=["other"])
    worker(queues=["gpu"])

    said = why(run)

    assert said["code"] == "unknown_agent"
    assert said["text"].startswith("None of the 2 live workers of the queue default knows the agent probe.ret.")
    assert (said["facts"]["agent"], said["facts"]["serving"], said["facts"]["workers"]) == ("probe.ret", 2, 3)


def test_all_workers_that_could_run_it_are_draining(account):
    run = working.submit(account)
    worker(draining_since=timezone.now())
    worker(drain_requested_at=timezone.now())
    worker(agents=["other"])

    said = why(run)

    assert said["code"] == "workers_draining"
    assert said["text"].startswith("All 2 workers for it are draining and take no more.")
    assert said["facts"]["draining"] == 2


def test_its_only_worker_is_not_heard_of_any_more(account, settings):
    settings.HEARTBEAT_SECONDS = 10
    run = working.submit(account)
    worker(name="quiet-1", heartbeat_at=ago(22))

    said = why(run)

    assert said["code"] == "workers_silent"
    assert said["text"].startswith("Its only worker quiet-1 was last heard of 22 s ago; after 30 s they count as lost.")


# -- queued: what Redis says -------------------------------------------------------------------------------------------
def test_redis_does_not_answer(account, own_redis):
    run = working.submit(account)
    worker()
    own_redis.kill()

    said = why(run)

    assert said["code"] == "redis_away"
    assert said["text"].startswith("Redis does not answer, so 1 worker cannot take it.")


def test_it_is_parked_at_the_limit_of_its_agent(account, redis):
    with crowds.limited_agents(redis):
        worker()
        desk = crowds.Desk()
        runs = crowds.submitted(account, 4)
        desk.turn()

        said = why(runs[3])

    assert said["code"] == "limit_reached"
    assert said["text"].startswith(
        f"The agent {crowds.FEW} is at its limit of 2 runs at work at once; of those that wait, 1 run before it."
    )
    facts = {name: said["facts"][name] for name in ("limit", "name", "most", "running", "waiting_before")}
    assert facts == {"limit": "agent", "name": crowds.FEW, "most": 2, "running": 2, "waiting_before": 1}


def test_it_is_parked_at_the_limit_of_its_account(account, redis):
    redis.set(keys.epoch("default"), 1)
    Account.objects.filter(pk=account.pk).update(max_running=1)
    worker()
    _, second = [working.submit(account) for _ in range(2)]
    Desk().handle()

    said = why(second)

    assert said["code"] == "limit_reached"
    assert said["text"].startswith("The account acme is at its limit of 1 run at work at once; of those that wait,")
    assert (said["facts"]["limit"], said["facts"]["name"]) == ("account", "acme")


def test_it_is_not_in_its_stream_yet(account, redis):
    run = working.submit(account)
    worker()
    redis.flushdb()

    said = why(run)

    assert said["code"] == "not_dispatched"
    assert "not in its stream yet: Redis was away, or lost it. A sweeper puts it there" in said["text"]


@pytest.mark.parametrize("known", [True, False])
def test_it_was_given_to_a_worker_that_has_not_claimed_it(account, known):
    run = working.submit(account)
    desk = Desk()
    worker()
    worker(name=desk.config.consumer, agents=AGENTS if known else ["other"])

    said = why(run)

    assert said["code"] == "delivered"
    assert said["text"].startswith(f"It was given to {desk.config.consumer} 0 s ago, which ")
    assert ("has not claimed it: another worker takes it over in" in said["text"]) is known
    assert ("does not know its agent and puts it back" in said["text"]) is not known
    assert (said["facts"]["worker_alive"], said["facts"]["deliveries"]) == (True, 1)


def test_it_was_given_to_a_worker_that_is_gone(account):
    run = working.submit(account)
    Desk()
    worker()

    said = why(run)

    assert said["code"] == "delivered"
    assert "which is not alive: another worker takes it over in " in said["text"]


def test_its_hold_lapsed_and_its_account_has_no_room(account):
    run = working.submit(account)
    worker()
    Hold.objects.filter(run_id=run.pk).update(state="expired", expires_at=ago(60))
    Account.objects.filter(pk=account.pk).update(held=0)
    assert why(run)["code"] == "in_line"
    Account.objects.filter(pk=account.pk).update(limit=10)

    said = why(run)

    assert said["code"] == "hold_lapsed"
    assert "the worker that takes it fails it with quota_exceeded, unless money comes before." in said["text"]
    assert (said["facts"]["needed"], said["facts"]["available"]) == (1000, 10)


def test_all_places_are_in_use_and_so_many_are_before_it(account):
    alive = worker(name="busy-1", concurrency=1)
    builders.make_run("running", account=account, worker=alive.name)
    working.submit(account, priority="low")
    working.submit(account)
    working.submit(account, priority="high")
    run = working.submit(account)

    said = why(run)

    assert said["code"] == "slots_busy"
    assert said["text"].startswith("The one place of the worker for it is in use; 2 runs are before it. It fails at ")
    facts = {name: said["facts"][name] for name in ("position", "waiting_before", "places", "places_used", "workers")}
    assert facts == {"position": 3, "waiting_before": 2, "places": 1, "places_used": 1, "workers": 1}


def test_all_global_slots_are_in_use(account, settings, redis):
    settings.GLOBAL_SLOTS = 2
    worker()
    run = working.submit(account)
    redis.zadd(keys.slots("default"), {"a/0": 1e15, "b/0": 1e15})

    said = why(run)

    assert said["code"] == "slots_busy"
    assert said["text"].startswith("All 2 slots of the queue default are in use; it is the next.")


def test_a_run_that_nothing_stops_says_its_place(account):
    worker()
    working.submit(account)
    run = working.submit(account)

    assert why(run)["text"] == "4 of 4 places are free and 1 run is before it: it begins in a moment."


def test_a_long_queue_is_counted_to_ten_thousand_and_no_further(account, monkeypatch):
    monkeypatch.setattr("workers.why_queued.MANY", 3)
    worker(concurrency=0)
    runs = [working.submit(account) for _ in range(6)]

    said = why(runs[5])

    assert said["text"].startswith("All 0 places of the worker for it are in use; more than 3 runs are before it.")
    assert (said["facts"]["position"], said["facts"]["waiting_before"]) == (None, 3)
    assert why(runs[3])["facts"]["position"] == 4
    assert MANY == 10_000


def test_maintenance_does_not_stop_it(account):
    run = working.submit(account)
    controls.begin_maintenance(message="moving house", actor="alice")
    worker()

    said = why(run)

    assert said["code"] == "in_line"
    assert said["text"].endswith("Maintenance keeps out new runs; it does not hold this one.")
    assert said["facts"]["maintenance"] is True


# -- scheduled ---------------------------------------------------------------------------------------------------------
def test_a_delayed_run_says_when_it_begins(account):
    run = working.submit(account, delay=3600)

    said = why(run)

    assert said["code"] == "scheduled"
    assert said["text"].startswith("It begins at ")
    assert said["text"].endswith("(in 1 h 0 m), as it was submitted.")
    assert 3590 < said["facts"]["seconds"] <= 3600


def test_a_retry_says_until_when_it_backs_off_and_after_what(account):
    run = builders.make_run("running", account=account, attempt=1, max_attempts=3)
    run.attempts.update(outcome="failed", error_class="provider_unavailable", ended_at=timezone.now())
    changed(run, state="scheduled", attempt=2, not_before=ago(-30))

    said = why(run)

    assert said["code"] == "retry_backoff"
    assert said["text"].startswith("Attempt 2 of 3 begins at ")
    assert said["text"].endswith("in attempt 1 it failed with provider_unavailable.")
    assert (said["facts"]["error_class"], said["facts"]["event"]) == ("provider_unavailable", "run.retrying")
    run.attempts.update(outcome="lost", error_class="lost_worker")
    assert why(run)["text"].endswith("in attempt 1 the worker was lost.")


def test_a_run_behind_its_session_names_the_one_before(account):
    first = working.submit(account, session="talk")
    second = working.submit(account, session="talk", on_busy="enqueue")
    third = working.submit(account, session="talk", on_busy="enqueue")

    said = why(third)

    assert said["code"] == "behind_session"
    assert said["text"].startswith(
        f"It waits for the run {first.pk} of its session, which is queued, and 1 run of the session before it."
    )
    assert (said["facts"]["run"], said["facts"]["state"], said["facts"]["waiting_before"]) == (
        str(first.pk),
        "queued",
        1,
    )
    assert why(second)["facts"]["waiting_before"] == 0


def test_a_due_run_waits_for_a_sweeper_and_without_workers_for_one(account):
    run = changed(working.submit(account, delay=60), not_before=ago(5))
    assert why(run)["code"] == "no_worker"
    worker()

    said = why(run)

    assert said["code"] == "due"
    assert said["text"] == "It was due 5 s ago: a sweeper queues it within seconds."


def test_a_session_that_is_free_again(account):
    working.submit(account, session="talk")
    second = working.submit(account, session="talk", on_busy="enqueue")
    Run.objects.filter(session_slot__isnull=False).update(session_slot=None)
    worker()

    assert why(second)["code"] == "session_free"


# -- its cost ----------------------------------------------------------------------------------------------------------
def test_it_costs_the_same_whatever_waits(account):
    def statements(run):
        run = Run.objects.select_related("account").get(pk=run.pk)
        why_not_moving(run)  # pauses and maintenance are known for a second from here on
        with count() as counted:
            assert why_not_moving(run) is not None
        return counted.statements

    worker()
    first = working.submit(account)
    few = statements(first)
    for _ in range(30):
        last = working.submit(account)
    assert statements(last) == few <= 8


def test_the_page_of_the_api_tells_every_code_in_its_order():
    page = Path("docs/api.md").read_text(encoding="utf-8")
    table = page[page.index("### Why a run is not moving") : page.index("`cancel` ends a queued run")]

    assert re.findall(r"^\|[^|]*\| `(\w+)` \|", table, re.MULTILINE) == list(WhyCode)
