"""What becomes of an entry: one outcome each (protocol 6.4, 6.5, 6.6)."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.models import Account, Hold, LedgerEntry
from runs import broker, keys, ready
from runs.ids import new_run_id
from runs.models import Attempt, Run
from runs.services import cancel_run
from tests import invariants, working
from workers import delivery
from workers.delivery import Deliveries
from workers.finaliser import Ending, end_set
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)


class Desk:
    """A worker's fetching side, step by step."""

    def __init__(self, **fields):
        self.config = working.config(**fields)
        self.deliveries = Deliveries(self.config, broker.client())
        self.consumer = working.consumer(self.config)

    def take(self, places=(0, 1, 2, 3)):
        return self.consumer.take(places)

    def handle(self, entries=None):
        """Handle what a take brings; returns (runs that start, entries that do not)."""
        handled = self.deliveries.handle(self.take() if entries is None else entries)
        self.started = handled.started
        return [one.claimed.run.pk for one in handled.started], handled.free


@pytest.fixture
def desk():
    return Desk()


def left(redis, priority="normal"):
    """Return (entries in the stream, pending entries, names in the index)."""
    name = keys.ready("default", priority)
    groups = redis.xinfo_groups(name)
    return redis.xlen(name), groups[0]["pending"], redis.hlen(keys.index("default"))


def add(redis, **fields):
    return redis.xadd(keys.ready("default", "normal"), fields)


def state(run):
    return Run.objects.get(pk=run.pk).state


def test_a_queued_run_starts_and_its_start_is_in_the_log(account, desk, redis):
    run = working.submit(account)

    started, free = desk.handle()

    assert (started, free) == ([run.pk], [])
    assert state(run) == "running"
    assert working.log_of(run) == ["1-1", "2-1"]
    assert left(redis) == (1, 1, 1)


def test_a_batch_starts_together_in_the_order_of_priority(account, desk):
    low, high, normal = (working.submit(account, priority=name) for name in ("low", "high", "normal"))

    started, _ = desk.handle()

    assert started == [high.pk, normal.pk, low.pk]
    assert len({one.claimed.token for one in desk.started}) == 1


@pytest.mark.parametrize(
    "fields", [{"x": "y"}, {"run_id": "no uuid", "fence": "1"}, {"run_id": b"\xff\xfe", "fence": "1"}]
)
def test_an_entry_that_cannot_be_read_is_a_dead_letter_without_a_run(account, desk, redis, fields):
    entry_id = add(redis, **fields)
    good = working.submit(account)

    started, _ = desk.handle()

    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.run_id, letter.entry_id) == ("undecodable", None, entry_id.decode())
    assert next(iter(fields)) in letter.payload
    assert started == [good.pk]
    assert left(redis) == (1, 1, 1)


def test_an_entry_of_an_unknown_run_is_a_dead_letter(db, desk, redis):
    ghost = new_run_id()
    add(redis, run_id=str(ghost), fence="1", v="1", traceparent="")

    desk.handle()

    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.run_id) == ("unknown_run", None)
    assert str(ghost) in letter.message
    assert left(redis) == (0, 0, 0)


def test_burying_the_same_entry_again_makes_no_second_letter(db, desk, redis):
    add(redis, x="y")
    entries = desk.take()
    desk.handle(entries)

    desk.handle(entries)

    assert DeadLetter.objects.count() == 1


def test_the_entry_of_an_ended_run_closes_its_log_and_goes(account, desk, redis):
    run = working.submit(account)
    cancel_run(run_id=run.pk, actor="tester")

    assert desk.handle()[0] == []

    assert Run.objects.get(pk=run.pk).log_closed_at is not None
    assert left(redis) == (0, 0, 0)
    invariants.check(account)


def test_an_entry_of_an_older_fence_goes_and_the_newer_stays(account, desk, redis):
    run = working.submit(account)
    Run.objects.filter(pk=run.pk).update(fence=3)
    run.refresh_from_db()
    ready.dispatch_all(broker.client(), [run])
    stale = desk.take(places=[0])

    assert desk.handle(stale)[0] == []
    assert left(redis)[:2] == (1, 0)
    assert desk.handle()[0] == [run.pk]


def test_two_entries_of_one_run_in_a_batch_start_it_once_whichever_comes_first(account, desk, redis):
    run = working.submit(account)
    Run.objects.filter(pk=run.pk).update(fence=3)
    run.refresh_from_db()
    ready.dispatch_all(broker.client(), [run])
    add(redis, run_id=str(run.pk), fence="1", v="1", traceparent="")

    started, free = desk.handle()

    assert (started, len(free)) == ([run.pk], 2)
    end(desk)
    desk.handle()
    assert left(redis) == (0, 0, 0)


def end(desk):
    end_set(broker.client(), [Ending(one.entry, working.finish_of(one.claimed)) for one in desk.started])


def test_the_entry_the_index_names_is_left_to_the_runs_owner(account, desk, redis):
    working.submit(account)
    entries = desk.take()
    assert len(desk.handle(entries)[0]) == 1

    assert Desk().handle(entries)[0] == []
    assert left(redis) == (1, 1, 1)


def test_another_entry_of_a_running_run_goes(account, desk, redis):
    run = working.submit(account)
    desk.handle()
    owners = ready.named_entry(redis, run)
    add(redis, run_id=str(run.pk), fence="1", v="1", traceparent="")

    desk.handle()

    assert left(redis) == (1, 1, 1)
    assert ready.named_entry(redis, run) == owners


