"""What becomes of the run of a lost worker: by its policy, its attempts, its time and its marks (protocol 8.3, 8.4)."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.database import in_transaction
from quotas.models import Hold, LedgerEntry
from runs import broker, ready
from runs.models import Attempt, Run
from runs.outcomes import ErrorClass, Failed, HandedBack
from runs.retry import Backoff
from runs.services import cancel_run, claims, take_over, take_over_dead
from runs.services.leaving import Lost
from tests import builders, invariants, working
from tests.at_work import at_work, life, until
from workers import repair, takeover
from workers.aftermath import announce_left, buried
from workers.models import DeadLetter
from workers.takeover import Takeover

pytestmark = pytest.mark.django_db(transaction=True)
BACKOFF = Backoff(base=0.0)


@pytest.fixture(autouse=True)
def agent(db):
    """An agent whose runs are tried again at once, as far as a back-off allows."""
    with working.registered(
        "test.rerun", policy="rerun", backoff=BACKOFF, estimate=1000, allow=frozenset({"on_lost", "max_attempts"})
    ):
        yield


def running(account, cost=0, worker="w1", **fields):
    """Submit, take and claim a run; its worker reported a cost with its last beat."""
    run = working.submit(account, agent="test.rerun", **fields)
    return begun(run, cost, worker)


def begun(run, cost=0, worker="w1"):
    run.refresh_from_db()
    working.claim(run, worker=worker)
    Attempt.objects.filter(run=run, ended_at=None).update(cost=cost, usage={"m": {"input": cost}})
    run.refresh_from_db()
    return run


def owner_of(run):
    """Return the claim of a running run, as its owner holds it."""
    return claims.claimed_by(run.claim_token)[0]


def lost(run):
    """Let the worker be gone, and take the run over as the sweeper does. Returns what came of it."""
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    row = Run.objects.get(pk=run.pk)
    seen = Lost(row.pk, row.fence, row.lease_expires_at)
    left = in_transaction(lambda: buried(take_over(seen, actor="sweeper")))
    if left is not None:
        announce_left(broker.client(), left)
    run.refresh_from_db()
    return left


def come_back(run):
    """Let a retaken run's time come."""
    Run.objects.filter(pk=run.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))
    assert len(working.promote()) == 1
    run.refresh_from_db()
    return run


def settle(run):
    """End a run that still waits, and check what has to hold then."""
    cancel_run(run_id=run.pk, actor="tester")
    invariants.check(run.account, events=False)


# -- interrupt -------------------------------------------------------------------------------------------------------
def test_a_lost_run_is_interrupted_by_default_and_its_cost_is_booked(account):
    run = running(account, cost=70, on_lost="interrupt")

    left = lost(run)

    assert (run.state, run.attempt, run.cost, run.error_class) == ("interrupted", 1, 70, "lost_worker")
    assert (left.moved.row.kind, left.failed) == ("run.interrupted", [])
    assert left.moved.row.data["cost_after_last_beat"] == "unknown"
    assert LedgerEntry.objects.get().amount == 70
    assert DeadLetter.objects.count() == 0
    invariants.check(account)


def test_what_the_submit_says_goes_before_the_agents_policy(account):
    kept, given_up = running(account), running(account, on_lost="interrupt")

    assert [lost(run).moved.row.kind for run in (kept, given_up)] == ["run.retaken", "run.interrupted"]
    settle(kept)


