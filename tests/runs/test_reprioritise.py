"""Change of priority of a run that waits: another stream, a fence of its own, nothing twice (protocol 5.3)."""

import datetime as dt

import pytest
from django.utils import timezone
from redis.exceptions import RedisError

from quotas.models import Account, AuditEntry
from runs import broker, errors, keys, ready
from runs.ids import new_run_id
from runs.models import Run
from runs.reader import read_events
from runs.services import cancel_run, reprioritise
from tests import builders, crowds, invariants, working
from tests.desk import Desk
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db(transaction=True)


def lengths(redis):
    """Return how many entries each priority's stream has, empty ones left out."""
    found = {name: redis.xlen(keys.ready("default", name)) for name in keys.PRIORITIES}
    return {name: length for name, length in found.items() if length}


def test_a_queued_run_moves_to_the_stream_of_its_new_priority(account, redis):
    run = working.submit(account, session="s")
    before = Run.objects.get(pk=run.pk)

    changed = reprioritise(run.pk, "high", "alice", reason="urgent", request_id="r1")

    run.refresh_from_db()
    assert (changed.priority, run.priority, run.state, run.fence) == ("high", "high", "queued", 2)
    assert (run.queued_at, run.waits_until, run.session_slot) == (
        before.queued_at,
        before.waits_until,
        before.session_slot,
    )
    assert lengths(redis) == {"high": 1}
    assert ready.named_entry(redis, run)[0] == keys.ready("default", "high")
    last = run.transitions.get(fence=2)
    assert (last.kind, last.actor) == ("run.queued", "alice")
    assert last.data == {"priority": "high", "from": "normal", "reason": "urgent"}
    entry = AuditEntry.objects.get(action="run.reprioritise")
    assert (entry.before, entry.after) == ({"priority": "normal"}, {"priority": "high"})
    assert (entry.reason, entry.request_id, entry.target_id) == ("urgent", "r1", str(run.pk))
    assert [event["id"] for event in read_events(run.pk).events] == ["1-1", "2-1"]


def test_the_moved_run_is_claimed_by_its_new_entry_and_leaves_nothing(account, redis):
    runs = [working.submit(account) for _ in range(3)]
    reprioritise(runs[2].pk, "high", "alice")

    desk = Desk()
    handled = desk.handle()

    assert handled.started[0].claimed.run.pk == runs[2].pk
    assert {one.claimed.run.pk for one in handled.started} == {run.pk for run in runs}
    assert sum(redis.xlen(name) for name in keys.ready_streams("default")) == 3
    assert redis.hlen(keys.index("default")) == 3


def test_an_entry_that_a_worker_was_given_is_nobodys_any_more(account, redis):
    run = working.submit(account)
    desk = Desk()  # it has taken the entry, and not claimed it

    reprioritise(run.pk, "low", "alice")
    assert desk.handle().started == []

    again = Desk().handle()
    assert [one.claimed.fence for one in again.started] == [3]
    assert lengths(redis) == {"low": 1}


def test_a_parked_run_leaves_its_waiting_set_and_takes_its_turn_anew(account, redis):
    with crowds.limited_agents(redis):
        desk = crowds.Desk()
        runs = crowds.submitted(account, 4)
        desk.turn()
        reprioritise(runs[3].pk, "high", "alice")
        assert crowds.parked(redis) == crowds.names(runs[2:3])
        desk.turn()
        assert crowds.parked(redis) == crowds.names([runs[3], runs[2]])

        desk.end(runs[0].pk)
        assert desk.turn() == [runs[3].pk]


def test_a_scheduled_run_changes_its_column_and_is_promoted_into_the_new_stream(account, redis):
    run = working.submit(account, delay=3600)

    reprioritise(run.pk, "high", "alice")
    run.refresh_from_db()
    assert (run.state, run.priority, run.fence) == ("scheduled", "high", 1)
    assert lengths(redis) == {}

    Run.objects.filter(pk=run.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))
    Sweeper(working.config(), broker.client()).run_once()
    assert lengths(redis) == {"high": 1}


def test_without_redis_the_sweeper_brings_the_entry_later(account, own_redis):
    run = working.submit(account)
    own_redis.kill()
    reprioritise(run.pk, "high", "alice")
    run.refresh_from_db()
    assert (run.priority, run.fence) == ("high", 2)
    with pytest.raises(RedisError):
        broker.client().ping()
    own_redis.start()
    broker.reset()

    Sweeper(working.config(), broker.client()).run_once()

    assert ready.named_entry(broker.client(), run)[0] == keys.ready("default", "high")
    handled = Desk().handle()
    assert [one.claimed.fence for one in handled.started] == [3]


def test_the_same_priority_again_changes_nothing(account):
    run = working.submit(account)
    reprioritise(run.pk, "high", "alice")
    rows = working.rows()

    assert reprioritise(run.pk, "high", "alice").fence == 2
    assert working.rows() == rows


@pytest.mark.parametrize("state", ["running", "succeeded", "failed", "cancelled", "interrupted"])
def test_a_run_that_does_not_wait_is_refused(account, state):
    run = builders.make_run(state, account=account)

    with pytest.raises(errors.NotWaiting) as refused:
        reprioritise(run.pk, "high", "alice")
    assert refused.value.facts == {"run": str(run.pk), "state": state}
    assert AuditEntry.objects.count() == 0


def test_the_account_bounds_the_priority_and_the_words_are_known(account):
    Account.objects.filter(pk=account.pk).update(max_priority="normal")
    run = working.submit(account)

    with pytest.raises(errors.PriorityTooHigh):
        reprioritise(run.pk, "high", "alice")
    with pytest.raises(errors.InvalidRequest):
        reprioritise(run.pk, "urgent", "alice")
    with pytest.raises(errors.NoSuchRun):
        reprioritise(new_run_id(), "low", "alice")
    assert AuditEntry.objects.count() == 0


def test_cancel_after_a_change_leaves_no_entry_that_starts(account):
    run = working.submit(account)
    reprioritise(run.pk, "high", "alice")
    cancel_run(run_id=run.pk, actor="tester")

    assert Desk().handle().started == []
    invariants.check_money([account])
