"""Taking work: streams, stale entries, global slots, and what a failed read leaves (protocol 5, 6.1-6.3)."""

import pytest

from runs import broker, keys
from runs.services import cancel_run
from tests import working
from workers import stream

pytestmark = pytest.mark.django_db(transaction=True)


def taker(**fields):
    worker = working.config(
        **{name: fields.pop(name) for name in ("global_slots", "extra_streams", "queues") if name in fields}
    )
    return working.consumer(worker, **fields)


def run_ids(entries):
    return [entry.fields[b"run_id"].decode() for entry in entries]


def pks(runs):
    return [str(run.pk) for run in runs]


def submitted(account, count=1, **fields):
    return [working.submit(account, **fields) for _ in range(count)]


@pytest.fixture
def old_epoch(redis):
    redis.set(keys.epoch("default"), 1)


def slots(redis):
    return sorted(member.decode() for member in redis.zrange(keys.slots("default"), 0, -1))


def test_a_take_brings_at_most_as_many_as_there_are_places_each_with_a_place(account):
    runs = submitted(account, 5)

    entries = taker().take([3, 7, 9])

    assert run_ids(entries) == pks(runs[:3])
    assert [entry.place for entry in entries] == [3, 7, 9]
    assert {entry.deliveries for entry in entries} == {1}


def test_a_take_of_nothing_brings_nothing_and_makes_the_groups(redis):
    assert taker().take([0]) == []
    assert [group["name"] for group in redis.xinfo_groups(keys.ready("default", "low"))] == [b"workers"]


def test_the_more_urgent_stream_is_emptied_first_across_the_whole_take(account):
    normal, high = submitted(account, 2), submitted(account, 2, priority="high")

    assert run_ids(taker().take(range(3))) == pks([*high, normal[0]])


def test_what_one_consumer_took_no_other_takes(account):
    submitted(account, 2)
    taker().take([0, 1])

    assert taker().take([0, 1]) == []


def test_a_stale_entry_is_taken_over_before_new_ones_and_counted(account, redis):
    (run,) = submitted(account)
    (entry,) = taker().take([0])
    (young,) = submitted(account)
    assert run_ids(taker().take([0])) == pks([young])
    redis.xclaim(entry.stream, keys.GROUP, "gone", 0, [entry.id], idle=10_000_000, justid=True)

    found = taker().take([0, 1])

    assert run_ids(found) == pks([run])
    assert found[0].deliveries == 2


def test_a_trimmed_entry_that_was_pending_does_no_harm(account, redis):
    submitted(account)
    (entry,) = taker().take([0])
    redis.xclaim(entry.stream, keys.GROUP, "gone", 0, [entry.id], idle=10_000_000, justid=True)
    redis.xtrim(entry.stream, maxlen=0, approximate=False)
    (fresh,) = submitted(account)

    assert run_ids(taker().take([0])) == pks([fresh])


def test_queues_are_read_in_their_order_and_share_the_places(account):
    with working.registered("test.other", queue="other"):
        (second,) = submitted(account, agent="test.other")
        first = submitted(account, 2)

        entries = taker(queues=("default", "other")).take(range(3))

    assert run_ids(entries) == pks([*first, second])
    assert [entry.queue for entry in entries] == ["default", "default", "other"]


def test_extra_streams_are_read_last(account, redis, isolation):
    redis.xadd(f"{isolation}:extra", {"run_id": "from outside", "fence": "1"})
    (run,) = submitted(account)

    entries = taker(extra_streams=(f"{isolation}:extra",)).take(range(5))

    assert run_ids(entries) == [str(run.pk), "from outside"]
    assert entries[1].stream == f"{isolation}:extra"


def test_a_reader_whose_read_failed_adopts_what_it_was_given_and_does_not_know(account, own_redis):
    known, lost = submitted(account, 2)
    consumer = taker()
    (entry,) = consumer.take([0])
    consumer.take([1])  # its answer never arrives
    consumer._unsure = True

    found = consumer.take([1, 2], known={entry.id})

    assert run_ids(found) == pks([lost])
    assert run_ids([entry]) == pks([known])
    assert consumer.take([1, 2], known={entry.id}) == []


# -- global slots ----------------------------------------------------------------------------------------------------
def test_slots_limit_what_all_workers_take_together(account, redis, old_epoch):
    submitted(account, 5)
    first, second = taker(global_slots=3), taker(global_slots=3)

    assert (len(first.take([0, 1])), len(second.take([0, 1])), len(taker(global_slots=3).take([0]))) == (2, 1, 0)
    assert len(slots(redis)) == 3


def test_without_a_slot_no_stream_is_touched(account, redis, old_epoch):
    submitted(account, 2)
    taker(global_slots=1).take([0])

    assert taker(global_slots=1).take([0]) == []
    assert redis.xinfo_groups(keys.ready("default", "normal"))[0]["pending"] == 1


def test_slots_for_which_there_is_no_work_are_given_back_at_once(account, redis, old_epoch):
    submitted(account, 1)
    consumer = taker(global_slots=5)

    consumer.take([0, 1, 2])

    assert slots(redis) == [consumer.slot_member(0)]


def test_a_slot_nobody_renewed_is_free_again(account, redis, old_epoch):
    submitted(account, 2)
    first = taker(global_slots=1)
    first.take([0])
    redis.zadd(keys.slots("default"), {first.slot_member(0): 1})

    assert len(taker(global_slots=1).take([0])) == 1
    assert len(slots(redis)) == 1


def test_a_slot_is_released_by_its_own_member_only(account, redis, old_epoch):
    submitted(account, 2)
    consumer = taker(global_slots=2)
    first, second = consumer.take([0, 1])

    consumer.free_slots([first])

    assert slots(redis) == [second.slot]


def test_an_acknowledgement_frees_stream_index_and_slot(account, redis, old_epoch):
    (run,) = submitted(account)
    (entry,) = taker(global_slots=2).take([0])

    pipe = broker.client().pipeline(transaction=False)
    stream.ack(pipe, entry, run.pk)
    stream.ack(pipe, entry, run.pk)
    assert pipe.execute() == [1, 0]

    assert (redis.xlen(entry.stream), redis.hlen(keys.index("default")), slots(redis)) == (0, 0, [])
    cancel_run(run_id=run.pk, actor="tester")


@pytest.mark.parametrize("made", [None, "young"])
def test_a_server_that_came_back_empty_grants_no_slot_until_all_owners_had_a_beat(account, redis, made):
    submitted(account)
    if made:
        seconds, micros = redis.time()
        redis.set(keys.epoch("default"), seconds * 1000 + micros // 1000)

    assert taker(global_slots=5).take([0]) == []
    assert (len(taker().take([0])), slots(redis)) == (1, [])


def test_a_wake_is_for_one_waiter(account):
    consumer, blocking = taker(), broker.blocking_client(1)
    submitted(account)

    assert consumer.wait(blocking, 1)
    assert not consumer.wait(blocking, 0.01)
    blocking.close()
