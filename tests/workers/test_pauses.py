"""A paused queue: nothing is taken from it, and what was taken before goes back uncounted (protocol 6.3.1)."""

import datetime as dt

import pytest
from django.db import DatabaseError
from django.utils import timezone

from quotas.database import in_transaction
from quotas.models import AuditEntry, Hold
from runs import broker, controls, keys
from runs.controls import pause_queue, paused_queues, resume_queue
from runs.errors import InvalidRequest, NoSuchQueue
from runs.models import Attempt, QueuePause, Run
from runs.services import claims
from tests import invariants, working
from workers.delivery import Deliveries
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


class Desk:
    """A worker's fetching side, step by step, as the worker calls it."""

    def __init__(self, **fields):
        self.config = working.config(**fields)
        self.deliveries = Deliveries(self.config, broker.client())
        self.consumer = working.consumer(self.config)

    def take(self):
        return self.consumer.take(range(4), (), paused_queues())

    def handle(self, entries):
        return self.deliveries.handle(entries).started


@pytest.fixture
def desk():
    return Desk()


def pause(**fields):
    return pause_queue(**({"queue": "default", "actor": "olga", "reason": "a bad release"} | fields))


def left(redis):
    """Return (entries in the stream, pending entries)."""
    name = keys.ready("default", "normal")
    groups = redis.xinfo_groups(name)
    return redis.xlen(name), groups[0]["pending"] if groups else 0


def state(run):
    return Run.objects.get(pk=run.pk).state


# -- the switch ------------------------------------------------------------------------------------------------------
def test_a_pause_says_why_by_whom_and_since_when_and_is_audited_once(account):
    row, is_new = pause(reason="  a bad\0 release ")
    again, is_new_again = pause(actor="ivan", reason="me too")

    assert (is_new, is_new_again, QueuePause.objects.count()) == (True, False, 1)
    assert (again.pk, again.reason, again.paused_by) == (row.pk, "a bad release", "olga")
    assert paused_queues()["default"].reason == "a bad release"
    line = AuditEntry.objects.get()
    assert (line.action, line.target_id, line.actor, line.reason) == ("queue.pause", "default", "olga", "a bad release")


def test_a_resume_is_audited_once_and_says_what_was(account):
    pause()

    assert resume_queue(queue="default", actor="ivan", reason="fixed").reason == "a bad release"
    assert resume_queue(queue="default", actor="ivan") is None

    assert paused_queues() == {}
    line = AuditEntry.objects.get(action="queue.resume")
    assert (line.before["reason"], line.reason, line.actor) == ("a bad release", "fixed", "ivan")


@pytest.mark.parametrize("fields", [{"queue": "nowhere"}, {"queue": ""}, {"reason": " \0 "}, {"reason": "x" * 501}])
def test_a_pause_of_nothing_or_without_a_reason_is_refused(account, fields):
    with pytest.raises((NoSuchQueue, InvalidRequest)):
        pause(**fields)

    assert (QueuePause.objects.count(), AuditEntry.objects.count()) == (0, 0)


def test_who_never_heard_of_the_pauses_does_not_go_on_without():
    def away():
        raise DatabaseError("away")

    with pytest.raises(DatabaseError):
        controls._Remembered(away).get(or_last=True)


def test_who_knew_of_them_goes_on_with_what_it_knew_while_the_database_is_away(monkeypatch):
    monkeypatch.setattr(controls, "FRESH_SECONDS", -1.0)
    answers = iter([{"default": "paused"}])

    def once():
        try:
            return next(answers)
        except StopIteration:
            raise DatabaseError("away") from None

    known = controls._Remembered(once)

    assert (known.get(), known.get(or_last=True)) == ({"default": "paused"},) * 2
    with pytest.raises(DatabaseError):
        known.get()


