"""The sweeper's duties, one pass at a time (protocol 10)."""

import datetime as dt

import pytest
from django.utils import timezone

from runs import archive, broker, events, keys, lifecycle, ready
from runs.models import EventArchive, Run
from tests import builders, invariants, working
from workers.models import DeadLetter
from workers.sweeper import CLOSE_PAGE, Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sweeper():
    return Sweeper(working.config(), broker.client())


def queued(account, count=1, **fields):
    """Return queued runs that nobody has dispatched."""
    return [builders.make_run("queued", account=account, **fields) for _ in range(count)]


def entries(redis, priority="normal"):
    return [fields[b"run_id"].decode() for _, fields in redis.xrange(keys.ready("default", priority))]


def pks(runs):
    return sorted(str(run.pk) for run in runs)


def ended(account, **fields):
    """Return a run that ended ten seconds ago and whose log is open."""
    run = builders.make_run("succeeded", account=account, archived=False, **fields)
    Run.objects.filter(pk=run.pk).update(finished_at=timezone.now() - dt.timedelta(seconds=10))
    lines = [lifecycle.line_of(row) for row in run.transitions.order_by("fence")]
    events.append_all(broker.client(), [events.Append(run.pk, run.fence, lines, opening=True)])
    return run


def closed(run):
    return Run.objects.get(pk=run.pk).log_closed_at is not None


# -- one holder ------------------------------------------------------------------------------------------------------
def test_one_sweeper_works_at_a_time_and_keeps_its_lease(account, redis, sweeper):
    other = Sweeper(working.config(), broker.client())
    sweeper.run_once()
    queued(account)

    other.run_once()
    assert entries(redis) == []
    sweeper.run_once()
    assert len(entries(redis)) == 1
    assert 0 < redis.pttl(keys.sweeper()) <= 6000


def test_the_lease_of_a_dead_holder_passes_on_when_it_is_over(account, redis, sweeper):
    Sweeper(working.config(), broker.client()).run_once()
    queued(account)
    sweeper.run_once()
    assert entries(redis) == []

    redis.pexpire(keys.sweeper(), 1)
    while redis.exists(keys.sweeper()):
        pass
    sweeper.run_once()

    assert len(entries(redis)) == 1


def test_without_redis_the_duties_that_need_none_are_done(account, own_redis, sweeper):
    run = working.submit(account)
    working.claim(run)
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=30))
    own_redis.kill()

    sweeper.run_once()

    assert len(sweeper._takeover._remembered) == 1


def test_a_database_that_is_away_fails_no_pass(account, sweeper):
    from django.db import DatabaseError, connection

    def execute(run, sql, params, many, context):
        raise DatabaseError("the server went away")

    with connection.execute_wrapper(execute):
        sweeper.run_once()


# -- relay and loss --------------------------------------------------------------------------------------------------
def test_a_run_that_was_not_dispatched_is_relayed_once(account, redis, sweeper):
    runs = queued(account, 3)

    sweeper.run_once()
    sweeper.run_once()

    assert sorted(entries(redis)) == pks(runs)


def test_a_submit_while_redis_was_away_is_relayed(account, own_redis, redis, sweeper):
    own_redis.kill()
    run = working.submit(account)
    own_redis.start()

    sweeper.run_once()

    assert entries(redis) == [str(run.pk)]


def test_old_and_young_runs_are_relayed_and_what_is_not_queued_is_not(account, redis, sweeper):
    sweeper.run_once()  # the epoch is there: the relay alone brings what follows
    old = queued(account, queued_at=timezone.now() - dt.timedelta(hours=1), queue_wait_seconds=7200.0)
    young = queued(account)
    builders.make_run("running", account=account)
    builders.make_run("succeeded", account=account)

    sweeper.run_once()

    assert sorted(entries(redis)) == pks([*old, *young])


def test_a_run_in_the_hands_of_a_worker_is_not_relayed(account, redis, sweeper):
    working.submit(account)
    working.consumer(working.config()).take([0])

    sweeper.run_once()

    assert len(entries(redis)) == 1


def test_after_a_flush_everything_that_waits_is_dispatched_and_the_epoch_made(account, own_redis, redis, sweeper):
    runs = [working.submit(account) for _ in range(3)]
    sweeper.run_once()
    made = int(redis.get(keys.epoch("default")))
    redis.flushall()

    sweeper.run_once()

    assert sorted(entries(redis)) == pks(runs)
    assert int(redis.get(keys.epoch("default"))) >= made
    assert {group["name"] for group in redis.xinfo_groups(keys.ready("default", "low"))} == {b"workers"}
    assert len(working.consumer(working.config()).take(range(9))) == 3


