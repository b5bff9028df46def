"""A worker's two ends, by hand: taking and claiming, with the repeats of a database that is away, and ending."""

from typing import Any

from quotas.models import Account
from runs import broker, keys
from runs.outcomes import Outcome
from tests import invariants, working
from workers.claimer import Batch
from workers.delivery import Deliveries, Handled
from workers.finaliser import Ending, end_set
from workers.units import _unit


class Desk:
    """A worker's fetching side: takes once, handles again and again with one batch, as the worker does."""

    def __init__(self, **fields: Any) -> None:
        self.config = working.config(**fields)
        self.deliveries = Deliveries(self.config, broker.client())
        self.entries = working.consumer(self.config).take((0, 1, 2, 3))
        self.batch = Batch()

    def handle(self) -> Handled:
        handled: Handled = _unit(self.deliveries.handle, (self.entries, self.batch))
        return handled


def in_stream(redis: Any) -> int:
    """Return how many entries wait or are in flight."""
    return redis.xlen(keys.ready("default", "normal"))


def endings(handled: Handled, outcome: Outcome | None = None) -> list[Ending]:
    """Return what the owner of every started run says at its end, at a cost of 3."""
    return [Ending(one.entry, working.finish_of(one.claimed, outcome, cost=3)) for one in handled.started]


def end(handled: Handled, account: Account) -> None:
    """End what started, and see that nothing of it is left anywhere."""
    assert len(end_set(broker.client(), endings(handled)).moved) == len(handled.started)
    invariants.check(account)
