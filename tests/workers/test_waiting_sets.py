"""Places that nobody keeps, waiting sets that nobody empties, and a Redis that lost both (protocol 6.2, 10 parked)."""

import pytest

from quotas.models import Account
from runs import broker, keys
from runs.models import Run
from tests import crowds, working
from tests.crowds import (
    BY_AGENT,
    OTHER,
    Desk,
    assert_nothing_left,
    expire_places,
    in_streams,
    keeper_of,
    names,
    now_limited_to,
    parked,
    pks,
    placed,
    submitted,
)
from workers import parking
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def few(redis):
    with crowds.limited_agents(redis):
        yield


@pytest.fixture
def desk(few):
    return Desk()


@pytest.fixture
def sweeper(few):
    return Sweeper(working.config(), broker.client())


# -- the beat --------------------------------------------------------------------------------------------------------
def test_the_beat_keeps_places_and_puts_lost_ones_in_again(account, desk, redis):
    runs = submitted(account, 2)
    desk.turn()
    expire_places(redis)
    redis.zrem(keys.limit_places("default", BY_AGENT), str(runs[1].pk))
    redis.delete(keys.limited("default"))

    keeper_of(desk).beat_once()

    seconds, _ = redis.time()
    scores = [score for _, score in redis.zrange(keys.limit_places("default", BY_AGENT), 0, -1, withscores=True)]
    assert len(scores) == 2
    assert all(score > seconds * 1000 for score in scores)
    (more,) = submitted(account, 1)
    desk.turn()
    desk.end(runs[0].pk)
    assert desk.turn() == [more.pk]


def test_a_beat_after_the_end_is_forgotten_by_the_sweeper(account, desk, redis, sweeper):
    runs = submitted(account, 3)
    desk.turn()
    late = next(one.claimed.run for one in desk.working.values())
    desk.end(*pks(runs[:2]))
    desk.turn()
    desk.end()
    pipe = broker.client().pipeline(transaction=False)
    parking.keep(pipe, late, (BY_AGENT,), 60)
    pipe.execute()
    assert placed(redis) != []

    sweeper.run_once()

    assert_nothing_left(account)


# -- the sweeper -----------------------------------------------------------------------------------------------------
def test_places_of_a_dead_worker_are_free_when_they_expire(account, desk, redis, sweeper):
    runs = submitted(account, 5)
    desk.turn()
    sweeper.run_once()
    assert parked(redis) == names(runs[2:])

    expire_places(redis)
    sweeper.run_once()

    assert (parked(redis), placed(redis)) == (names(runs[4:]), sorted(names(runs[2:4])))
    assert Desk().turn() == pks(runs[2:4])


@pytest.mark.parametrize(("most", "left"), [(3, 1), (None, 0)])
def test_a_raised_limit_and_a_lifted_one_bring_runs_back(account, desk, redis, sweeper, most, left):
    submitted(account, 4)
    desk.turn()
    with now_limited_to(most):
        sweeper.run_once()
        assert len(parked(redis)) == left
        assert len(desk.turn()) == 2 - left
        desk.end()
        desk.turn()
        desk.end()
    assert_nothing_left(account)


def test_an_account_whose_limit_is_lifted_gets_its_runs_back(account, desk, redis, sweeper):
    Account.objects.filter(pk=account.pk).update(max_running=0)
    runs = submitted(account, 2, agent=OTHER)
    assert desk.turn() == []
    sweeper.run_once()
    assert desk.turn() == []

    Account.objects.filter(pk=account.pk).update(max_running=None)
    sweeper.run_once()

    assert desk.turn() == pks(runs)
    desk.end()
    assert_nothing_left(account)


def test_members_that_do_not_wait_any_more_are_dropped(account, desk, redis, sweeper):
    runs = submitted(account, 4)
    desk.turn()
    elsewhere, waits = runs[2:]
    Run.objects.filter(pk=elsewhere.pk).update(state="scheduled", fence=3, waits_until=None, not_before=None)
    redis.zadd(keys.parked("default", BY_AGENT), {"nonsense": 1, b"\xff": 2, str(runs[0].pk): 3})

    sweeper.run_once()

    assert parked(redis) == names([waits])
    assert not redis.hexists(keys.index("default"), str(elsewhere.pk))
    assert placed(redis) == sorted(names(runs[:2]))


def test_the_relay_leaves_parked_runs_where_they_are(account, desk, redis, sweeper):
    runs = submitted(account, 5)
    desk.turn()
    before = redis.xlen(keys.ready("default", "normal"))

    sweeper.run_once()
    sweeper.run_once()

    assert (redis.xlen(keys.ready("default", "normal")), parked(redis)) == (before, names(runs[2:]))


# -- loss of Redis ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("made", [None, "young"])
def test_a_server_that_came_back_empty_gives_no_place(account, desk, redis, sweeper, made):
    redis.delete(keys.epoch("default"))
    if made:
        seconds, micros = redis.time()
        redis.set(keys.epoch("default"), seconds * 1000 + micros // 1000)
    runs = submitted(account, 1) + submitted(account, 1, agent=OTHER)

    assert desk.turn() == pks(runs[1:])
    sweeper.run_once()
    assert (parked(redis), in_streams(redis)) == (names(runs[:1]), 1)

    redis.set(keys.epoch("default"), 1)
    sweeper.run_once()
    assert desk.turn() == pks(runs[:1])


def test_waiting_sets_are_rebuilt_after_a_loss_and_the_limit_holds(account, own_redis, desk, redis, sweeper):
    runs = submitted(account, 5)
    desk.turn()

    redis.flushall()
    sweeper.run_once()
    assert in_streams(redis) == 3
    assert desk.turn() == []
    assert (parked(redis), placed(redis)) == (names(runs[2:]), [])
    keeper_of(desk).beat_once()
    redis.set(keys.epoch("default"), 1)
    sweeper.run_once()

    assert (parked(redis), placed(redis)) == (names(runs[2:]), sorted(names(runs[:2])))
    begun = []
    while desk.working:
        begun += list(desk.working)
        assert len(desk.working) <= 2
        desk.end()
        desk.turn()
    assert sorted(begun) == sorted(pks(runs))
    assert_nothing_left(account)


def test_half_a_loss_is_repaired(account, desk, redis, sweeper):
    runs = submitted(account, 4)
    desk.turn()
    redis.hdel(keys.limited("default"), str(runs[2].pk))
    redis.zrem(keys.parked("default", BY_AGENT), str(runs[3].pk))

    desk.end()
    sweeper.run_once()

    assert sorted(desk.turn()) == sorted(pks(runs[2:]))
    desk.end()
    assert_nothing_left(account)
