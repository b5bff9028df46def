"""What workers that are gone leave behind, and the lease of the one that sweeps (protocol 10)."""

import time

import pytest
from django.db import DatabaseError, connection

from quotas.database import later
from runs import broker, keys
from runs.models import Run
from tests import aged, builders, working
from tests.probes import eventually
from workers import departed, holder
from workers.departed import Departed
from workers.heartbeat import Heartbeat, alive_seconds
from workers.models import WorkerProcess
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


# -- consumers -------------------------------------------------------------------------------------------------------
def consumers(redis):
    """Return {(stream, consumer): (pending, idle)} of the default queue."""
    streams = [keys.ready("default", priority) for priority in keys.PRIORITIES]
    found = [(name, one) for name in streams for one in redis.xinfo_consumers(name, keys.GROUP)]
    return {(name, one["name"].decode()): (one["pending"], one["idle"]) for name, one in found}


def test_a_consumer_that_reads_nothing_for_ten_leases_is_deleted(account, redis):
    owner, other, idle = (working.config(name=name) for name in ("owner", "other", "idle"))
    for config in (owner, other):
        working.submit(account)
        working.consumer(config).take([0])
    (done,) = redis.xpending_range(keys.ready("default", "normal"), keys.GROUP, "-", "+", 1, other.consumer)
    redis.xack(keys.ready("default", "normal"), keys.GROUP, done["message_id"])
    working.consumer(idle).take([0])
    found = consumers(redis)

    assert Departed(broker.client(), queues=["default"], lease=600.0).consumers() == 0
    assert consumers(redis).keys() == found.keys()

    eventually(lambda: all(idle > 5 for _, idle in consumers(redis).values()))
    assert Departed(broker.client(), queues=["default"], lease=0.0001).consumers() == len(found) - 1 >= 1
    (left,) = consumers(redis).items()
    assert left[0] == (keys.ready("default", "normal"), owner.consumer)
    assert left[1][0] == 1


def test_a_deleted_consumer_that_is_alive_reads_on(account, redis):
    config = working.config()
    consumer = working.consumer(config)
    consumer.take([0])
    redis.xgroup_delconsumer(keys.ready("default", "normal"), keys.GROUP, config.consumer)
    run = working.submit(account)

    assert [entry.fields[b"run_id"].decode() for entry in consumer.take([0])] == [str(run.pk)]


def test_a_stream_without_a_group_or_of_another_kind_is_left_alone(redis, settings):
    settings.EXTRA_STREAMS = ["plain"]
    redis.set("plain", "text")

    assert Departed(broker.client(), queues=["default"], lease=0.001).consumers() == 0


# -- rows ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def often(settings, monkeypatch):
    """Heartbeats that count for 30 ms, and a duty that looks every time."""
    settings.HEARTBEAT_SECONDS, settings.LEASE_SECONDS = 0.01, 0.03
    monkeypatch.setattr(departed, "EVERY_SECONDS", 0.0)
    assert alive_seconds() == pytest.approx(0.03)


def look(duty, *, until):
    def looked():
        duty.rows()
        assert until()

    eventually(looked)


def test_a_row_that_never_signed_off_is_marked_at_the_second_look(often):
    silent = builders.make_worker(heartbeat_at=aged.ago(1))
    duty = Departed(broker.client(), queues=["default"], lease=1)

    assert duty.rows() == 0
    silent.refresh_from_db()
    assert silent.stopped_at is None

    look(duty, until=lambda: WorkerProcess.objects.get().stopped_at is not None)


def test_a_row_whose_beats_the_database_wrote_is_marked_too(often):
    """SQLite writes its own times with fewer digits than Django's: the same moment is another text."""
    builders.make_worker()
    WorkerProcess.objects.update(heartbeat_at=later(-3600))

    duty = Departed(broker.client(), queues=["default"], lease=1)
    look(duty, until=lambda: WorkerProcess.objects.get().stopped_at is not None)


def test_a_beat_between_two_looks_and_a_failed_look_begin_anew(often):
    silent = builders.make_worker(heartbeat_at=aged.ago(1))
    duty = Departed(broker.client(), queues=["default"], lease=1)
    duty.rows()
    first = time.monotonic()
    eventually(lambda: time.monotonic() - first > 0.05)

    WorkerProcess.objects.filter(pk=silent.pk).update(heartbeat_at=aged.ago(0.9))
    assert duty.rows() == 0
    eventually(lambda: time.monotonic() - first > 0.1)

    def fails(act, sql, params, many, context):
        raise DatabaseError("away")

    with connection.execute_wrapper(fails), pytest.raises(DatabaseError):
        duty.rows()
    assert duty.rows() == 0
    assert WorkerProcess.objects.get().stopped_at is None


