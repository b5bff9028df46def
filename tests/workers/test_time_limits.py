"""Limits in time: which one passes, who asks, and what the sweeper does in the owner's place (protocol 10)."""

import datetime as dt
import time

import pytest
from django.utils import timezone

from quotas.database import in_transaction, later
from quotas.models import LedgerEntry
from quotas.services import lock_account
from runs import broker, limits, ready
from runs.limits import Limit
from runs.models import Attempt, Run
from runs.outcomes import ErrorClass, Failed
from runs.services import cancel_run, claims, end_overdue, overdue
from tests import builders, invariants, working
from tests.at_work import life
from tests.racing import held_open
from workers.duties import Duties
from workers.finaliser import Ending, end_set
from workers.leases import _renew
from workers.models import DeadLetter
from workers.stream import Entry

pytestmark = pytest.mark.django_db(transaction=True)
NOW = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)


def at(seconds):
    return NOW + dt.timedelta(seconds=seconds)


# -- which limit passes ----------------------------------------------------------------------------------------------
def limited(**fields):
    return Run(**({"time_limit_seconds": 60.0, "wall_clock_seconds": 1800.0} | fields))


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({}, (Limit.TIME_LIMIT, at(60))),
        ({"started_at": at(-1750)}, (Limit.WALL_CLOCK, at(50))),
        ({"started_at": at(-1900)}, (Limit.WALL_CLOCK, at(-100))),
        ({"deadline_at": at(40)}, (Limit.DEADLINE, at(40))),
        ({"deadline_at": at(40), "started_at": at(-1790)}, (Limit.WALL_CLOCK, at(10))),
        ({"deadline_at": at(4000)}, (Limit.TIME_LIMIT, at(60))),
    ],
)
def test_the_first_limit_to_pass_bounds_an_attempt(fields, first):
    run = limited(**fields)

    assert limits.first_to_pass(run, NOW) == first
    assert limits.at_claim(run, NOW)["stop_at"] == first[1]
    assert limits.may_begin(run, NOW) == (first[1] > NOW)


@pytest.mark.parametrize(
    ("fields", "passed"),
    [
        ({"stop_at": at(1)}, None),
        ({"stop_at": at(0)}, Limit.TIME_LIMIT),
        ({"stop_at": at(-1), "started_at": at(-1801)}, Limit.WALL_CLOCK),
        ({"stop_at": at(-1), "deadline_at": at(-1)}, Limit.DEADLINE),
        ({"stop_at": at(9), "quiet_at": at(-1)}, Limit.NO_PROGRESS),
        ({"stop_at": at(-5), "quiet_at": at(-1)}, Limit.TIME_LIMIT),
        ({"stop_at": at(-1), "quiet_at": at(-5)}, Limit.NO_PROGRESS),
    ],
)
def test_of_a_running_run_the_limit_that_passed_is_named(fields, passed):
    assert limits.passed(limited(**({"started_at": at(-60)} | fields)), NOW) is passed


# -- the sweeper asks ------------------------------------------------------------------------------------------------
def running(account, cost=0, **fields):
    run = working.submit(account, **fields)
    assert working.consumer(working.config()).take([0])
    working.claim(run)
    Attempt.objects.filter(run=run).update(cost=cost)
    run.refresh_from_db()
    return run


def over(run, limit, seconds=30.0):
    """Let a limit of a running run have passed so long ago, by the database's clock."""
    past = timezone.now() - dt.timedelta(seconds=seconds)
    columns = {"stop_at": past}
    if limit is Limit.NO_PROGRESS:
        columns = {"quiet_at": past, "no_progress_seconds": 5.0}
    elif limit is Limit.DEADLINE:
        columns["deadline_at"] = past
    elif limit is Limit.WALL_CLOCK:
        columns["started_at"] = past - dt.timedelta(seconds=run.wall_clock_seconds)
    Run.objects.filter(pk=run.pk).update(**columns)


def asked(run, seconds=60.0):
    """Let a run have been asked to stop so long ago."""
    over(run, Limit.TIME_LIMIT)
    assert overdue.ask_to_stop() == 1
    Run.objects.filter(pk=run.pk).update(stop_requested_at=later(-seconds))