# -- rerun -----------------------------------------------------------------------------------------------------------
def test_a_lost_run_is_scheduled_again_and_the_crash_counts_as_an_attempt(account, redis):
    run = running(account, cost=7, session="s")

    left = lost(run)

    assert (run.state, run.attempt, run.fence, run.claim_token, run.lease_expires_at) == ("scheduled", 2, 3, None, None)
    assert (run.cost, run.usage, run.error, run.stop_at) == (7, {"m": {"input": 7}}, None, None)
    assert run.session_slot is not None
    assert run.not_before is not None
    said = left.moved.row
    assert (said.kind, said.data["attempt"], said.data["of"], said.data["error"]["class"]) == (
        "run.retaken", 2, 3, "lost_worker",
    )  # fmt: skip
    attempt = run.attempts.get()
    assert (attempt.outcome, attempt.error_class, attempt.cost) == ("lost", "lost_worker", 7)
    assert (attempt.error["message"], attempt.ended_at is not None) == (
        "The worker was lost in attempt 1 of 3.", True,
    )  # fmt: skip
    hold = Hold.objects.get()
    assert (hold.state, hold.expires_at is not None, LedgerEntry.objects.count()) == ("active", True, 0)
    assert ready.named_entry(redis, run) is None  # its entry was the lost worker's
    assert working.log_of(run) == ["1-1", "2-1", "3-1"]
    settle(run)


def test_the_next_attempt_adds_to_the_cost_and_the_run_is_settled_once(account):
    run = running(account, cost=7)
    lost(run)
    claimed = working.claim(come_back(run))[0]

    working.finish(working.finish_of(claimed, cost=5))

    run.refresh_from_db()
    assert (run.state, run.cost, claimed.begun_before, claimed.run.attempt) == ("succeeded", 12, True, 2)
    assert LedgerEntry.objects.get().amount == 12
    assert life(run) == ["run.queued", "run.started", "run.retaken", "run.queued", "run.started", "run.succeeded"]
    invariants.check(account, events=False)


def test_a_run_that_loses_its_worker_in_every_attempt_is_a_crash_loop(account):
    """F20, F21: the last crash ends in the dead letters, not in `running`."""
    run = running(account, cost=1, max_attempts=3)
    for attempt in (1, 2):
        assert run.attempt == attempt
        lost(run)
        begun(come_back(run), cost=1)

    left = lost(run)

    assert (run.state, run.attempt, run.cost) == ("failed", 3, 3)
    assert (run.error["class"], run.error["cause"]) == ("lost_worker", "crash_loop")
    assert "attempt 3 of 3" in run.error["message"]
    assert [failed.pk for failed in left.failed] == [run.pk]
    letter = DeadLetter.objects.get()
    assert (letter.run_id, letter.reason, letter.error_class) == (run.pk, "crash_loop", "lost_worker")
    assert letter.published_at is not None
    assert LedgerEntry.objects.get().amount == 3
    assert [row.outcome for row in run.attempts.order_by("fence")] == ["lost"] * 3
    invariants.check(account, events=False)


def test_crashes_and_failures_share_the_attempts(account):
    run = running(account, max_attempts=2)
    lost(run)
    claimed = working.claim(come_back(run))[0]

    done = working.finish(working.finish_of(claimed, Failed(ErrorClass.AGENT_BUG, "E", "boom", retry_in=5.0)))

    run.refresh_from_db()
    assert (run.state, run.error["cause"], len(done.failed)) == ("failed", "exhausted", 1)


def test_a_drained_attempt_does_not_count_towards_the_crash_loop(account):
    run = running(account, max_attempts=2)
    for _ in range(3):
        working.finish(working.finish_of(owner_of(run), HandedBack("drained")))
        begun(run)
    assert run.attempt == 1

    lost(run)

    assert (run.state, run.attempt) == ("scheduled", 2)
    settle(run)


@pytest.mark.parametrize("limit", ["wall_clock", "deadline"])
def test_a_lost_run_without_time_for_another_attempt_fails(account, limit):
    run = running(account)
    past = timezone.now() - dt.timedelta(seconds=1)
    if limit == "deadline":
        Run.objects.filter(pk=run.pk).update(deadline_at=past)
    else:
        Run.objects.filter(pk=run.pk).update(started_at=past - dt.timedelta(seconds=run.wall_clock_seconds))

    lost(run)

    assert (run.state, run.attempt, run.error["cause"]) == ("failed", 1, "exhausted")
    assert "No time is left" in run.error["message"]
    invariants.check(account, events=False)


