"""An acknowledgement does the same with XACKDEL and without, whatever its script is told (protocol 6.7, 6.8)."""

import pytest

from runs import broker, features, keys, ready, scripts
from runs.ids import new_run_id
from tests import builders, servers, working
from tests.conformance.conftest import knows_xackdel
from workers import stream as module
from workers.stream import Entry


def a_pending_entry(redis, stream, entry_id):
    redis.xreadgroup(keys.GROUP, "c", {stream: ">"})


def an_entry_nobody_has_read(redis, stream, entry_id):
    pass


def an_entry_that_is_only_acknowledged(redis, stream, entry_id):
    a_pending_entry(redis, stream, entry_id)
    redis.xack(stream, keys.GROUP, entry_id)


def an_entry_that_was_trimmed_while_it_was_pending(redis, stream, entry_id):
    a_pending_entry(redis, stream, entry_id)
    redis.xtrim(stream, maxlen=0, approximate=False)


def an_entry_that_was_deleted_before_it_was_read(redis, stream, entry_id):
    redis.xdel(stream, entry_id)


def an_entry_whose_group_is_gone(redis, stream, entry_id):
    a_pending_entry(redis, stream, entry_id)
    redis.xgroup_destroy(stream, keys.GROUP)


def an_entry_whose_stream_is_gone(redis, stream, entry_id):
    redis.delete(stream)


def an_entry_whose_stream_is_something_else(redis, stream, entry_id):
    redis.delete(stream)
    redis.set(stream, "text")


@pytest.mark.parametrize("told", [0, 1])
@pytest.mark.parametrize(
    ("what", "removed"),
    [
        (a_pending_entry, 1),
        (an_entry_nobody_has_read, 1),
        (an_entry_that_is_only_acknowledged, 1),
        (an_entry_that_was_trimmed_while_it_was_pending, 1),
        (an_entry_that_was_deleted_before_it_was_read, 0),
        (an_entry_whose_group_is_gone, 1),
        (an_entry_whose_stream_is_gone, 0),
        (an_entry_whose_stream_is_something_else, 0),
    ],
)
def test_what_is_acknowledged_is_gone_from_group_stream_and_index(redis, stream, add, told, what, removed):
    (entry_id,) = add()
    run_id, index = str(new_run_id()), keys.index("default")
    redis.hset(index, run_id, f"1|{stream}|{entry_id}")
    what(redis, stream, entry_id)

    args = [keys.GROUP, run_id, stream, entry_id, "", told]
    replies = scripts.execute(broker.client(), lambda pipe: module.ACK.call(pipe, [index, keys.slots("default")], args))

    assert replies == [removed]
    assert redis.hlen(index) == 0
    if redis.type(stream) == b"stream":
        assert redis.xlen(stream) == 0
        assert [group["pending"] for group in redis.xinfo_groups(stream)] in ([], [0])


def test_the_neighbours_of_an_acknowledged_entry_stay(redis, stream, add):
    ids = add(3)
    a_pending_entry(redis, stream, ids)

    for _ in range(2):  # the second time the server has been asked
        acknowledge(stream, ids[1])

    assert [entry_id.decode() for entry_id, _ in redis.xrange(stream)] == [ids[0], ids[2]]
    assert redis.xpending(stream, keys.GROUP)["pending"] == 2


def test_another_group_does_not_keep_an_acknowledged_entry(redis, stream, add):
    redis.xgroup_create(stream, "audit", id="0")
    ids = add(3)
    redis.xreadgroup("audit", "c", {stream: ">"}, count=2)
    a_pending_entry(redis, stream, ids)

    assert [acknowledge(stream, entry_id) for entry_id in ids] == [[1], [1], [1]]

    assert redis.xlen(stream) == 0


def acknowledge(stream, entry_id):
    entry = Entry("default", stream, entry_id, {}, 1)
    return scripts.execute(broker.client(), lambda pipe: module.ack(pipe, entry, None))


def test_one_command_is_used_where_the_server_has_it_and_nowhere_else(own_redis, redis, stream, add, has_xackdel):
    ids = add(2)
    a_pending_entry(redis, stream, ids)

    assert [acknowledge(stream, entry_id) for entry_id in ids] == [[1], [1]]

    calls = {name: facts["calls"] for name, facts in redis.info("commandstats").items()}
    used = [calls.get(f"cmdstat_{name}", 0) for name in ("xackdel", "xack", "xdel")]
    used[0] -= has_xackdel  # the fixture's own
    assert used == ([2, 0, 0] if has_xackdel else [0, 2, 2])
    assert (redis.xlen(stream), redis.xpending(stream, keys.GROUP)["pending"]) == (0, 0)


def test_where_the_command_is_forbidden_the_others_do_it(own_redis, redis, stream, add, has_xackdel):
    ids = add(2)
    a_pending_entry(redis, stream, ids)
    acknowledge(stream, ids[0])
    redis.execute_command("ACL", "SETUSER", "default", "-xackdel" if has_xackdel else "-command")

    assert acknowledge(stream, ids[1]) == [1]

    assert (redis.xlen(stream), redis.xpending(stream, keys.GROUP)["pending"]) == (0, 0)


@pytest.mark.django_db(transaction=True)
def test_entries_are_acknowledged_over_a_change_of_servers(own_redis, redis, account, kinds, other_kind):
    """What was learned of the old server is wrong for the new one until that has been asked."""
    taker = working.consumer(working.config())
    for kind in (kinds["redis"], other_kind, kinds["redis"]):
        if own_redis.kind != kind:
            servers.replace_redis(own_redis, kind)
            broker.reset()  # and the connections that broke
            taker = working.consumer(working.config())
        run = builders.make_run("queued", account=account)
        ready.dispatch_all(broker.client(), [run])
        (entry,) = taker.take([0])

        assert acknowledge(entry.stream, entry.id) == [1]
        assert redis.xlen(entry.stream) == 0
        assert features.has(broker.client(), features.XACKDEL) is knows_xackdel(redis)
