"""Dispatch: a queued run is in its ready stream once, and always again when the entry is gone (protocol 4.6)."""

import pytest

from runs import broker, keys, ready
from runs.ready import Ticket, Undecodable
from tests import builders, working

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(account):
    return builders.make_run("queued", account=account, traceparent="00-aa-bb-01")


@pytest.fixture
def stream(run):
    return keys.ready("default", "normal")


@pytest.fixture
def group(redis, stream):
    redis.xgroup_create(stream, keys.GROUP, id="0", mkstream=True)


def dispatch(*runs):
    return ready.dispatch_all(broker.client(), runs)


def entries(redis, stream):
    return [fields for _, fields in redis.xrange(stream)]


def read(redis, stream, count=10):
    reply = redis.xreadgroup(keys.GROUP, "reader", {stream: ">"}, count=count)
    return reply[0][1] if reply else []


def test_an_entry_carries_ids_and_no_payload(run, redis, stream):
    assert dispatch(run) == 1

    (fields,) = entries(redis, stream)
    assert fields == {b"run_id": str(run.pk).encode(), b"fence": b"1", b"v": b"1", b"traceparent": b"00-aa-bb-01"}
    assert ready.parse(fields) == Ticket(run.pk, 1, 1, "00-aa-bb-01")


def test_a_dispatch_names_its_entry_and_wakes_one_worker(run, redis, stream):
    dispatch(run)

    assert ready.named_entry(redis, run) == (stream, redis.xrange(stream)[0][0].decode())
    assert redis.llen(keys.wake("default")) == 1


def test_the_wakes_are_bounded(account, redis):
    dispatch(*[builders.make_run("queued", account=account) for _ in range(80)])

    assert redis.llen(keys.wake("default")) == 64


@pytest.mark.parametrize("delivered", [False, True])
def test_repeating_a_dispatch_changes_nothing(run, redis, stream, group, delivered):
    dispatch(run)
    if delivered:
        read(redis, stream)

    assert dispatch(run, run) == 0
    assert redis.xlen(stream) == 1
    assert redis.llen(keys.wake("default")) == 1


def test_a_dispatch_without_a_group_is_repeatable_too(run, redis, stream):
    assert [dispatch(run), dispatch(run)] == [1, 0]
    assert redis.xlen(stream) == 1


def test_a_higher_fence_gets_an_entry_of_its_own_and_a_lower_one_none(run, redis, stream):
    dispatch(run)
    run.fence = 3
    assert dispatch(run) == 1

    run.fence = 1
    assert dispatch(run) == 0
    assert [fields[b"fence"] for fields in entries(redis, stream)] == [b"1", b"3"]


def test_each_priority_has_its_stream(account, redis):
    runs = {name: builders.make_run("queued", account=account, priority=name) for name in keys.PRIORITIES}
    dispatch(*runs.values())

    for name in runs:
        assert redis.xlen(keys.ready("default", name)) == 1


# -- what the index names may be gone, or never be delivered again ---------------------------------------------------
def lose_everything(redis, stream, entry):
    redis.delete(stream, keys.index("default"), keys.wake("default"))


def lose_the_stream(redis, stream, entry):
    redis.delete(stream)


def trim_the_entry(redis, stream, entry):
    redis.xtrim(stream, maxlen=0, approximate=False)


def delete_the_entry(redis, stream, entry):
    redis.xdel(stream, entry)


def acknowledge_only(redis, stream, entry):
    read(redis, stream)
    redis.xack(stream, keys.GROUP, entry)


def move_the_group_past_it(redis, stream, entry):
    redis.xgroup_setid(stream, keys.GROUP, "$")


def spoil_the_index(redis, stream, entry):
    redis.hset(keys.index("default"), redis.hkeys(keys.index("default"))[0], "nonsense")


@pytest.mark.parametrize(
    "loss",
    [
        lose_everything,
        lose_the_stream,
        trim_the_entry,
        delete_the_entry,
        acknowledge_only,
        move_the_group_past_it,
        spoil_the_index,
    ],
)
def test_an_entry_that_nobody_will_get_is_replaced(run, redis, stream, group, loss):
    dispatch(run)
    loss(redis, stream, redis.xrange(stream)[0][0])

    assert dispatch(run) == 1
    assert dispatch(run) == 0

    _, named = ready.named_entry(redis, run)
    assert redis.xrange(stream, named, named) != []


def test_a_lost_group_makes_an_entry_deliverable_again(run, redis, stream, group):
    dispatch(run)
    read(redis, stream)
    redis.xgroup_destroy(stream, keys.GROUP)

    assert dispatch(run) == 0
    redis.xgroup_create(stream, keys.GROUP, id="0")
    assert len(read(redis, stream)) == 1


def test_a_flushed_server_gets_the_run_again(own_redis, run, redis, stream):
    dispatch(run)
    redis.flushall()

    assert dispatch(run) == 1
    assert redis.xlen(stream) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"run_id": b"x", b"fence": b"1"},
        {b"run_id": b"00000000-0000-0000-0000-000000000000"},
        {b"run_id": b"00000000-0000-0000-0000-000000000000", b"fence": b"one"},
        {b"run_id": b"\xff", b"fence": b"1"},
        {b"run_id": b"00000000-0000-0000-0000-000000000000", b"fence": b"1", b"v": b"?"},
        {b"run_id": b"00000000-0000-0000-0000-000000000000", b"fence": b"1", b"traceparent": b"\xff"},
    ],
)
def test_what_is_no_ticket_is_said_to_be_none(fields):
    with pytest.raises(Undecodable):
        ready.parse(fields)


def test_unknown_fields_of_a_later_version_are_ignored(run):
    fields = {b"run_id": str(run.pk).encode(), b"fence": b"7", b"v": b"2", b"later": b"x"}

    assert ready.parse(fields) == Ticket(run.pk, 7, 2, "")


def test_a_submit_dispatches_once_it_is_committed(account, redis, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        run = working.submit(account)
        assert redis.xlen(keys.ready("default", "normal")) == 0

    assert ready.named_entry(redis, run) is not None
    assert working.log_of(run) == ["1-1"]