def test_a_pass_over_a_whole_server_makes_no_new_epoch(redis, db, sweeper):
    sweeper.run_once()
    made = redis.get(keys.epoch("default"))

    sweeper.run_once()

    assert redis.get(keys.epoch("default")) == made


# -- close -----------------------------------------------------------------------------------------------------------
def test_the_log_of_a_run_that_ended_a_while_ago_is_closed(account, redis, sweeper):
    old = ended(account)
    fresh = builders.make_run("succeeded", account=account, archived=False)
    Run.objects.filter(pk=fresh.pk).update(finished_at=timezone.now())

    sweeper.run_once()

    assert (closed(old), closed(fresh)) == (True, False)
    assert EventArchive.objects.get().event_count == 3


def test_closing_is_bounded_a_pass_and_goes_on(account, sweeper):
    runs = [ended(account) for _ in range(CLOSE_PAGE + 3)]

    sweeper.run_once()
    assert sum(closed(run) for run in runs) == CLOSE_PAGE
    sweeper.run_once()
    assert sum(closed(run) for run in runs) == CLOSE_PAGE + 3


def test_the_entry_of_a_worker_that_died_after_its_commit_is_acknowledged(account, redis, sweeper):
    run = working.submit(account)
    working.consumer(working.config()).take([0])
    working.finish(working.finish_of(*working.claim(run)))  # and it dies: no event, no acknowledgement
    Run.objects.filter(pk=run.pk).update(finished_at=timezone.now() - dt.timedelta(seconds=10))

    sweeper.run_once()

    assert [stored.event["id"] for stored in archive.unpack(archive.find(run.pk))] == ["1-1", "2-1", "3-1"]
    assert entries(redis) == []
    invariants.check(account)


# -- dead entries ----------------------------------------------------------------------------------------------------
def test_an_entry_nobody_will_get_is_deleted_and_the_others_stay(account, redis, sweeper):
    dead, pending, waiting = (working.submit(account) for _ in range(3))
    taken = working.consumer(working.config()).take([0, 1])
    redis.xack(taken[0].stream, keys.GROUP, taken[0].id)
    redis.hdel(keys.index("default"), str(dead.pk))
    Run.objects.filter(pk=dead.pk).update(state="cancelled")

    sweeper.run_once()

    assert entries(redis) == [str(pending.pk), str(waiting.pk)]


def test_a_pending_id_whose_entry_was_trimmed_is_forgotten(account, redis, sweeper):
    working.submit(account)
    (taken,) = working.consumer(working.config()).take([0])
    redis.xtrim(taken.stream, maxlen=0, approximate=False)

    sweeper.run_once()

    pending = redis.xpending(taken.stream, keys.GROUP)["pending"]
    assert pending == 0
    assert len(entries(redis)) == 1  # relayed in the same pass


def test_the_index_forgets_ended_and_unknown_runs(account, redis, sweeper):
    over = builders.make_run("cancelled", account=account)
    gone = builders.new_run_id()
    (waiting,) = queued(account)
    ready.dispatch_all(broker.client(), [over, waiting])
    redis.hset(keys.index("default"), str(gone), "1|nowhere|1-1")

    sweeper.run_once()

    assert redis.hkeys(keys.index("default")) == [str(waiting.pk).encode()]
    assert entries(redis) == [str(waiting.pk)]


def test_nonsense_in_the_index_does_not_stop_the_duty(account, redis, sweeper):
    over = builders.make_run("cancelled", account=account)
    ready.dispatch_all(broker.client(), [over])
    redis.hset(keys.index("default"), "nonsense", "1|nowhere|1-1")
    redis.hset(keys.index("default"), b"\xff\xfe", "?")

    sweeper.run_once()

    assert redis.hkeys(keys.index("default")) == []


def test_a_large_stream_is_pruned_in_steps(account, redis, sweeper, monkeypatch):
    from workers import sweeper as module

    monkeypatch.setattr(module, "PAGE", 10)
    stream = keys.ready("default", "normal")
    redis.xgroup_create(stream, keys.GROUP, id="0", mkstream=True)
    for number in range(35):
        redis.xadd(stream, {"n": number})
    redis.xgroup_setid(stream, keys.GROUP, "$")

    left = []
    for _ in range(4):
        sweeper.run_once()
        left.append(redis.xlen(stream))

    assert left == [25, 15, 5, 0]
    assert DeadLetter.objects.count() == 0