# -- taking and claiming ---------------------------------------------------------------------------------------------
def test_nothing_is_taken_from_a_paused_queue_and_all_of_it_after(account, desk, redis):
    runs = [working.submit(account) for _ in range(3)]
    pause()

    assert desk.take() == []
    assert left(redis) == (3, 0)

    resume_queue(queue="default", actor="olga")
    assert len(desk.handle(desk.take())) == 3
    assert [state(run) for run in runs] == ["running"] * 3


def test_the_other_queues_of_a_worker_are_taken_from(account, redis):
    with working.registered("test.other", queue="other"):
        desk = Desk(queues=("default", "other"), agents=frozenset({"probe.ret", "test.other"}))
        working.submit(account)
        other = working.submit(account, agent="test.other")
        pause()

        started = desk.handle(desk.take())

    assert [one.claimed.run.pk for one in started] == [other.pk]


def test_what_was_taken_before_the_pause_goes_back_and_no_delivery_is_counted(account, desk, redis):
    run = working.submit(account)
    entries = desk.take()
    pause()

    for _ in range(7):  # more often than an entry may be delivered
        assert desk.handle(entries) == []
        assert left(redis) == (1, 0)
        entries = desk.consumer.take(range(4))  # of a worker that has not heard of the pause yet

    resume_queue(queue="default", actor="olga")
    assert [entry.deliveries for entry in entries] == [1]
    assert len(desk.handle(entries)) == 1
    assert (state(run), Attempt.objects.count()) == ("running", 1)


def test_a_worker_that_took_from_it_knows_of_the_pause_at_its_next_take(account, desk, redis):
    working.submit(account)
    entries = desk.take()  # from here on it knows that nothing is paused
    QueuePause.objects.create(queue="default", reason="r", paused_by="another process")

    assert desk.handle(entries) == []

    assert desk.take() == []


def test_a_run_under_a_limit_is_neither_placed_nor_parked(account, redis):
    redis.set(keys.epoch("default"), 1)
    with working.registered("test.single", max_running=1):
        desk = Desk(agents=frozenset({"test.single"}))
        runs = [working.submit(account, agent="test.single") for _ in range(2)]
        entries = desk.take()
        pause()

        assert desk.handle(entries) == []

        assert redis.zcard(keys.limit_places("default", "agent:test.single")) == 0
        assert redis.zcard(keys.parked("default", "agent:test.single")) == 0
        assert left(redis) == (2, 0)
        resume_queue(queue="default", actor="olga")
        assert len(desk.handle(desk.take())) == 1
        assert sorted(state(run) for run in runs) == ["queued", "running"]


def test_a_run_whose_hold_lapsed_is_not_claimed_alone_either(account, redis):
    run = working.submit(account)
    Hold.objects.filter(run_id=run.pk).update(state=Hold.State.EXPIRED)
    pause()

    assert working.try_claim(run).won == []
    assert in_transaction(lambda: claims.start_attempt_rearmed(run.pk, run.fence, working.owner())) is None
    assert state(run) == "queued"


# -- the sweeper goes on ---------------------------------------------------------------------------------------------
def test_after_a_loss_of_redis_the_sweeper_adds_the_runs_and_they_stay_queued(account, desk, redis):
    run = working.submit(account)
    pause()
    redis.delete(*redis.keys(f"*{keys.ready('default', 'normal').split(':')[0].strip('{')}*"))

    Sweeper(working.config(), broker.client()).run_once()

    assert redis.xlen(keys.ready("default", "normal")) == 1
    assert desk.take() == []
    assert state(run) == "queued"


def test_the_queue_wait_goes_on_counting(account, redis):
    run = working.submit(account)
    pause()
    Run.objects.filter(pk=run.pk).update(waits_until=timezone.now() - dt.timedelta(seconds=1))

    Sweeper(working.config(), broker.client()).run_once()

    run.refresh_from_db()
    assert (run.state, run.error["type"]) == ("failed", "QueueTimeout")
    invariants.check(account)
