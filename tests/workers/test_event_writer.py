"""The owner's side of the log: what it does on each answer of the append script (protocol 3.3)."""

import asyncio

import pytest

from runs import broker, events, keys, lifecycle
from runs.models import Run
from tests import invariants, working
from workers.event_writer import EventWriter
from workers.finaliser import Ending, end_set
from workers.owned import OwnedRuns
from workers.units import Units

pytestmark = pytest.mark.django_db(transaction=True)


class Writing:
    """A run that is being worked on, and the writer of its worker."""

    def __init__(self, account):
        self.run = working.submit(account)
        (self.claimed,) = working.claim(self.run)
        lifecycle.announce(broker.client(), [self.claimed.started])
        self.owned = working.owned_run(self.claimed, working.entry_of(self.run))
        self.lost = []

    def say(self, count=1):
        """Emit events and flush them."""
        for _ in range(count):
            self.owned.buffer.emit("said", {"n": self.owned.buffer.last_seq + 1})

        async def work():
            writer = EventWriter(broker.client(), OwnedRuns(), Units(1), self._lose)
            async with asyncio.timeout(20):
                await writer.flush([self.owned], everything=True)

        asyncio.run(work())

    def _lose(self, owned):
        owned.fenced = True
        self.lost.append(owned)

    @property
    def log(self):
        return working.log_of(self.run)


@pytest.fixture
def writing(account):
    return Writing(account)


def go_back(redis, run, last):
    """Let the log be as old as its entry `last`: what a failover leaves that lost its last second."""
    name = keys.log(run.pk)
    kept = redis.xrange(name, "-", last)
    redis.delete(name)
    for entry_id, fields in kept:
        redis.xadd(name, fields, id=entry_id)


def test_a_log_that_came_back_older_is_filled_from_the_tail(writing, redis):
    writing.say(4)
    go_back(redis, writing.run, "2-3")

    writing.say(2)

    assert writing.log == ["1-1", "2-1", "2-2", "2-3", "2-4", "2-5", "2-6", "2-7"]
    bodies = events.bodies(writing.run.pk, redis.xrange(keys.log(writing.run.pk), "2-2"))
    assert [event["data"]["n"] for event, _ in bodies] == [2, 3, 4, 5, 6, 7]
    assert writing.lost == []


def test_a_log_older_than_the_claim_gets_the_lifecycle_between_as_well(writing, redis):
    writing.say(2)
    go_back(redis, writing.run, "1-1")

    writing.say()

    assert writing.log == ["1-1", "2-1", "2-2", "2-3", "2-4"]


def test_a_log_that_is_gone_is_opened_again_by_its_owner(writing, redis):
    writing.say(2)
    redis.delete(keys.log(writing.run.pk))

    writing.say()

    assert writing.log == ["1-1", "2-1", "2-2", "2-3", "2-4"]
    assert writing.lost == []


def test_what_the_tail_has_forgotten_is_missing_and_readers_are_told(writing, redis, monkeypatch):
    writing.say(4)
    redis.delete(keys.log(writing.run.pk))
    writing.owned.buffer._tail.clear()

    writing.say()

    assert writing.log == ["1-1", "2-1", "2-6"]
    told = [event["kind"] for event in invariants.all_events(writing.run.pk)]
    assert told == ["run.queued", "run.started", "gap", "said"]


@pytest.mark.parametrize(
    "change",
    [{"fence": 9}, {"claim_token": "x" * 32}, {"state": "interrupted", "claim_token": None}],
    ids=["fence", "token", "state"],
)
@pytest.mark.parametrize("left", ["nothing", "older"])
def test_a_run_that_is_somebody_elses_is_not_opened_again(writing, redis, change, left):
    writing.say(2)
    if left == "older":
        go_back(redis, writing.run, "2-1")
    else:
        redis.delete(keys.log(writing.run.pk))
    before = writing.log
    Run.objects.filter(pk=writing.run.pk).update(**change)

    writing.say()

    assert writing.lost == [writing.owned]
    assert writing.log == before


def test_a_log_of_a_higher_fence_means_lost(writing, redis):
    redis.xadd(keys.log(writing.run.pk), {"e": b"{}", "p": ""}, id="9-1")

    writing.say()

    assert writing.lost == [writing.owned]
    assert writing.log == ["1-1", "2-1", "9-1"]


def test_a_fenced_terminal_event_does_not_keep_the_entry(writing, redis, account):
    """The row decides and the run has ended; that its log is ahead must not leave its entry pending."""
    redis.xadd(keys.log(writing.run.pk), {"e": b"{}", "p": ""}, id="9-1")

    done = end_set(broker.client(), [Ending(writing.owned.entry, working.finish_of(writing.claimed))])

    assert [one.row.kind for one in done.moved] == ["run.succeeded"]
    assert writing.log == ["1-1", "2-1", "9-1"]
    assert redis.xlen(keys.ready("default", "normal")) == 0
    assert redis.hlen(keys.index("default")) == 0
    invariants.check_money([account])
