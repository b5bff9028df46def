"""A worker that could not renew stops its own runs, says nothing more, and may still end them (protocol 7.4, 7.6)."""

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from quotas.database import in_transaction, later
from runs import broker, events, keys
from runs.models import Run
from runs.services import take_over
from runs.services.leaving import Lost
from tests import invariants, working
from tests.probes import in_thread
from workers import worker as worker_module
from workers.claimer import Batch
from workers.executor import Stop
from workers.shutdown import Shutdown
from workers.worker import Worker

pytestmark = pytest.mark.django_db(transaction=True)
LEASE = 15.0


async def pause():
    """Give way for a moment between two looks at a condition."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)


@pytest.fixture(autouse=True)
def quick_watch(monkeypatch):
    monkeypatch.setattr(worker_module, "WATCH_SECONDS", 0.01)


class Night:
    """A worker in this process whose beat never comes. Handlers wait until they are stopped."""

    def __init__(self, **fields):
        self.begun = threading.Event()
        self.ignores = False
        self.handled = []
        config = working.config(agents=frozenset({"test.waits"}), lease=LEASE, handler_grace=5.0, **fields)
        self.worker = Worker(config, Shutdown())

    async def handler(self, ctx, run_input):
        self.begun.set()
        self.handled.append(ctx.run_id)
        ctx.emit("said", {"when": "before"})
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ctx.emit("said", {"when": "after"})
            if self.ignores:
                return "done in spite of it"
            raise

    def own(self, account, count=1):
        runs = [working.submit(account, agent="test.waits") for _ in range(count)]
        free, begun = self.worker._begin(self.worker._take(range(count)), Batch())
        assert free == []
        return sorted(begun, key=lambda owned: [run.pk for run in runs].index(owned.run_id))

    def work(self, scene, *owned):
        """Run the attempts with the worker's helpers beside them, and `scene()` once the handlers have begun."""

        async def main():
            worker = self.worker
            worker._loop = asyncio.get_running_loop()
            parts = [
                asyncio.create_task(part) for part in (worker._watch(), worker.writer.run(), worker.finaliser.run())
            ]
            attempts = [asyncio.create_task(worker.attempts.run(one)) for one in owned]
            async with asyncio.timeout(20):
                while not self.begun.is_set():
                    await pause()
                await scene()
                await asyncio.gather(*attempts)
            for part in parts:
                part.cancel()

        asyncio.run(main())
        self.worker.units.close()
        self.worker.attempts.close()


@pytest.fixture
def night(db):
    made = Night()
    with working.registered("test.waits", made.handler):
        yield made


def said(run_id):
    """Return what a run's own events in the log say."""
    pairs = events.bodies(run_id, broker.client().xrange(keys.log(run_id)))
    return [event["data"]["when"] for event, _ in pairs if event["kind"] == "said"]


async def until(condition):
    while not await in_thread(condition):
        await pause()


def age(owned):
    """Let the last acknowledged renewal be as long ago as a worker may go without."""
    owned.renewed_at = time.monotonic() - LEASE * 5 / 6 - 0.001


def test_a_run_that_was_not_renewed_in_time_is_stopped_and_its_neighbour_is_not(account, night):
    late, neighbour = night.own(account, 2)
    neighbour.renewed_at = time.monotonic() - LEASE * 5 / 6 + 5

    async def scene():
        await until(lambda: said(late.run_id) == ["before"])
        age(late)
        await until(lambda: Run.objects.get(pk=late.run_id).is_terminal)
        assert neighbour.execution.reason is None
        neighbour.execution.stop(Stop.CANCEL)

    night.work(scene, late, neighbour)

    assert late.execution.reason is Stop.LOST
    assert said(late.run_id) == ["before"]
    assert said(neighbour.run_id) == ["before", "after"]
    # Its row was still its own, so its outcome counts: that of a lost worker.
    assert Run.objects.get(pk=late.run_id).state == "interrupted"
    assert Run.objects.get(pk=neighbour.run_id).state == "cancelled"
    invariants.check_money([account])


def test_a_run_whose_policy_is_rerun_is_tried_again_by_the_owner_that_lost_its_lease(account, night):
    (owned,) = night.own(account)
    owned.run.on_lost = "rerun"
    Run.objects.filter(pk=owned.run_id).update(on_lost="rerun", max_attempts=2)

    async def scene():
        await until(lambda: said(owned.run_id) == ["before"])
        age(owned)

    night.work(scene, owned)

    run = Run.objects.get(pk=owned.run_id)
    assert (run.state, run.attempt, run.attempts.get().error_class) == ("scheduled", 2, "lost_worker")
    assert run.transitions.get(fence=3).kind == "run.retrying"
    invariants.check_money([account])


def test_a_stopped_run_whose_handler_has_an_answer_may_still_end_with_it(account, night):
    night.ignores = True
    (owned,) = night.own(account)

    async def scene():
        await until(lambda: said(owned.run_id) == ["before"])
        age(owned)

    night.work(scene, owned)

    run = Run.objects.get(pk=owned.run_id)
    assert (run.state, run.result) == ("succeeded", "done in spite of it")
    assert said(owned.run_id) == ["before"]
    assert working.log_of(run)[-1] == "3-1"


def test_a_stopped_run_that_was_taken_over_ends_by_the_taker_alone(account, night):
    night.ignores = True
    (owned,) = night.own(account)

    async def scene():
        await until(lambda: said(owned.run_id) == ["before"])
        await in_thread(taken, owned)
        age(owned)

    night.work(scene, owned)

    run = Run.objects.get(pk=owned.run_id)
    assert (run.state, run.fence, run.result) == ("interrupted", 3, None)
    assert run.transitions.count() == 3
    assert said(owned.run_id) == ["before"]
    invariants.check_money([account])


def taken(owned):
    Run.objects.filter(pk=owned.run_id).update(lease_expires_at=later(-5))
    row = Run.objects.get(pk=owned.run_id)
    lost = Lost(row.pk, row.fence, row.lease_expires_at)
    assert in_transaction(lambda: take_over(lost, actor="sweeper")) is not None


def test_an_attempt_that_begins_too_long_after_its_claim_does_not_begin(account, night):
    """The process stood still between the claim and the handler: nobody may have renewed it."""
    (owned,) = night.own(account)
    age(owned)
    night.begun.set()

    async def scene():
        pass

    night.work(scene, owned)

    assert (owned.execution.reason, night.handled) == (Stop.LOST, [])
    assert Run.objects.get(pk=owned.run_id).state == "interrupted"


def test_what_is_overdue_is_measured_from_the_last_renewal(account, night):
    late, _ = night.own(account, 2)
    age(late)

    assert night.worker.owned.overdue(night.worker.config.lost_after) == [late]
    assert night.worker.config.lost_after == pytest.approx(LEASE - LEASE / 6)
    night.worker.units.close()
