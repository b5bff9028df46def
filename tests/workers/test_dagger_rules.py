"""Rules of the protocol that are easily simplified away: each test fails without its rule (tests/mutant_table.py)."""

import pytest
import redis as redis_py
from django.db import DatabaseError, connection

from quotas.models import LedgerEntry
from runs import archive, broker, keys, ready, scripts
from runs.models import Attempt, EventArchive, Run
from runs.outcomes import HandedBack
from tests import builders, invariants, working
from tests.conftest import point_at
from tests.desk import Desk
from tests.probes import eventually
from tests.wire import Wire
from tests.workers.test_leases import Beating, age, idle
from workers import stream
from workers.finaliser import Ending, end_set
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)
LONG_AGO_MS = 10_000_000


def normal():
    return keys.ready("default", "normal")


def fails_on(table):
    """Let every statement about a table fail, as if the server went away."""

    def execute(run, sql, params, many, context):
        if table in sql:
            raise DatabaseError("the server went away")
        return run(sql, params, many, context)

    return connection.execute_wrapper(execute)


def execute(call):
    """Run one script call; returns its reply."""
    return scripts.execute(broker.client(), call)[0]


# -- 1.5, 7.3: what the beat writes is for rows it got ------------------------------------------------------------
def test_what_a_fenced_attempt_cost_is_not_stored_by_the_beat(account):
    worker = Beating()
    fenced, mine = worker.own(account, 2)
    for owned in (fenced, mine):
        owned.ctx.usage.add_cost(7)
        owned.ctx.progress(1, 2, "half")
    Run.objects.filter(pk=fenced.run_id).update(claim_token="x" * 32)

    worker.beat()

    stored = {row.run_id: (row.cost, row.progress) for row in Attempt.objects.all()}
    assert stored[fenced.run_id] == (0, {})
    assert stored[mine.run_id] == (7, {"done": 1, "total": 2, "message": "half"})


def test_a_beat_that_the_database_refused_leaves_the_entries_as_they_are(account, redis):
    worker = Beating()
    (owned,) = worker.own(account)
    age(redis, owned)

    with fails_on("runs_run"):
        worker.beat()

    assert idle(redis, owned)[0] >= LONG_AGO_MS
    worker.beat()
    assert idle(redis, owned)[0] < LONG_AGO_MS


# -- 1.8: an answer to COMMIT that was lost -----------------------------------------------------------------------
def test_an_ending_that_is_sent_again_finds_what_its_first_sending_did(account, redis):
    run = working.submit(account)
    (entry,) = working.consumer(working.config()).take([0])
    said = working.finish_of(*working.claim(run), cost=3)
    working.finish(said)  # committed, and nobody was told

    done = end_set(broker.client(), [Ending(entry, said)])

    assert ([one.run.pk for one in done.moved], done.lost) == ([run.pk], [])
    assert working.log_of(run)[-1] == "3-1"
    assert (redis.xlen(entry.stream), LedgerEntry.objects.count()) == (0, 1)
    invariants.check_money([account])


# -- 3.4: a log lives on until it is stored -----------------------------------------------------------------------
def test_a_log_that_could_not_be_stored_keeps_its_time(account, redis, settings):
    run = builders.make_run("succeeded", account=account, archived=False)
    with fails_on(EventArchive._meta.db_table), pytest.raises(DatabaseError):
        archive.close_logs(broker.client(), [(run.pk, run.fence)])

    assert redis.ttl(keys.log(run.pk)) > settings.EVENT_CLOSED_TTL_SECONDS
    assert archive.close_logs(broker.client(), [(run.pk, run.fence)]) == [run.pk]
    assert 0 < redis.ttl(keys.log(run.pk)) <= settings.EVENT_CLOSED_TTL_SECONDS


# -- 4.6: no client library repeats a write ------------------------------------------------------------------------
def test_a_write_without_an_answer_is_sent_once(own_redis, redis, settings, isolation):
    with Wire(own_redis) as wire:
        point_at(settings, redis_url=wire.url, prefix=isolation)
        wire.deaf_to = (b"XADD",)
        client = broker.impatient_client(2.0)

        with pytest.raises(redis_py.TimeoutError):
            client.xadd("writes", {"n": "1"})

        client.close()
        eventually(lambda: wire.connections() == 0)
    assert redis.xlen("writes") == 1


