"""Replies that differ between servers: stale entries, entries that are gone, groups and streams that are not there.

Redis 6.2 answers XAUTOCLAIM in two parts and gives nothing for an entry that was trimmed while it was pending; from
7.0 there is a third part with those ids, which the server forgets by itself.
"""

import pytest

from runs import broker, keys, ready, scripts
from tests import builders, working
from workers import stream as module
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def taker():
    return working.consumer(working.config())


def ids(entries):
    return [entry.id for entry in entries]


def pending(redis, stream):
    return redis.xpending(stream, keys.GROUP)["pending"]


def test_a_stale_entry_is_found_behind_many_that_are_gone(redis, stream, add, abandon, taker):
    gone = add(60)
    (kept,) = add()
    abandon(61)
    redis.xdel(stream, *gone)

    taken = []
    for _ in range(20):
        taken += taker.take([0])

    assert ids(taken) == [kept]
    assert taken[0].deliveries == 2
    assert set(taken[0].fields) == {b"run_id", b"fence"}


def test_what_waits_is_taken_beside_stale_entries_that_are_gone(redis, stream, add, abandon, taker):
    gone = add(5)
    abandon(5)
    redis.xdel(stream, *gone)
    fresh = add(2)

    assert ids(taker.take([0, 1, 2])) == fresh


def test_the_cursor_walks_over_all_that_is_pending(redis, stream, add, abandon, taker):
    wanted = add(30)
    abandon(30)

    taken = []
    for _ in range(12):
        taken += ids(taker.take([0, 1, 2, 3]))

    assert taken == wanted


def test_pending_ids_whose_entries_are_gone_are_forgotten(redis, stream, add, abandon, taker):
    add(20)
    abandon(20)
    redis.xtrim(stream, maxlen=0, approximate=False)
    taker.take([0, 1])

    Sweeper(working.config(), broker.client()).run_once()

    assert pending(redis, stream) == 0


def test_ones_own_history_leaves_out_what_is_gone(redis, stream, add, taker):
    """XREADGROUP of one's history answers with nothing in place of an entry's fields."""
    gone, kept = add(2)
    taker.take([0, 1])
    redis.xdel(stream, gone)
    taker._unsure = True

    assert ids(taker.take([0, 1])) == [kept]


def test_an_extra_stream_gives_stale_and_new_entries_and_not_those_that_are_gone(redis, isolation):
    name = f"{isolation}:extra"
    redis.xgroup_create(name, keys.GROUP, id="0", mkstream=True)
    entries = [redis.xadd(name, {"n": str(number)}).decode() for number in range(3)]
    redis.xreadgroup(keys.GROUP, "gone", {name: ">"})
    redis.xclaim(name, keys.GROUP, "gone", 0, entries, idle=10_000_000, justid=True)
    redis.xdel(name, entries[0], entries[2])
    fresh = redis.xadd(name, {"n": "new"}).decode()
    taker = working.consumer(working.config(extra_streams=(name,)))

    assert sorted(ids(taker.take(range(5)))) == [entries[1], fresh]


def test_a_group_that_was_destroyed_is_made_again_and_gives_everything_again(redis, stream, add, taker):
    wanted = add(3)
    assert ids(taker.take([0, 1])) == wanted[:2]
    redis.xgroup_destroy(stream, keys.GROUP)

    assert ids(taker.take([0, 1, 2])) == wanted


def test_a_stream_of_the_wrong_type_is_an_error_and_no_silence(redis, taker):
    redis.set(keys.ready("default", "high"), "text")

    with pytest.raises(Exception, match="WRONGTYPE"):
        taker.take([0])


def test_a_renewal_by_id_keeps_the_count_of_deliveries(redis, stream, add, abandon, taker):
    (entry,) = add()
    abandon(1)

    for _ in range(3):
        redis.xclaim(stream, keys.GROUP, "gone", 0, [entry], justid=True)

    (found,) = redis.xpending_range(stream, keys.GROUP, min="-", max="+", count=5)
    assert found["times_delivered"] == 1
    assert found["time_since_delivered"] < 60_000
    assert taker.take([0]) == []


def test_depths_of_streams_that_are_not_there_that_have_no_group_and_that_have(redis, stream, add, abandon):
    add(3)
    abandon(1)
    redis.xadd(keys.ready("default", "high"), {"run_id": "x"})

    found = ready.depths(redis, "default")

    lengths = {name: (facts["length"], facts["pending"]) for name, facts in found.items()}
    assert lengths == {"critical": (0, 0), "high": (1, 0), "normal": (3, 1), "low": (0, 0)}


@pytest.mark.parametrize("lost", ["scripts", "everything"])
def test_a_round_of_dispatch_take_and_ack_survives_the_loss_of(own_redis, redis, account, lost):
    client, name = broker.client(), keys.ready("default", "normal")
    runs = [builders.make_run("queued", account=account) for _ in range(3)]
    taker = working.consumer(working.config())

    def lose():
        redis.script_flush() if lost == "scripts" else redis.flushall()
        ready.dispatch_all(client, runs)

    ready.dispatch_all(client, runs)
    lose()
    entries = taker.take([0, 1])
    lose()
    scripts.execute(client, scripts.each(lambda pipe, entry: module.ack(pipe, entry, None), entries))
    if lost == "scripts":
        assert redis.xlen(name) == 1
    ready.dispatch_all(client, runs)

    assert (redis.xlen(name), len(taker.take(range(5)))) == (3, 3)