@pytest.mark.parametrize("limit", Limit)
def test_a_run_whose_time_is_over_is_asked_to_stop_once(account, limit):
    run, other = running(account), running(account)
    over(run, limit)

    assert overdue.ask_to_stop() == 1
    run.refresh_from_db()
    at_first = run.stop_requested_at
    assert (run.state, run.fence, run.stop_requested, at_first is not None) == ("running", 2, limit.value, True)
    assert overdue.ask_to_stop() == 0
    run.refresh_from_db()
    other.refresh_from_db()
    assert (run.stop_requested_at, other.stop_requested) == (at_first, "")


def test_an_owner_has_a_moment_to_stop_it_by_itself_before_it_is_asked(account):
    run = running(account)
    over(run, Limit.TIME_LIMIT, seconds=0.0)

    assert overdue.ask_to_stop() == 0


def test_a_run_that_does_not_run_is_asked_nothing(account):
    for state in ("queued", "scheduled", "succeeded"):
        builders.make_run(state, account=account, stop_at=timezone.now() - dt.timedelta(hours=1))

    assert overdue.ask_to_stop() == 0


def test_what_was_asked_of_one_attempt_is_not_asked_of_the_next(account):
    run = running(account, max_attempts=2)
    asked(run)
    (claimed,) = claims.claimed_by(run.claim_token)

    working.finish(working.finish_of(claimed, Failed(ErrorClass.TIMEOUT, "T", "late", retry_in=0.0)))

    run.refresh_from_db()
    assert (run.state, run.stop_requested, run.stop_requested_at, run.stop_at) == ("queued", "", None, None)
    (again,) = working.claim(run)
    assert again.run.stop_at > timezone.now() + dt.timedelta(seconds=run.time_limit_seconds - 60)


def test_a_beat_says_until_when_a_run_may_be_silent(account):
    run = running(account)
    Run.objects.filter(pk=run.pk).update(no_progress_seconds=30.0, quiet_at=timezone.now())
    (claimed,) = claims.claimed_by(run.claim_token)
    owned = working.owned_run(claimed, Entry("default", "s", "1-1", {}, 1))
    owned.run.no_progress_seconds = 30.0

    left = {}
    for word, spoke_at in (("quiet for 20 s", time.monotonic() - 20), ("quiet for 50 s", time.monotonic() - 50)):
        owned.buffer._spoke_at = spoke_at
        _renew([owned], 15.0)
        left[word] = (Run.objects.get(pk=run.pk).quiet_at - timezone.now()).total_seconds()
    owned.buffer.emit("said", {})
    _renew([owned], 15.0)
    left["spoke"] = (Run.objects.get(pk=run.pk).quiet_at - timezone.now()).total_seconds()

    assert 0 < left["quiet for 20 s"] <= 10
    assert -40 < left["quiet for 50 s"] <= -20
    assert 15 < left["spoke"] <= 30


# -- the sweeper ends it in the owner's place ------------------------------------------------------------------------
def ended_by_sweeper(run, grace=10.0, fence=None):
    left = in_transaction(lambda: end_overdue(run.pk, fence or run.fence, grace_seconds=grace, actor="sweeper"))
    run.refresh_from_db()
    return left


def test_nobody_ends_a_run_before_the_owners_grace_is_over(account):
    run = running(account)
    over(run, Limit.TIME_LIMIT)
    assert ended_by_sweeper(run) is None  # it was not asked
    asked(run, seconds=5)

    assert overdue.ignored(10.0) == []
    assert ended_by_sweeper(run) is None
    assert ended_by_sweeper(run, grace=1.0, fence=run.fence + 1) is None
    assert run.state == "running"
    assert overdue.ignored(1.0) == [(run.pk, run.fence)]


