"""Limits on runs at work at once: a place, or the waiting set, and the way back (protocol 5.1, 6.4)."""

import datetime as dt

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from agentops.counting import count
from quotas.models import Account
from quotas.services import lock_account
from runs import broker, keys, ready, scripts
from runs.models import Attempt, Run
from runs.services import cancel_run
from tests import crowds, racing, working
from tests.crowds import (
    BY_AGENT,
    FEW,
    OTHER,
    Desk,
    assert_nothing_left,
    expire_places,
    in_streams,
    names,
    now_limited_to,
    parked,
    pks,
    placed,
    said,
    submitted,
)
from workers import stream
from workers.selectors import queue_status
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


# -- parking and the way back ----------------------------------------------------------------------------------------
def test_what_finds_no_place_is_parked_and_comes_back_when_one_is_freed(account, desk, redis):
    runs = submitted(account, 4)

    assert desk.turn() == pks(runs[:2])
    assert (parked(redis), placed(redis)) == (names(runs[2:]), sorted(names(runs[:2])))
    assert said(redis, runs[2]) == f"parked:{BY_AGENT}"
    assert ready.named_entry(redis, runs[2]) is None
    assert in_streams(redis) == 2
    assert desk.turn() == []

    desk.end(runs[0].pk)

    assert (parked(redis), placed(redis)) == (names(runs[3:]), sorted(names(runs[1:3])))
    assert redis.llen(keys.wake("default")) > 0
    assert desk.turn() == [runs[2].pk]
    desk.end()
    assert desk.turn() == [runs[3].pk]
    desk.end()
    assert_nothing_left(account)


def test_others_of_the_batch_start_and_leave_no_trace_of_limits(account, desk, redis):
    limited = submitted(account, 3)
    free = submitted(account, 2, agent=OTHER)

    assert desk.turn() == [*pks(free), *pks(limited[:2])]
    assert sorted(name.decode() for name in redis.hkeys(keys.limited("default"))) == sorted(names(limited))


def test_a_parked_run_holds_no_global_slot(account, few, redis):
    desk = Desk(global_slots=4)
    runs = submitted(account, 4)

    entries = desk.consumer.take(range(8))
    assert redis.zcard(keys.slots("default")) == 4
    assert len(desk.deliveries.handle(entries).started) == 2
    assert redis.zcard(keys.slots("default")) == 2
    assert parked(redis) == names(runs[2:])


def test_the_more_urgent_comes_back_first_then_the_older(account, desk, redis):
    low, normal, high = (working.submit(account, agent=FEW, priority=name) for name in ("low", "normal", "high"))
    later = working.submit(account, agent=FEW, priority="normal")
    Run.objects.filter(pk=later.pk).update(queued_at=timezone.now() + dt.timedelta(seconds=5))
    redis.zadd(keys.limit_places("default", BY_AGENT), {"a": 9e15, "b": 9e15})

    desk.turn()

    assert parked(redis) == names([high, normal, later, low])
    redis.zrem(keys.limit_places("default", BY_AGENT), "a", "b")
    Sweeper(working.config(), broker.client()).run_once()
    assert desk.turn() == pks([high, normal])


def test_nobody_overtakes_those_who_wait(account, desk, redis):
    first = submitted(account, 3)
    desk.turn()
    expire_places(redis)  # their owner is gone
    (newcomer,) = submitted(account, 1)

    started = desk.turn()

    assert started == [newcomer.pk]  # two places were free, one of them went to whoever waited
    assert placed(redis) == sorted(names([first[2], newcomer]))
    assert desk.turn() == [first[2].pk]


def test_a_newcomer_is_parked_when_all_free_places_have_takers(account, desk, redis):
    first = submitted(account, 4)
    desk.turn()
    expire_places(redis)
    (newcomer,) = submitted(account, 1)

    assert desk.turn() == []
    assert parked(redis) == [str(newcomer.pk)]
    assert desk.turn() == pks(first[2:])


def test_an_account_has_a_limit_over_its_agents(account, other_account, desk, redis):
    Account.objects.filter(pk=account.pk).update(max_running=1)
    first, second = submitted(account, 1, agent=OTHER) + submitted(account, 1, agent="probe.ret")
    (stranger,) = submitted(other_account, 1, agent=OTHER)

    assert desk.turn() == [stranger.pk, first.pk]
    assert desk.turn() == []
    assert parked(redis, f"account:{account.pk}") == [str(second.pk)]

    desk.end()
    assert desk.turn() == [second.pk]
    desk.end()
    assert_nothing_left(account)


