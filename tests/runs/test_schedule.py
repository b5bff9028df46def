"""Runs that begin later: delay, start time, deadline, and their promotion by the database's time (protocol 2, 10)."""

import datetime as dt
import threading

import pytest
from django.utils import timezone

from quotas.database import in_transaction, later
from quotas.models import Account, Hold
from runs import broker, errors, keys, ready
from runs.models import Run, Transition
from runs.outcomes import ErrorClass, Failed
from runs.services import cancel_run, schedule
from tests import builders, invariants, working
from tests.racing import held_open, in_parallel
from tests.working import promote, submit
from workers.duties import Duties
from workers.sweeper import Sweeper

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


@pytest.fixture(autouse=True)
def money_is_true(db):
    yield
    invariants.check_money(Account.objects.all())


def refused(account, **fields):
    before = working.rows()
    with pytest.raises(errors.InvalidRequest) as raised:
        submit(account, **fields)
    assert working.new_rows(before) == {}
    return raised.value.facts["field"]


def due(*runs, seconds=1.0):
    """Let the runs have been due for so long, by the database's clock."""
    Run.objects.filter(pk__in=[run.pk for run in runs]).update(not_before=later(-seconds))


def states(*runs):
    found = dict(Run.objects.filter(pk__in=[run.pk for run in runs]).values_list("pk", "state"))
    return [found[run.pk] for run in runs]


# -- submit ----------------------------------------------------------------------------------------------------------
def test_a_delayed_run_is_scheduled_and_holds_its_money_until_it_can_have_ended(account):
    run = submit(account, delay=3600)

    assert (run.state, run.fence, run.attempt, run.waits_until, run.deadline_at) == ("scheduled", 1, 1, None, None)
    assert abs(run.not_before - run.submitted_at - HOUR) < dt.timedelta(milliseconds=1)
    row = run.transitions.get()
    assert (row.kind, row.data["not_before"]) == ("run.scheduled", run.not_before.isoformat())
    counts = 3600 + run.queue_wait_seconds + run.time_limit_seconds + 300
    assert abs((Hold.objects.get().expires_at - run.submitted_at).total_seconds() - counts) < 2
    account.refresh_from_db()
    assert (account.held, account.in_flight) == (1000, 1)


def test_a_start_time_is_taken_in_any_offset(account):
    at = timezone.now() + HOUR
    run = submit(account, start_at=at.astimezone(dt.timezone(dt.timedelta(hours=-8))))

    assert (run.state, run.not_before) == ("scheduled", at)


@pytest.mark.parametrize(
    "fields", [{"delay": 0}, {"delay": None}, {"start_at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, {"start_at": None}]
)
def test_a_time_that_has_come_is_no_delay(account, fields):
    run = submit(account, **fields)

    assert (run.state, run.not_before) == ("queued", None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": 367 * 86400}, "delay"),
        ({"delay": 1, "start_at": dt.datetime(2090, 1, 1, tzinfo=dt.UTC)}, "start_at"),
        ({"start_at": dt.datetime(2090, 1, 1, tzinfo=dt.UTC)}, "start_at"),
        ({"start_at": dt.datetime(2090, 1, 1)}, "start_at"),  # noqa: DTZ001  that is what is refused
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"deadline_seconds": -5}, "deadline_seconds"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds"),
        ({"deadline_seconds": 367 * 86400}, "deadline_seconds"),
        ({"deadline_seconds": 60, "delay": 60}, "deadline_seconds"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1001}, "max_attempts"),
        ({"on_lost": "panic"}, "on_lost"),
    ],
    ids=str,
)
def test_a_time_that_cannot_be_is_refused_by_its_field(account, fields, field):
    assert refused(account, **fields) == field


@pytest.mark.parametrize("fields", [{"max_attempts": 2}, {"on_lost": "rerun"}, {"time_limit": 5}])
def test_what_an_agent_does_not_allow_is_refused(account, fields):
    with working.registered("test.strict"):
        assert refused(account, agent="test.strict", **fields) == next(iter(fields))


def test_a_run_gets_the_limits_and_policies_of_its_agent_or_its_submit(account):
    limits = {"wall_clock_seconds": 99.0, "no_progress_seconds": 7.0, "queue_wait_seconds": 55.0}
    with working.registered("test.own", policy="rerun", allow=frozenset({"on_lost", "max_attempts"}), **limits):
        plain = submit(account, agent="test.own")
        chosen = submit(account, agent="test.own", on_lost="interrupt", max_attempts=9)
        once = submit(account, agent="test.own", on_lost="interrupt")

    assert {name: getattr(plain, name) for name in limits} == limits
    assert [(run.on_lost, run.max_attempts) for run in (plain, chosen, once)] == [
        ("rerun", 3), ("interrupt", 9), ("interrupt", 1),
    ]  # fmt: skip