@pytest.mark.parametrize("limit", Limit)
def test_a_run_its_owner_does_not_end_fails_as_its_owner_would_have_ended_it(account, limit, redis):
    run = running(account, cost=40, session="s")
    behind = working.submit(account, session="s", on_busy="enqueue")
    over(run, limit)
    overdue.ask_to_stop()
    Run.objects.filter(pk=run.pk).update(stop_requested_at=later(-600))

    Duties(broker.client(), actor="sweeper", lease=15.0).limits()

    run.refresh_from_db()
    behind.refresh_from_db()
    assert (run.state, run.attempt, run.cost) == ("failed", 1, 40)
    assert (run.error["class"], run.error["type"], run.error["cause"]) == ("timeout", "TimeLimit", "fatal")
    assert run.error["message"] == limits.message_of(limit, run)
    assert (run.claim_token, run.stop_requested, run.stop_requested_at, run.quiet_at) == (None, "", None, None)
    assert (life(run)[-1], run.transitions.get(fence=3).actor) == ("run.failed", "sweeper")
    attempt = run.attempts.get()
    assert (attempt.outcome, attempt.error_class, attempt.ended_at is not None) == ("failed", "timeout", True)
    assert LedgerEntry.objects.get().amount == 40
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_class) == ("fatal", "timeout")
    assert ready.named_entry(redis, run) is None
    assert (behind.state, behind.session_slot is not None) == ("queued", True)
    entry, (claimed,) = working.entry_of(behind), working.claim(behind)
    end_set(broker.client(), [Ending(entry, working.finish_of(claimed, session="s"))])
    invariants.check(account)


def test_an_owner_that_is_late_writes_nothing_any_more(account):
    run = running(account)
    (claimed,) = claims.claimed_by(run.claim_token)
    asked(run)
    assert ended_by_sweeper(run) is not None

    done = working.finish(working.finish_of(claimed, cost=99))

    run.refresh_from_db()
    assert (done.lost, run.state, run.cost) == ([run.pk], "failed", 0)
    invariants.check_money([account])


def test_an_overdue_run_that_was_to_be_cancelled_is_cancelled(account):
    run = running(account)
    cancel_run(run_id=run.pk, actor="tester")
    asked(run)

    left = ended_by_sweeper(run)

    assert (run.state, left.failed, run.error) == ("cancelled", [], None)


@pytest.mark.parametrize(
    ("fields", "attempts", "state", "cause"),
    [
        ({}, 3, "failed", "fatal"),
        ({"retry_on": (ErrorClass.AGENT_BUG,)}, 3, "failed", "fatal"),
        ({"retry_on": (ErrorClass.TIMEOUT,)}, 3, "scheduled", None),
        ({"retry_on": (ErrorClass.TIMEOUT,)}, 1, "failed", "exhausted"),
        ({"retry_on": (ErrorClass.TIMEOUT,), "fatal_on": (ErrorClass.TIMEOUT,)}, 3, "failed", "fatal"),
        ({"policy": "rerun"}, 3, "failed", "fatal"),  # a limit is no crash
    ],
)
def test_a_run_that_is_ended_for_its_owner_is_tried_again_only_where_the_agent_says_so(
    account, fields, attempts, state, cause
):
    with working.registered("test.late", max_attempts=attempts, **fields):
        run = running(account, cost=5, agent="test.late")
        asked(run)

        left = ended_by_sweeper(run)

    assert run.state == state
    assert (run.error or {}).get("cause") == cause
    if state == "scheduled":
        assert (left.moved.row.kind, run.attempt, run.cost, left.failed) == ("run.retrying", 2, 5, [])
        assert LedgerEntry.objects.count() == 0
        cancel_run(run_id=run.pk, actor="tester")
    assert LedgerEntry.objects.get().amount == 5
    invariants.check_money([account])


def test_no_further_attempt_begins_after_the_wall_clock(account):
    with working.registered("test.late", max_attempts=3, retry_on=(ErrorClass.TIMEOUT,)):
        run = running(account, agent="test.late")
        over(run, Limit.WALL_CLOCK)
        overdue.ask_to_stop()
        Run.objects.filter(pk=run.pk).update(stop_requested_at=later(-600))

        ended_by_sweeper(run)

    assert (run.state, run.attempt, run.error["cause"]) == ("failed", 1, "exhausted")


@pytest.mark.row_locks
def test_a_run_whose_account_is_locked_holds_up_no_other(account, other_account):
    locked, free = running(account), running(other_account)
    for run in (locked, free):
        over(run, Limit.TIME_LIMIT)
    overdue.ask_to_stop()
    Run.objects.update(stop_requested_at=later(-600))

    with held_open(lambda: lock_account(account.pk)):
        Duties(broker.client(), actor="sweeper", lease=15.0).limits()

    assert Run.objects.get(pk=free.pk).state == "failed"
    assert Run.objects.get(pk=locked.pk).state == "running"
