"""One beat of the lease: what is renewed, stored, passed on and found to be lost (protocol 7)."""

import datetime as dt

import pytest
from django.db import DatabaseError, connection
from django.utils import timezone

from quotas.prices import set_price
from runs import broker, keys
from runs.limits import Limit
from runs.models import Attempt, Run
from runs.services import cancel_run
from tests import working
from tests.racing import held_open
from workers.executor import Stop
from workers.heartbeat import Heartbeat
from workers.leases import LeaseKeeper, Listeners
from workers.owned import OwnedRuns

pytestmark = pytest.mark.django_db(transaction=True)
LEASE = 15.0


class Beating:
    """A worker that owns runs and beats when it is told to."""

    def __init__(self, **fields):
        self.config = working.config(lease=LEASE, **fields)
        self.owned = OwnedRuns()
        self.stopped, self.lost = [], []
        listeners = Listeners(
            stop=lambda owned, reason: self.stopped.append((owned.run_id, reason)),
            drain=lambda: None,
            lost=lambda owned: self.lost.append(owned.run_id),
        )
        client = broker.client()
        self.keeper = LeaseKeeper(self.config, self.owned, client, listeners, Heartbeat(self.config, client))
        self.consumer = working.consumer(self.config)

    def own(self, account, count=1):
        """Submit, take and claim runs; returns them as owned."""
        runs = [working.submit(account) for _ in range(count)]
        entries = self.consumer.take(range(count))
        made = [working.owned_run(c, e) for c, e in zip(working.claim(*runs), entries, strict=True)]
        for owned in made:
            self.owned.add(owned)
            expire(owned)
        return made

    def beat(self):
        return self.keeper.beat_once()


def expire(owned):
    """Let the lease be almost over."""
    Run.objects.filter(pk=owned.run_id).update(lease_expires_at=timezone.now() + dt.timedelta(seconds=1))


def left(owned):
    return (Run.objects.get(pk=owned.run_id).lease_expires_at - timezone.now()).total_seconds()


@pytest.fixture
def worker(db):
    return Beating()


def test_a_beat_renews_every_run_from_the_databases_now(account, worker):
    made = worker.own(account, 3)

    worker.beat()

    assert all(LEASE - 3 < left(owned) <= LEASE for owned in made)
    assert all(owned.renewed_at > 0 for owned in made)
    assert (worker.stopped, worker.lost) == ([], [])


def test_a_beat_without_runs_is_a_beat(worker):
    before = worker.keeper.last_beat
    worker.beat()
    assert worker.keeper.last_beat > before


def test_a_beat_stores_absolute_totals_and_progress(account, worker):
    set_price(model="m", prices={"input": 1_000_000}, actor="tester")
    first, second = worker.own(account, 2)
    first.ctx.usage.add("m", input=3)
    first.ctx.progress(1, 4, "ä")
    worker.beat()
    first.ctx.usage.add("m", input=2)
    first.ctx.usage.add_cost(10)

    worker.beat()
    worker.beat()

    row = Attempt.objects.get(run_id=first.run_id)
    assert (row.cost, row.usage, row.progress) == (15, {"m": {"input": 5}}, {"done": 1, "total": 4, "message": "ä"})
    assert Attempt.objects.get(run_id=second.run_id).usage == {}
    assert Run.objects.get(pk=first.run_id).cost == 0


def test_what_one_run_reports_costs_no_other_its_lease(account, worker):
    odd, healthy = worker.own(account, 2)
    odd.ctx.progress(2**80, 1, "a\0b\ud83d" + "x" * 5000)
    odd.ctx.usage.add_cost(2**53)

    worker.beat()

    assert left(healthy) > LEASE - 3
    assert left(odd) > LEASE - 3


def test_a_beat_passes_on_what_is_to_be_cancelled(account, worker):
    wanted, other = worker.own(account, 2)
    cancel_run(run_id=wanted.run_id, actor="tester")

    worker.beat()

    assert worker.stopped == [(wanted.run_id, Stop.CANCEL)]
    assert left(wanted) > LEASE - 3
    assert left(other) > LEASE - 3


@pytest.mark.parametrize("limit", Limit)
def test_a_beat_passes_on_which_limit_in_time_has_passed(account, worker, limit):
    late, other = worker.own(account, 2)
    Run.objects.filter(pk=late.run_id).update(stop_requested=limit, stop_requested_at=timezone.now())

    worker.beat()

    assert worker.stopped == [(late.run_id, Stop(limit.value))]
    assert left(late) > LEASE - 3
    assert left(other) > LEASE - 3