def test_a_deadline_ends_the_queue_wait_where_it_comes_first(account):
    near, far = submit(account, deadline_seconds=60), submit(account, deadline_seconds=9000)

    assert near.waits_until == near.deadline_at == near.submitted_at + dt.timedelta(seconds=60)
    assert far.waits_until == far.submitted_at + dt.timedelta(seconds=far.queue_wait_seconds)
    delayed = submit(account, deadline_seconds=60, delay=30)
    assert delayed.waits_until == delayed.deadline_at


@pytest.mark.django_db(transaction=True)
def test_a_delayed_run_is_announced_and_not_dispatched(account, redis):
    run = submit(account, delay=3600)

    assert working.log_of(run) == ["1-1"]
    assert ready.named_entry(redis, run) is None
    assert redis.xlen(keys.ready("default", "normal")) == 0


# -- promotion -------------------------------------------------------------------------------------------------------
def test_what_is_due_and_not_blocked_is_queued(account):
    ready_, early, blocked = submit(account, delay=3600), submit(account, delay=3600), submit(account, delay=3600)
    due(ready_, blocked)
    Run.objects.filter(pk=blocked.pk).update(blocked_by_session="x")
    queued, running = submit(account), submit(account)
    working.claim(running)
    due(queued, running)

    (moved,) = promote()

    assert states(ready_, early, blocked, queued, running) == [
        "queued", "scheduled", "scheduled", "queued", "running",
    ]  # fmt: skip
    ready_.refresh_from_db()
    assert (ready_.fence, ready_.not_before, ready_.attempt) == (2, None, 1)
    assert ready_.waits_until - timezone.now() > dt.timedelta(seconds=ready_.queue_wait_seconds - 60)
    assert ready_.queued_at > ready_.submitted_at
    assert (moved.run.pk, moved.run.state, moved.row.kind, moved.row.actor) == (
        ready_.pk, "queued", "run.queued", "sweeper",
    )  # fmt: skip
    assert promote() == []
    Run.objects.filter(pk=blocked.pk).update(blocked_by_session=None)


def test_a_promotion_is_made_by_the_databases_clock(account, monkeypatch):
    """F69: a worker whose clock is ten minutes wrong promotes nothing early and nothing late."""
    early, late = submit(account, delay=300), submit(account, delay=300)
    due(late)

    for minutes in (10, -10):
        wrong = timezone.now() + dt.timedelta(minutes=minutes)
        monkeypatch.setattr(timezone, "now", lambda wrong=wrong: wrong)
        promote()

    assert states(early, late) == ["scheduled", "queued"]
    run = Run.objects.get(pk=late.pk)
    assert dt.timedelta(0) <= run.transitions.get(fence=2).at - run.transitions.get(fence=1).at < HOUR


def test_a_promoted_run_keeps_to_its_deadline(account):
    run = submit(account, delay=30, deadline_seconds=600)
    due(run)

    promote()

    run.refresh_from_db()
    assert run.waits_until == run.deadline_at


def test_a_pass_is_a_page_the_longest_due_first(account):
    runs = [builders.make_run("scheduled", account=account) for _ in range(5)]
    for number, run in enumerate(runs):
        due(run, seconds=10 + number)

    moved = [one.run.pk for _ in range(3) for one in schedule_page(2)]

    assert [set(moved[:2]), set(moved[2:4]), set(moved[4:])] == [
        {runs[4].pk, runs[3].pk}, {runs[2].pk, runs[1].pk}, {runs[0].pk},
    ]  # fmt: skip
    assert states(*runs) == ["queued"] * 5


def schedule_page(limit):
    return in_transaction(lambda: schedule.promote_due(actor="sweeper", limit=limit))


@pytest.mark.django_db(transaction=True)
def test_one_pass_of_the_duty_promotes_more_than_a_page_and_dispatches_all(account, redis):
    Account.objects.filter(pk=account.pk).update(max_in_flight=1000)
    runs = [builders.make_run("scheduled", account=account) for _ in range(schedule.PAGE + 30)]
    due(*runs)

    Duties(broker.client(), actor="sweeper", lease=15.0).promote()

    assert set(states(*runs)) == {"queued"}
    assert redis.xlen(keys.ready("default", "normal")) == len(runs)
    assert redis.hlen(keys.index("default")) == len(runs)