def test_a_rerun_of_an_agent_that_this_process_does_not_know_goes_by_the_row(account):
    """The sweeper may run where the agent's code is not."""
    run = running(account)
    Run.objects.filter(pk=run.pk).update(agent="known.elsewhere")

    lost(run)

    assert (run.state, run.attempt) == ("scheduled", 2)
    assert run.not_before - timezone.now() < dt.timedelta(seconds=5)
    settle(run)


# -- cancel ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("on_lost", ["interrupt", "rerun"])
def test_a_run_that_was_to_be_cancelled_is_cancelled_whatever_the_policy(account, on_lost):
    run = running(account, cost=4, on_lost=on_lost)
    cancel_run(run_id=run.pk, actor="tester")

    left = lost(run)

    assert (run.state, run.attempt, left.moved.row.kind, left.failed) == ("cancelled", 1, "run.cancelled", [])
    assert LedgerEntry.objects.get().amount == 4
    invariants.check(account)


# -- the dead --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("on_lost", "state"), [("interrupt", "interrupted"), ("rerun", "scheduled")])
def test_the_runs_of_a_worker_known_to_be_dead_are_taken_over_whatever_their_lease_says(account, on_lost, state):
    dead, alive = running(account, on_lost=on_lost, worker="dead-1"), running(account, worker="alive-1")
    assert dead.lease_expires_at > timezone.now()

    lefts = [
        in_transaction(lambda run=run: take_over_dead(run.pk, worker="dead-1", actor="supervisor"))
        for run in (dead, alive, dead)
    ]

    assert [left is not None for left in lefts] == [True, False, False]
    dead.refresh_from_db()
    alive.refresh_from_db()
    assert (dead.state, alive.state, dead.transitions.get(fence=3).actor) == (state, "running", "supervisor")
    lost(alive)
    for run in (dead, alive):
        cancel_run(run_id=run.pk, actor="tester")
    invariants.check_money([account])


def test_an_owner_that_comes_back_finds_its_run_taken_and_writes_nothing(account):
    run = running(account, cost=2)
    late = owner_of(run)
    lost(run)
    before, row = working.rows(), Run.objects.filter(pk=run.pk).values().get()

    done = working.finish(working.finish_of(late, cost=99))

    assert (done.moved, done.lost) == ([], [run.pk])
    assert working.new_rows(before) == {}
    assert Run.objects.filter(pk=run.pk).values().get() == row
    settle(run)


# -- as the sweeper does it ------------------------------------------------------------------------------------------
class Clock:
    """A monotonic clock that goes when it is told to."""

    def __init__(self, now=1000.0):
        self.now = now

    def monotonic(self):
        return self.now


def test_a_retaken_run_is_started_again_by_a_worker_at_its_time(account, monkeypatch):
    """The whole way: a lost worker, the sweeper's memory, the schedule, another worker."""
    run = working.submit(account, agent="test.rerun")
    assert len(working.consumer(working.config()).take([0])) == 1
    working.claim(run)
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=60))
    clock = Clock()
    monkeypatch.setattr(takeover, "time", clock)
    sweeping = Takeover(broker.client(), lease=15.0, actor="sweeper")
    looks = []
    for _ in range(3):
        looks.append(sweeping.run_once())
        clock.now += 4
        sweeping._clocks = None  # the database's clock went as far
    assert looks == [0, 0, 1]

    with at_work("test.rerun"):
        until("succeeded", run)

    assert run.attempt == 2
    assert life(run) == ["run.queued", "run.started", "run.retaken", "run.queued", "run.started", "run.succeeded"]
    kinds = [event["kind"] for event in invariants.all_events(run.pk)]
    assert "output.rollback" in kinds
    invariants.check(account)


def test_repair_counts_the_crash_and_buries_the_last_one(account):
    dead = [running(account, worker="dead-1", max_attempts=attempts) for attempts in (1, 2)]

    repair.repair(broker.client(), builders.make_worker(name="dead-1"), actor="supervisor")

    for run in dead:
        run.refresh_from_db()
    assert [run.state for run in dead] == ["failed", "scheduled"]
    assert DeadLetter.objects.get().reason == "crash_loop"
    settle(dead[1])
