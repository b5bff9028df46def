"""Agents of which only some runs may be at work at once, and a worker by hand that takes, starts and ends them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import redis as redis_py

from quotas.models import Account
from runs import agents, broker, keys
from runs.models import Run
from tests import invariants, working
from workers.delivery import Deliveries, Started
from workers.finaliser import Ending, end_set
from workers.heartbeat import Heartbeat
from workers.leases import LeaseKeeper, Listeners
from workers.owned import OwnedRuns

FEW, OTHER = "test.few", "test.other"
BY_AGENT = f"agent:{FEW}"


@contextmanager
def limited_agents(redis: redis_py.Redis) -> Iterator[None]:
    """Have FEW, of which two runs may be at work, and OTHER without a limit, on a queue whose owners all had a beat."""
    redis.set(keys.epoch("default"), 1)
    with working.registered(FEW, max_running=2), working.registered(OTHER):
        yield


class Desk:
    """A worker's fetching side and its end of runs, step by step."""

    def __init__(self, **fields: Any) -> None:
        self.config = working.config(**({"agents": frozenset({FEW, OTHER, "probe.ret"})} | fields))
        self.deliveries = Deliveries(self.config, broker.client())
        self.consumer = working.consumer(self.config)
        self.working: dict[UUID, Started] = {}

    def turn(self, places: range = range(8)) -> list[UUID]:
        """Take and handle once. Returns the runs that start."""
        handled = self.deliveries.handle(self.consumer.take(places))
        self.consumer.free_slots(handled.free)
        started = [one.claimed.run.pk for one in handled.started]
        self.working |= dict(zip(started, handled.started, strict=True))
        return started

    def end(self, *run_ids: UUID) -> None:
        """End runs as the finaliser does: all that work if none is named."""
        for run_id in run_ids or list(self.working):
            one = self.working.pop(run_id)
            end_set(broker.client(), [Ending(one.entry, working.finish_of(one.claimed))])


@contextmanager
def now_limited_to(most: int | None) -> Iterator[None]:
    """Have the agent's limit be another one until the block ends."""
    known = agents.get_agent(FEW)
    agents._registry[FEW] = replace(known, max_running=most)
    try:
        yield
    finally:
        agents._registry[FEW] = known


def submitted(account: Account, number: int, **fields: Any) -> list[Run]:
    return [working.submit(account, **({"agent": FEW} | fields)) for _ in range(number)]


def pks(runs: list[Run]) -> list[UUID]:
    return [run.pk for run in runs]


def parked(redis: redis_py.Redis, limit: str = BY_AGENT) -> list[str]:
    """Return the waiting set of a limit, the first in turn first."""
    return [member.decode() for member in redis.zrange(keys.parked("default", limit), 0, -1)]


def placed(redis: redis_py.Redis, limit: str = BY_AGENT) -> list[str]:
    """Return who has a place of a limit."""
    return sorted(member.decode() for member in redis.zrange(keys.limit_places("default", limit), 0, -1))


def names(runs: list[Run]) -> list[str]:
    return [str(run.pk) for run in runs]


def said(redis: redis_py.Redis, run: Run) -> str:
    """Return what the index says of a run, its fence left out."""
    return redis.hget(keys.index("default"), str(run.pk)).decode().partition("|")[2]


def in_streams(redis: redis_py.Redis) -> int:
    return sum(redis.xlen(name) for name in keys.ready_streams("default"))


def expire_places(redis: redis_py.Redis, limit: str = BY_AGENT) -> None:
    for member in placed(redis, limit):
        redis.zadd(keys.limit_places("default", limit), {member: 1})


def assert_nothing_left(account: Account) -> None:
    invariants.check_queues(["default"])
    invariants.check(account)


def keeper_of(desk: Desk) -> LeaseKeeper:
    """Return the lease beat of what works at the desk."""
    owned = OwnedRuns()
    for one in desk.working.values():
        mine = working.owned_run(one.claimed, one.entry)
        mine.limits = one.claimed.limits
        owned.add(mine)
    nobody = Listeners(lambda *_: None, lambda: None, lambda *_: None)
    return LeaseKeeper(desk.config, owned, broker.client(), nobody, Heartbeat(desk.config, broker.client()))