@pytest.mark.django_db(transaction=True)
@pytest.mark.race
def test_of_several_sweepers_one_promotes_each_run(account):
    runs = [submit(account, delay=3600) for _ in range(12)]
    due(*runs)

    found = in_parallel(*[promote] * 4)

    assert sorted(one.run.pk for moved in found for one in moved) == sorted(run.pk for run in runs)
    assert set(states(*runs)) == {"queued"}
    assert Transition.objects.filter(kind="run.queued").count() == 12


@pytest.mark.django_db(transaction=True)
@pytest.mark.race
@pytest.mark.parametrize("turn", range(3))
def test_a_promotion_and_a_cancel_agree_on_who_was_first(account, turn):
    run = submit(account, delay=3600)
    due(run)

    promoted, verdict = in_parallel(promote, lambda: cancel_run(run_id=run.pk, actor="tester").what)

    run.refresh_from_db()
    assert (run.state, verdict) == ("cancelled", "cancelled")
    assert (run.transitions.count(), run.not_before) == (2 + len(promoted), None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.row_locks
def test_a_run_that_was_cancelled_while_a_promotion_waited_for_it_stays_cancelled(account):
    run = submit(account, delay=3600)
    due(run)

    def cancel():
        cancel_run(run_id=run.pk, actor="tester")

    found = []
    with held_open(cancel) as commit:
        thread = threading.Thread(target=lambda: found.extend(in_parallel(promote)))
        thread.start()
        commit()
        thread.join(60)

    assert found == [[]]
    assert states(run) == ["cancelled"]


# -- when the sweeper looks again ------------------------------------------------------------------------------------
def test_the_sweeper_knows_when_the_next_run_is_due(account):
    assert schedule.seconds_to_next() is None
    soon, blocked = submit(account, delay=60), submit(account, delay=1)
    submit(account, delay=600)
    Run.objects.filter(pk=blocked.pk).update(blocked_by_session="x")

    assert 30 < schedule.seconds_to_next() <= 60
    due(soon, seconds=5)
    assert -60 < schedule.seconds_to_next() <= -4
    promote()
    assert 500 < schedule.seconds_to_next() <= 600
    Run.objects.filter(pk=blocked.pk).update(blocked_by_session=None)


def test_the_sweeper_looks_again_when_a_run_is_due_and_not_at_its_next_turn_only(account):
    sweeper = Sweeper(working.config(sweep=100.0), broker.client())
    sweeper.run_once()
    assert 80 <= sweeper._pause() <= 120

    submit(account, delay=20)

    assert 0 < sweeper._pause() <= 20


# -- Redis is not needed ---------------------------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_ten_runs_in_their_back_off_come_back_at_their_time_although_redis_was_emptied(account, own_redis, redis):
    """F24: the schedule is in the database."""
    runs = [submit(account, max_attempts=2) for _ in range(10)]
    failed = Failed(ErrorClass.PROVIDER_TRANSIENT, "E", "later", retry_in=30.0)
    working.finish(*[working.finish_of(claimed, failed) for claimed in working.claim(*runs)])
    redis.flushall()
    sweeper = Sweeper(working.config(), broker.client())

    sweeper.run_once()
    assert states(*runs) == ["scheduled"] * 10
    due(*runs)
    sweeper.run_once()

    assert states(*runs) == ["queued"] * 10
    entries = working.consumer(working.config()).take(range(16))
    assert len(entries) == 10
    for run in runs:
        run.refresh_from_db()
        assert run.attempt == 2
        ready_at = run.transitions.get(kind="run.queued", fence=run.fence).at
        assert ready_at - run.transitions.get(kind="run.retrying").at < dt.timedelta(seconds=60)


@pytest.mark.django_db(transaction=True)
def test_promotion_goes_on_without_redis_and_the_relay_brings_the_entries(account, own_redis):
    run = submit(account, delay=3600)
    due(run)
    own_redis.kill()

    Duties(broker.client(), actor="sweeper", lease=15.0).promote()

    assert states(run) == ["queued"]


# -- claim of what was scheduled -------------------------------------------------------------------------------------
def test_a_scheduled_run_cannot_be_claimed(account):
    run = submit(account, delay=3600)

    assert working.try_claim(run).won == []
    assert states(run) == ["scheduled"]


def test_a_cancelled_scheduled_run_is_over_at_once(account):
    run = submit(account, delay=3600)

    assert cancel_run(run_id=run.pk, actor="tester").what == "cancelled"

    run.refresh_from_db()
    assert (run.state, run.not_before, run.waits_until) == ("cancelled", None, None)
    assert Hold.objects.get().state == "released"


def test_a_start_time_is_stored_to_the_microsecond(account):
    at = timezone.now().replace(microsecond=123456) + HOUR
    run = submit(account, start_at=at)

    assert Run.objects.get(pk=run.pk).not_before == at