def test_a_run_parked_at_one_limit_takes_no_place_of_the_other(account, other_account, desk, redis):
    Account.objects.filter(pk=account.pk).update(max_running=1)
    mine = submitted(account, 3)
    theirs = submitted(other_account, 2)

    assert desk.turn() == [mine[0].pk, theirs[0].pk]
    assert parked(redis, f"account:{account.pk}") == names(mine[1:])
    assert parked(redis) == names(theirs[1:])

    desk.end(theirs[0].pk)
    assert desk.turn() == [theirs[1].pk]
    desk.end(mine[0].pk)
    assert desk.turn() == [mine[1].pk]
    desk.end()
    assert desk.turn() == [mine[2].pk]
    desk.end()
    assert_nothing_left(account)


def test_a_promised_place_is_passed_on_when_the_other_limit_has_none(account, other_account, desk, redis):
    first = submitted(other_account, 2)
    (second,) = submitted(account, 1)
    (third,) = submitted(other_account, 1)
    desk.turn()
    assert parked(redis) == names([second, third])
    Account.objects.filter(pk=account.pk).update(max_running=0)

    desk.end(first[0].pk)
    assert desk.turn() == []  # it was promised the place, and its account lets none be at work
    assert desk.turn() == [third.pk]

    assert parked(redis, f"account:{account.pk}") == [str(second.pk)]
    assert placed(redis) == sorted(names([first[1], third]))


def test_a_lowered_limit_passes_nothing_on_until_it_is_kept(account, desk, redis):
    runs = submitted(account, 3)
    desk.turn()
    with now_limited_to(1):
        (late,) = submitted(account, 1)
        desk.turn()
        assert parked(redis) == names([runs[2], late])

        desk.end(runs[0].pk)
        assert desk.turn() == []
        desk.end(runs[1].pk)
        assert desk.turn() == [runs[2].pk]


@pytest.mark.parametrize("most", [0, -1, 10**9])
def test_a_limit_of_an_agent_must_make_sense(most):
    with (
        pytest.raises(ImproperlyConfigured, match="max_running must be 1 to"),
        working.registered("x", max_running=most),
    ):
        pass


# -- parked counts as present ----------------------------------------------------------------------------------------
def test_a_parked_run_is_not_dispatched_again_while_its_set_has_it(account, desk, redis):
    runs = submitted(account, 3)
    desk.turn()
    client = broker.client()

    assert ready.dispatch_all(client, [runs[2]]) == 0
    assert parked(redis) == names(runs[2:])

    redis.zrem(keys.parked("default", BY_AGENT), str(runs[2].pk))
    assert ready.dispatch_all(client, [runs[2]]) == 1
    assert desk.turn() == []
    assert parked(redis) == names(runs[2:])


def test_a_dispatch_of_a_later_fence_takes_it_out_of_the_set(account, desk, redis):
    runs = submitted(account, 3)
    desk.turn()
    Run.objects.filter(pk=runs[2].pk).update(fence=3)
    runs[2].refresh_from_db()

    assert ready.dispatch_all(broker.client(), [runs[2]]) == 1

    assert (parked(redis), in_streams(redis)) == ([], 3)


def test_an_entry_that_a_later_one_replaced_is_acknowledged_and_changes_nothing(account, desk, redis):
    (run,) = submitted(account, 1)
    stale = desk.consumer.take([0])
    redis.hset(keys.index("default"), str(run.pk), f"7|parked:{BY_AGENT}")

    assert desk.deliveries.handle(stale).started == []

    assert (said(redis, run), in_streams(redis), placed(redis)) == (f"parked:{BY_AGENT}", 0, [])


def test_two_entries_of_a_run_are_one_parked_run(account, desk, redis):
    runs = submitted(account, 3)
    redis.hdel(keys.index("default"), str(runs[2].pk))
    ready.dispatch_all(broker.client(), [runs[2]])
    assert in_streams(redis) == 4

    desk.turn(range(3))
    desk.turn()

    assert (parked(redis), in_streams(redis)) == (names(runs[2:]), 2)


# -- out of the set --------------------------------------------------------------------------------------------------
def test_a_cancelled_run_leaves_its_set_at_once_and_blocks_nobody(account, desk, redis):
    runs = submitted(account, 4)
    desk.turn()

    cancel_run(run_id=runs[2].pk, actor="tester")

    assert (parked(redis), redis.hexists(keys.index("default"), str(runs[2].pk))) == (names(runs[3:]), False)
    desk.end()
    assert desk.turn() == [runs[3].pk]
    desk.end()
    assert_nothing_left(account)