def test_rows_of_workers_that_stopped_long_ago_go(account):
    old = builders.make_worker(stopped_at=aged.ago(31))
    young = builders.make_worker(stopped_at=aged.ago(29))
    owner = builders.make_worker(stopped_at=aged.ago(31))
    builders.make_run("running", account=account, worker=owner.name)

    assert Departed(broker.client(), queues=["default"], lease=1).rows() == 1

    assert set(WorkerProcess.objects.values_list("pk", flat=True)) == {young.pk, owner.pk}
    assert old.pk not in {young.pk, owner.pk}


def test_a_worker_that_was_taken_for_dead_is_back_with_its_next_beat_until_it_signs_off(db, redis):
    beat = Heartbeat(working.config(heartbeat=0.0), broker.client())
    beat.register(port=0)
    WorkerProcess.objects.update(stopped_at=aged.ago(1))

    beat.beat_if_due(running=0)
    assert WorkerProcess.objects.get().stopped_at is None

    beat.sign_off()
    beat.beat_if_due(running=0)
    assert WorkerProcess.objects.get().stopped_at is not None


# -- the holder's lease ----------------------------------------------------------------------------------------------
def test_one_holds_and_is_named_to_the_others(redis):
    client = broker.client()

    assert holder.hold(client, "one") == holder.Held(True, "one", holder.HOLD_MS)
    other = holder.hold(client, "two")
    assert (other.mine, other.holder) == (False, "one")
    assert 0 < other.left_ms <= holder.HOLD_MS
    holder.let_go(client, "two")
    assert holder.hold(client, "one").mine
    holder.let_go(client, "one")
    assert holder.hold(client, "two").mine


@pytest.mark.parametrize("far", [None, 3600])
def test_a_lease_without_an_end_gets_one(redis, far):
    redis.set(keys.sweeper(), "somebody who died", ex=far)

    assert not holder.hold(broker.client(), "one").mine

    assert 0 < redis.pttl(keys.sweeper()) <= holder.HOLD_MS


def test_a_holders_own_lease_without_an_end_is_renewed_with_one(redis):
    holder.hold(broker.client(), "one")
    redis.persist(keys.sweeper())

    assert holder.hold(broker.client(), "one").mine

    assert 0 < redis.pttl(keys.sweeper()) <= holder.HOLD_MS


# -- without Redis ---------------------------------------------------------------------------------------------------
def test_without_redis_every_sweeper_does_what_the_database_needs(account, own_redis):
    due = working.submit(account, delay=60)
    Run.objects.filter(pk=due.pk).update(not_before=aged.ago(1))
    sweepers = [Sweeper(working.config(name=name), broker.client()) for name in ("one", "two")]
    own_redis.kill()

    first, second = (sweeper.run_once() for sweeper in sweepers)

    assert (first.held, second.held) == (None, None)
    assert first.done == second.done == ["promote", "sessions", "queue_wait", "limits", "holds", "takeover"]
    row = Run.objects.get(pk=due.pk)
    assert (row.state, row.fence, row.transitions.count()) == ("queued", 2, 2)


def test_sweepers_spread_their_passes(db):
    sweeper = Sweeper(working.config(sweep=10.0), broker.client())

    pauses = {sweeper._pause() for _ in range(50)}

    assert len(pauses) > 40
    assert min(pauses) >= 8
    assert max(pauses) <= 12


def test_a_sweeper_that_ends_gives_its_turn_away(redis, db):
    sweeper = Sweeper(working.config(sweep=0.01), broker.client())
    sweeper.start()
    eventually(lambda: redis.exists(keys.sweeper()))

    sweeper.stop()
    sweeper.join(30)

    assert not redis.exists(keys.sweeper())


def test_a_pass_says_what_failed(db, redis):
    sweeper = Sweeper(working.config(), broker.client(), ["consumers", "retention"])
    sweeper._all["consumers"] = lambda: [][0]

    done = sweeper.run_once()

    assert done.done == ["retention"]
    assert done.failed == {"consumers": "IndexError: list index out of range"}