# -- unknown agents and poison ---------------------------------------------------------------------------------------
def test_a_run_of_an_agent_this_worker_does_not_know_goes_back_for_others(account, redis, monkeypatch):
    monkeypatch.setattr(delivery, "PUT_BACK_SECONDS", 0.0)
    run = working.submit(account, agent="probe.sleep")
    ignorant = Desk()
    assert ignorant.handle()[0] == []
    assert left(redis) == (1, 1, 1)

    ignorant.deliveries.put_back_due()

    assert left(redis) == (1, 0, 1)
    assert Desk(agents=frozenset({"probe.sleep"})).handle()[0] == [run.pk]


def test_an_entry_is_not_put_back_before_its_time(account, desk, redis):
    working.submit(account, agent="probe.sleep")
    desk.handle()

    desk.deliveries.put_back_due()

    assert left(redis) == (1, 1, 1)


def test_putting_back_does_not_free_a_slot_that_another_run_has_by_now(account, redis, monkeypatch):
    monkeypatch.setattr(delivery, "PUT_BACK_SECONDS", 0.0)
    desk = Desk(global_slots=1)
    redis.set(keys.epoch("default"), 1)
    working.submit(account, agent="probe.sleep")
    _, free = desk.handle()
    desk.consumer.free_slots(free)
    working.submit(account, priority="high")
    assert len(desk.handle()[0]) == 1

    desk.deliveries.put_back_due()

    assert redis.zcard(keys.slots("default")) == 1


def test_a_run_whose_agent_nobody_knew_in_time_fails(account, desk, redis):
    run = working.submit(account, agent="probe.sleep")
    Run.objects.filter(pk=run.pk).update(waits_until=timezone.now() - dt.timedelta(seconds=5))

    desk.handle()

    run.refresh_from_db()
    letter = DeadLetter.objects.get()
    assert (run.state, run.error_class) == ("failed", "unknown_agent")
    assert (letter.reason, letter.run_id) == ("unknown_agent", run.pk)
    assert Hold.objects.get(run_id=run.pk).state == "released"
    assert LedgerEntry.objects.count() == 0
    assert left(redis) == (0, 0, 0)
    invariants.check(account)


def test_an_entry_delivered_again_and_again_without_a_claim_is_poison(account, desk, redis):
    run = working.submit(account)
    # A row that is there already makes every claim fail.
    Attempt.objects.create(run=run, fence=2, number=1, worker="w0", started_at=run.queued_at)
    entry = desk.take()[0]
    for deliveries in (1, 5):
        desk.handle([_again(entry, deliveries)])
        assert state(run) == "queued"

    desk.handle([_again(entry, 6)])

    run.refresh_from_db()
    assert (run.state, run.error_class) == ("failed", "poison")
    assert DeadLetter.objects.get().reason == "poison"
    assert left(redis) == (0, 0, 0)


def _again(entry, deliveries):
    return type(entry)(entry.queue, entry.stream, entry.id, entry.fields, deliveries, entry.place)


# -- money -----------------------------------------------------------------------------------------------------------
def lapsed(account, limit):
    run = working.submit(account)
    Hold.objects.filter(run_id=run.pk).update(expires_at=timezone.now() - dt.timedelta(seconds=5))
    Account.objects.filter(pk=account.pk).update(limit=limit)
    filler = working.submit(account)
    cancel_run(run_id=filler.pk, actor="tester")
    return run


def test_a_run_whose_hold_lapsed_starts_when_the_account_has_room(account, desk):
    run = lapsed(account, limit=10_000)

    assert desk.handle()[0] == [run.pk]
    assert Hold.objects.get(run_id=run.pk).state == "active"


def test_a_run_whose_hold_lapsed_fails_and_leaves_nothing_in_redis_when_there_is_none(account, desk, redis):
    run = lapsed(account, limit=1000)
    Account.objects.filter(pk=account.pk).update(limit=0)

    assert desk.handle()[0] == []

    assert state(run) == "failed"
    assert DeadLetter.objects.get().error_class == "quota_exceeded"
    assert left(redis) == (0, 0, 0)
    invariants.check(account)


# -- the start must be announced in time -----------------------------------------------------------------------------
def test_a_start_fills_in_a_log_that_lost_its_beginning(account, desk, redis):
    run = working.submit(account)
    redis.delete(keys.log(run.pk))

    assert desk.handle()[0] == [run.pk]
    assert working.log_of(run) == ["1-1", "2-1"]


def test_a_claim_that_took_half_a_lease_is_handed_back(account, redis):
    run = working.submit(account)
    slow = Desk(lease=1e-6)

    assert slow.handle()[0] == []

    run.refresh_from_db()
    assert (run.state, run.fence, run.attempt) == ("queued", 3, 1)
    assert working.log_of(run) == ["1-1", "2-1", "3-1"]
    assert left(redis) == (1, 0, 1)
    assert Desk().handle()[0] == [run.pk]
    assert Run.objects.get(pk=run.pk).attempt == 1


def test_a_start_that_cannot_be_announced_is_handed_back(account, own_redis, desk):
    run = working.submit(account)
    entries = desk.take()
    own_redis.kill()

    assert desk.handle(entries)[0] == []
    assert state(run) == "queued"


def test_a_log_of_a_higher_fence_does_not_let_a_run_start(account, desk, redis):
    run, other = working.submit(account), working.submit(account)
    redis.xadd(keys.log(run.pk), {"e": b"{}", "p": ""}, id="9-1")

    started, _ = desk.handle()

    assert started == [other.pk]
    assert state(run) == "queued"
