"""Nobody takes over on the first look (protocol 8.2)."""

import datetime as dt
import time

import pytest
from django.db import DatabaseError, DataError, OperationalError, connection
from django.utils import timezone

from quotas.database import in_transaction
from runs import announcing, broker, keys, ready
from runs.models import Run
from runs.services import schedule, take_over_dead
from tests import invariants, working
from workers import aftermath, takeover
from workers.takeover import Takeover

pytestmark = pytest.mark.django_db(transaction=True)
LEASE = 15.0


class Clock:
    """A monotonic clock that goes when it is told to."""

    def __init__(self):
        self.now = time.monotonic()

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(takeover, "time", made)
    return made


@pytest.fixture
def sweeping(clock):
    return Takeover(broker.client(), lease=LEASE, actor="sweeper")


@pytest.fixture
def running(account):
    """A claimed run whose lease lapsed five seconds ago."""
    run = working.submit(account)
    entries = working.consumer(working.config()).take([0])
    assert len(entries) == 1
    working.claim(run)
    lapse(run)
    return run


def lapse(run, seconds=5.0):
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=seconds))


def state(run):
    return Run.objects.get(pk=run.pk).state


def test_a_lapsed_lease_is_remembered_first_and_taken_over_after_half_a_lease(running, sweeping, clock, redis):
    assert sweeping.run_once() == 0
    clock.now += LEASE / 2 - 0.01
    pass_without_a_step(sweeping)
    assert sweeping.run_once() == 0
    clock.now += 0.02

    assert sweeping.run_once() == 1

    assert state(running) == "interrupted"
    assert working.log_of(running) == ["1-1", "2-1", "3-1"]
    assert ready.named_entry(redis, running) is None
    assert redis.xlen(keys.ready("default", "normal")) == 0
    assert sweeping.run_once() == 0
    invariants.check(running.account)


def pass_without_a_step(sweeping):
    """The database's clock went as far as the monotonic one."""
    sweeping._clocks = None


def later_look(sweeping, clock, seconds):
    clock.now += seconds
    pass_without_a_step(sweeping)
    return sweeping.run_once()


def test_a_lease_that_comes_near_its_end_is_remembered_but_not_taken(account, sweeping, clock):
    run = working.submit(account)
    working.claim(run)
    lapse(run, seconds=-5.0)
    sweeping.run_once()

    assert later_look(sweeping, clock, LEASE) == 0
    lapse_as_seen = Run.objects.get(pk=run.pk).lease_expires_at
    assert lapse_as_seen > timezone.now()
    assert state(run) == "running"


def test_a_healthy_lease_is_not_even_remembered(account, sweeping):
    run = working.submit(account)
    working.claim(run, lease=LEASE)

    sweeping.run_once()

    assert sweeping._remembered == {}


def test_a_renewed_lease_is_looked_at_anew(running, sweeping, clock):
    sweeping.run_once()
    lapse(running, seconds=1.0)

    assert later_look(sweeping, clock, LEASE) == 0
    assert later_look(sweeping, clock, LEASE) == 1


def test_another_fence_is_looked_at_anew(running, sweeping, clock):
    sweeping.run_once()
    expires = Run.objects.get(pk=running.pk).lease_expires_at
    running.transitions.create(fence=3, kind="run.started", at=expires)
    Run.objects.filter(pk=running.pk).update(fence=3)

    assert later_look(sweeping, clock, LEASE) == 0


def test_a_step_of_the_databases_clock_empties_the_memory(running, sweeping, clock):
    sweeping.run_once()
    clock.now += LEASE  # the database's clock stood still meanwhile

    assert sweeping.run_once() == 0
    assert later_look(sweeping, clock, LEASE / 2) == 1


def test_a_failed_look_empties_the_memory(running, sweeping, clock):
    sweeping.run_once()
    with connection.execute_wrapper(fails_on("SELECT")), pytest.raises(DatabaseError):
        later_look(sweeping, clock, LEASE)

    assert later_look(sweeping, clock, 0) == 0
    assert later_look(sweeping, clock, LEASE / 2) == 1


def test_a_failed_takeover_empties_the_memory_too(running, sweeping, clock):
    sweeping.run_once()
    with connection.execute_wrapper(fails_on("UPDATE")), pytest.raises(DatabaseError):
        later_look(sweeping, clock, LEASE)

    assert state(running) == "running"
    assert later_look(sweeping, clock, 0) == 0
    assert later_look(sweeping, clock, LEASE / 2) == 1


def test_a_run_that_cannot_be_taken_over_holds_up_no_other(account, running, sweeping, clock):
    other = working.submit(account)
    working.claim(other)
    lapse(other, seconds=1.0)  # looked at after the first one
    sweeping.run_once()

    def odd(run, sql, params, many, context):
        if sql.startswith("UPDATE") and running.pk.hex in str(params).replace("-", ""):
            raise DataError("a number out of range")
        return run(sql, params, many, context)

    with connection.execute_wrapper(odd):
        assert later_look(sweeping, clock, LEASE / 2) == 1

    assert (state(running), state(other)) == ("running", "interrupted")


def test_what_was_remembered_long_ago_counts_for_nothing(running, sweeping, clock):
    sweeping.run_once()

    assert later_look(sweeping, clock, 2 * LEASE + 1) == 0
    assert later_look(sweeping, clock, LEASE / 2) == 1


def fails_on(word):
    def execute(run, sql, params, many, context):
        if sql.startswith(word):
            raise OperationalError("the server went away")
        return run(sql, params, many, context)

    return execute


def test_a_run_that_ended_meanwhile_is_forgotten(account, running, sweeping, clock):
    sweeping.run_once()
    row = Run.objects.get(pk=running.pk)
    said = working.finish_of(working.claims.claimed_by(row.claim_token)[0])
    working.finish(said)

    assert later_look(sweeping, clock, LEASE) == 0
    assert sweeping._remembered == {}
    assert state(running) == "succeeded"


def test_a_takeover_without_redis_is_a_takeover(account, own_redis, running, sweeping, clock):
    sweeping.run_once()
    own_redis.kill()

    assert later_look(sweeping, clock, LEASE) == 1
    assert state(running) == "interrupted"


def test_what_somebody_dispatched_since_is_not_acknowledged_with_the_lost_entry(account, redis):
    run = working.submit(account, on_lost="rerun", max_attempts=3)
    claimed = working.claim(run)[0]
    left = in_transaction(lambda: take_over_dead(run.pk, worker=claimed.run.worker, actor="sweeper"))
    Run.objects.filter(pk=run.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))
    announcing.announce_moved(in_transaction(lambda: schedule.promote_due(actor="another sweeper")))
    dispatched = ready.named_entry(redis, run)

    aftermath.announce_left(broker.client(), left)

    assert ready.named_entry(redis, run) == dispatched
    assert dispatched[1] in [entry_id.decode() for entry_id, _ in redis.xrange(keys.ready("default", "normal"))]
    assert working.log_of(run) == ["1-1", "2-1", "3-1", "4-1"]