@pytest.mark.parametrize(
    "change",
    [{"fence": 9}, {"claim_token": "x" * 32}, {"claim_token": None, "state": "interrupted"}],
)
def test_a_run_that_is_somebody_elses_by_now_is_lost_and_not_renewed(account, worker, change):
    gone, mine = worker.own(account, 2)
    Run.objects.filter(pk=gone.run_id).update(**change)

    worker.beat()

    assert worker.lost == [gone.run_id]
    assert left(gone) < 2
    assert left(mine) > LEASE - 3
    assert gone.renewed_at == 0


def test_a_row_that_is_gone_is_lost(account, worker):
    gone, _ = worker.own(account, 2)
    Run.objects.filter(pk=gone.run_id).delete()

    worker.beat()

    assert worker.lost == [gone.run_id]


def test_a_run_that_this_worker_has_just_ended_is_not_lost(account, worker):
    owned, other = worker.own(account, 2)
    for one in (owned, other):
        Run.objects.filter(pk=one.run_id).update(fence=3, claim_token=None)
    owned.ending = True

    worker.beat()

    assert worker.lost == [other.run_id]


@pytest.mark.row_locks
def test_a_row_that_is_being_decided_on_is_passed_over_and_not_lost(account, worker):
    decided, other = worker.own(account, 2)

    with held_open(lambda: list(Run.objects.select_for_update().filter(pk=decided.run_id))):
        worker.beat()

    assert worker.lost == []
    assert left(decided) < 2
    assert left(other) > LEASE - 3
    worker.beat()
    assert left(decided) > LEASE - 3


def test_a_beat_without_the_database_renews_and_loses_nothing(account, worker):
    (owned,) = worker.own(account)

    def execute(run, sql, params, many, context):
        if "runs_run" in sql:
            raise DatabaseError("the server went away")
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        assert not worker.beat()  # to be tried again soon

    assert (worker.lost, owned.renewed_at) == ([], 0)
    assert worker.beat()
    assert left(owned) > LEASE - 3


# -- Redis follows the row -------------------------------------------------------------------------------------------
def idle(redis, owned):
    found = redis.xpending_range(owned.entry.stream, keys.GROUP, owned.entry.id, owned.entry.id, 1)
    return (
        (found[0]["time_since_delivered"], found[0]["times_delivered"], found[0]["consumer"].decode())
        if found
        else None
    )


def age(redis, owned, consumer="gone"):
    redis.xclaim(owned.entry.stream, keys.GROUP, consumer, 0, [owned.entry.id], idle=10_000_000, justid=True)


def test_the_entries_of_renewed_rows_stay_young_without_a_delivery_counted(account, worker, redis):
    renewed, lost = worker.own(account, 2)
    Run.objects.filter(pk=lost.run_id).update(fence=9)
    for owned in (renewed, lost):
        age(redis, owned)

    worker.beat()

    since, deliveries, consumer = idle(redis, renewed)
    assert (since < 10_000, deliveries, consumer) == (True, 1, worker.config.consumer)
    assert idle(redis, lost)[0] >= 10_000_000


def test_an_acknowledged_entry_does_not_come_back(account, worker, redis):
    (owned,) = worker.own(account)
    redis.xack(owned.entry.stream, keys.GROUP, owned.entry.id)

    worker.beat()

    assert idle(redis, owned) is None


def test_a_beat_keeps_slots_alive_and_puts_lost_ones_back(account, redis, db):
    redis.set(keys.epoch("default"), 1)
    worker = Beating(global_slots=2)
    first, second = worker.own(account, 2)
    redis.zrem(keys.slots("default"), first.entry.slot)
    redis.zadd(keys.slots("default"), {second.entry.slot: 1})

    worker.beat()

    seconds, micros = redis.time()
    now = seconds * 1000 + micros // 1000
    scores = dict(redis.zrange(keys.slots("default"), 0, -1, withscores=True))
    assert len(scores) == 2
    assert all(now + 10_000 < score <= now + LEASE * 1000 + 1 for score in scores.values())


def test_a_beat_without_redis_renews_the_rows(account, own_redis, db):
    worker = Beating()
    (owned,) = worker.own(account)
    own_redis.kill()

    worker.beat()

    assert left(owned) > LEASE - 3
