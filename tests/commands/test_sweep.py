"""sweep --once."""

import pytest

from runs import keys
from tests import builders
from workers.holder import HOLD_MS
from workers.management.commands import sweep
from workers.sweeper import DUTIES

pytestmark = pytest.mark.django_db(transaction=True)


def entries(redis):
    return redis.xlen(keys.ready("default", "normal"))


def test_one_pass_does_every_duty_but_takeover_and_gives_the_lease_back(manage, redis, account):
    builders.make_run("queued", account=account)

    ran = manage("sweep", "--once", "--json")

    assert ran.code == 0
    assert ran.json["done"] == [name for name in DUTIES if name != "takeover"]
    assert (ran.json["failed"], ran.json["held_by_us"], ran.json["redis"]) == ({}, True, "ok")
    assert entries(redis) == 1
    assert not redis.exists(keys.sweeper())


def test_only_the_named_duties_are_done(manage, redis, account):
    builders.make_run("queued", account=account)

    ran = manage("sweep", "--once", "--duty", "close", "retention")

    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()[1:3]] == ["close", "retention"]
    assert "look twice" in ran.out
    assert entries(redis) == 0


def test_somebody_elses_turn_is_waited_for_and_named(manage, redis, monkeypatch):
    monkeypatch.setattr(sweep, "WAIT_SECONDS", 0.3)
    redis.set(keys.sweeper(), "worker-9", px=HOLD_MS * 10)

    ran = manage("sweep", "--once")

    assert ran.code == 2
    assert "worker-9 sweeps" in ran.err
    assert manage("sweep", "--once", "--json").json["holder"] == "worker-9"
    assert redis.get(keys.sweeper()) == b"worker-9"


def test_a_dead_holders_turn_ends_while_it_waits(manage, redis):
    redis.set(keys.sweeper(), "worker-9", px=200)

    assert manage("sweep", "--once", "--duty", "relay").code == 0


def test_without_redis_it_does_what_it_can_and_says_so(manage, own_redis):
    own_redis.kill()

    ran = manage("sweep", "--once")

    assert ran.code == 0
    assert "Redis is away" in ran.out
    assert manage("sweep", "--once", "--json").json["redis"] == "away"


def test_wrong_usage_is_refused(manage):
    assert "There is no duty nonsense" in manage("sweep", "--once", "--duty", "nonsense").err
    assert "two looks" in manage("sweep", "--once", "--duty", "takeover").err