def test_a_run_cancelled_while_redis_was_away_blocks_nobody(account, own_redis, desk, redis):
    runs = submitted(account, 4)
    desk.turn()
    own_redis.kill()
    cancel_run(run_id=runs[2].pk, actor="tester")
    own_redis.start()
    assert parked(redis) == names(runs[2:])

    desk.end(runs[0].pk)  # the place is promised to the one that has ended

    assert desk.turn() == []
    assert desk.turn() == [runs[3].pk]
    desk.end()
    assert_nothing_left(account)


def test_a_parked_run_that_waited_too_long_fails_and_leaves_its_set(account, desk, redis, sweeper):
    runs = submitted(account, 3)
    desk.turn()
    Run.objects.filter(pk=runs[2].pk).update(waits_until=timezone.now() - dt.timedelta(seconds=5))

    sweeper.run_once()

    runs[2].refresh_from_db()
    assert (runs[2].state, runs[2].error_class) == ("failed", "queue_timeout")
    assert (parked(redis), redis.exists(keys.limits("default"))) == ([], 0)


def test_a_run_handed_over_passes_its_place_on_and_waits_again(account, desk, redis):
    runs = submitted(account, 3)
    desk.turn()
    Run.objects.filter(pk=runs[0].pk).update(state="queued", fence=3, queued_at=timezone.now())
    runs[0].refresh_from_db()

    scripts.execute(broker.client(), lambda pipe: stream.hand_over(pipe, runs[0]))

    assert (parked(redis), placed(redis)) == ([], sorted(names(runs[1:])))
    assert desk.turn() == [runs[2].pk]
    assert parked(redis) == names(runs[:1])


def test_a_lost_workers_place_is_passed_on_by_whoever_takes_its_run_over(account, desk, redis):
    runs = submitted(account, 3)
    desk.turn()

    scripts.execute(broker.client(), lambda pipe: stream.ack_named(pipe, "default", runs[0].pk))

    assert placed(redis) == sorted(names(runs[1:]))
    assert desk.turn() == [runs[2].pk]


def test_the_entry_of_another_owner_does_not_free_a_runs_place(account, desk, redis):
    (run,) = submitted(account, 1)
    (stale,) = desk.consumer.take([0])
    desk.deliveries.handle([stale])
    redis.hset(keys.index("default"), str(run.pk), f"9|{keys.ready('default', 'normal')}|9-9")

    scripts.execute(broker.client(), lambda pipe: stream.ack(pipe, stale, run.pk))

    assert placed(redis) == names([run])


def test_a_claim_that_fails_gives_its_place_back(account, desk, redis):
    runs = submitted(account, 3)
    for run in runs[:2]:  # a row that is there already makes every claim fail
        Attempt.objects.create(run=run, fence=2, number=1, worker="w0", started_at=run.queued_at)

    assert desk.turn() == []

    assert placed(redis) == names(runs[2:])  # promised to the one that had been parked
    assert desk.turn() == [runs[2].pk]


def test_a_run_whose_hold_lapsed_is_claimed_with_its_place(account, desk, redis):
    runs = submitted(account, 2)
    account.holds.filter(run_id=runs[0].pk).update(state="expired")
    Account.objects.filter(pk=account.pk).update(held=1000)

    assert sorted(desk.turn()) == sorted(pks(runs))
    assert placed(redis) == sorted(names(runs))
    assert {one.claimed.limits for one in desk.working.values()} == {(BY_AGENT,)}


# -- cost and view ---------------------------------------------------------------------------------------------------
def test_a_place_costs_one_round_trip_and_one_transaction_for_the_whole_batch(account, desk):
    submitted(account, 1)
    desk.turn()
    desk.end()
    submitted(account, 2)
    entries = desk.consumer.take(range(8))

    with count() as counted:
        assert len(desk.deliveries.handle(entries).started) == 2

    assert (counted.transactions, counted.round_trips) == (2, 2)


@pytest.mark.row_locks
def test_reading_the_accounts_limit_waits_for_no_lock_on_the_account(account, few):
    (run,) = submitted(account, 1)

    with racing.held_open(lambda: lock_account(account.pk)):
        assert [one.run.pk for one in working.try_claim(run).limited] == [run.pk]


def test_the_queues_status_shows_who_waits_for_which_limit(account, desk, redis):
    assert queue_status()["parked"] == []
    submitted(account, 5)
    desk.turn()

    row = {"queue": "default", "limit": BY_AGENT, "most": 2, "running": 2, "parked": 3}
    assert queue_status()["parked"] == [row]
    assert sum(one["waiting"] for one in queue_status()["queues"] if one["queue"] == "default") == 0