# -- 5.1: a group begins with what was there before it ------------------------------------------------------------
def test_groups_are_made_before_the_first_entry_by_the_sweeper_and_by_a_reader(account, redis):
    names = [keys.ready("default", priority) for priority in keys.PRIORITIES]
    for name in names:
        redis.xadd(name, {"run_id": "x", "fence": "1"})
    by_hand = names.pop()

    Sweeper(working.config(), broker.client(), only=["redis_loss"]).run_once()
    redis.xgroup_destroy(by_hand, keys.GROUP)

    assert [redis.xinfo_groups(name)[0]["last-delivered-id"] for name in names] == [b"0-0"] * len(names)
    assert len(working.consumer(working.config()).take(range(8))) == len(keys.PRIORITIES)


# -- 6.1: the look for stale entries goes on where it stopped -----------------------------------------------------
def test_a_stale_entry_behind_many_fresh_ones_is_found(redis):
    redis.xgroup_create(normal(), keys.GROUP, id="0", mkstream=True)
    pipe = redis.pipeline()
    for number in range(200):
        pipe.xadd(normal(), {"run_id": str(number), "fence": "1"})
    last = pipe.execute()[-1]
    redis.xreadgroup(keys.GROUP, "busy", {normal(): ">"}, count=200)
    redis.xclaim(normal(), keys.GROUP, "busy", 0, [last], idle=LONG_AGO_MS, justid=True)
    taker = working.consumer(working.config(lease=600.0))  # so that the others stay fresh

    taken = [entry.id for _ in range(6) for entry in taker.take([0])]

    assert taken == [last.decode()]


# -- 6.3: names of consumers, and their history -------------------------------------------------------------------
def test_two_starts_of_one_worker_are_two_consumers():
    first, second = working.config(name="same"), working.config(name="same")

    assert first.consumer != second.consumer
    assert first.consumer.startswith("same-")


def test_history_is_not_read_while_every_read_succeeds(account, redis):
    working.submit(account)
    taker = working.consumer(working.config(lease=600.0))  # nothing is stale for a long time
    (entry,) = taker.take([0])
    redis.xclaim(entry.stream, keys.GROUP, taker._name, 0, [entry.id], idle=20_000, justid=True)

    assert taker.take([1]) == []

    (found,) = redis.xpending_range(entry.stream, keys.GROUP, entry.id, entry.id, 1)
    assert (found["times_delivered"], found["time_since_delivered"] >= 20_000) == (1, True)


# -- 6.6: a log that remembers more than the row ------------------------------------------------------------------
def test_a_run_whose_log_is_ahead_of_its_row_starts_above_it(account, redis):
    run = working.submit(account)
    redis.xadd(keys.log(run.pk), {"e": b'{"kind":"run.started","at":"","data":{}}', "p": ""}, id="9-1")
    desk = Desk()
    assert desk.handle().started == []

    (started,) = Desk().handle().started

    assert started.claimed.run.pk == run.pk
    assert started.claimed.fence > 9
    assert working.log_of(run)[-1] == f"{started.claimed.fence}-1"


# -- 6.7: acknowledging and handing over --------------------------------------------------------------------------
def test_an_old_entry_that_is_acknowledged_leaves_the_index_to_the_new_one(account, redis):
    run = working.submit(account)
    (old,) = working.consumer(working.config()).take([0])
    run.fence = 3
    assert ready.dispatch_all(broker.client(), [run]) == 1
    named = ready.named_entry(redis, run)

    assert execute(lambda pipe: stream.ack(pipe, old, run.pk)) == 1

    assert ready.named_entry(redis, run) == named
    assert [entry.decode() for entry, _ in redis.xrange(normal())] == [named[1]]


def test_a_run_that_is_handed_over_is_named_by_the_index_at_every_moment(account, own_redis, redis):
    redis.config_set("notify-keyspace-events", "Kh")
    run = working.submit(account)
    (entry,) = working.consumer(working.config()).take([0])
    (claimed,) = working.claim(run)
    said = working.finish_of(claimed, HandedBack("drained"))
    with redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(f"__keyspace@0__:{keys.index('default')}", "end")
        eventually(lambda: redis.pubsub_numsub("end")[0][1] == 1)

        end_set(broker.client(), [Ending(entry, said)])

        redis.publish("end", "over")
        words = []

        def over():
            message = heard.get_message()
            if message is not None:
                words.append(message["data"])
            return b"over" in words

        eventually(over)
    assert words == [b"hset", b"over"]
    assert (redis.xlen(normal()), redis.xpending(normal(), keys.GROUP)["pending"]) == (1, 0)
