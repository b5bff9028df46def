"""Handing on: whoever empties a session's slot starts the next in line, in the same transaction (protocol 4.3, P6)."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.database import in_transaction
from quotas.models import Account, Hold
from runs import broker, ready
from runs.models import Run
from runs.outcomes import ErrorClass, Failed, HandedBack, Interrupted
from runs.services import cancel_run, claims, hand_back, overdue, schedule, take_over, take_over_dead
from runs.services.leaving import Lost
from tests import builders, lines, working
from tests.lines import HOLDS, SLOT, WAITS, finalise, line, place, places
from tests.working import submit
from workers.duties import Duties
from workers.models import DeadLetter


@pytest.fixture(autouse=True)
def one_holder(db):
    """P6 and the money, after every test."""
    yield
    lines.check(Account.objects.all())


def lapse(run):
    """Let a running run's lease be over; returns it as a sweeper saw it."""
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    row = Run.objects.get(pk=run.pk)
    return Lost(row.pk, row.fence, row.lease_expires_at)


def cancel(run):
    cancel_run(run_id=run.pk, actor="tester")


def cancelled_while_running(run):
    (claimed,) = working.claim(run)
    cancel(run)
    return working.finish(working.finish_of(claimed, session="s")).started


def refused(run):
    error = Failed(ErrorClass.POISON, "Poison", "poison", cause="poison")
    return in_transaction(lambda: claims.refuse(run.pk, run.fence, error, actor="tester")).started


def timed_out_in_the_queue(run):
    Run.objects.filter(pk=run.pk).update(waits_until=timezone.now() - dt.timedelta(seconds=5))
    (late,) = overdue.waited_too_long()
    error = overdue.wait_error(late)
    return in_transaction(lambda: claims.refuse(late.pk, late.fence, error, actor="sweeper")).started


def taken_over(run):
    working.claim(run)
    lost = lapse(run)
    return in_transaction(lambda: take_over(lost, actor="sweeper")).started


def taken_over_from_the_dead(run):
    working.claim(run, worker="w1")
    return in_transaction(lambda: take_over_dead(run.pk, worker="w1", actor="supervisor")).started


def without_room_for_its_lapsed_hold(run):
    Hold.objects.filter(run_id=run.pk).update(expires_at=timezone.now() - dt.timedelta(seconds=5))
    submit(run.account)
    limit = Account.objects.get(pk=run.account_id).held
    Account.objects.filter(pk=run.account_id).update(limit=limit)
    return in_transaction(lambda: claims.start_attempt_rearmed(run.pk, run.fence, working.owner())).started


def handed_back_and_cancelled(run):
    (claimed,) = working.claim(run)
    cancel(run)
    return in_transaction(lambda: hand_back(claimed, actor="w1", reason="late")).started


ENDS = {
    "success": finalise,
    "failure": lambda run: finalise(run, Failed(ErrorClass.AGENT_BUG, "E", "boom")),
    "drain": lambda run: finalise(run, Interrupted("drained")),
    "cancel while it waits": cancel,
    "cancel while it runs": cancelled_while_running,
    "refusal": refused,
    "queue wait": timed_out_in_the_queue,
    "takeover": taken_over,
    "takeover of the dead": taken_over_from_the_dead,
    "no room for its hold": without_room_for_its_lapsed_hold,
    "hand-back of a cancelled one": handed_back_and_cancelled,
}


@pytest.mark.django_db
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_whoever_ends_a_run_starts_the_next_in_line_in_the_same_transaction(account, end):
    first, second, third = line(account)

    started = end(first)

    assert place(first)[1:] == (False, False)
    assert first.is_terminal
    assert places(second, third) == [HOLDS, WAITS]
    row = second.transitions.get(fence=2)
    assert (row.kind, second.waits_until is not None) == ("run.queued", True)
    if started is not None:
        assert [(one.run.pk, one.run.state, one.run.fence) for one in started] == [(second.pk, "queued", 2)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "outcome",
    [
        Failed(ErrorClass.AGENT_BUG, "E", "boom", retry_in=30.0),
        Failed(ErrorClass.AGENT_BUG, "E", "boom", retry_in=0.0),
        HandedBack("drained"),
    ],
    ids=["retry later", "retry now", "hand-back"],
)
def test_a_run_that_goes_back_to_wait_keeps_its_slot(account, outcome):
    first, second = line(account, 2, max_attempts=2)

    started = finalise(first, outcome)

    assert started == []
    assert (place(first)[1:], place(second)) == ((True, False), WAITS)


@pytest.mark.django_db
def test_a_run_in_line_that_is_cancelled_leaves_the_others_where_they_are(account):
    first, second, third = line(account)

    cancel(second)

    assert places(first, second, third) == [HOLDS, ("cancelled", False, False), WAITS]
    finalise(first)
    assert place(third) == HOLDS


@pytest.mark.django_db
def test_the_line_moves_in_the_order_in_which_it_was_joined(account):
    runs = line(account, 5)
    order = []

    for _ in runs:
        (holder,) = Run.objects.filter(session_slot=SLOT)
        order.append(holder.pk)
        finalise(holder)

    assert order == [run.pk for run in runs]
    assert [run.session_number for run in runs] == [1, 2, 3, 4, 5]


@pytest.mark.django_db
def test_priority_does_not_overtake_in_a_line(account):
    first, second = line(account, 2)
    urgent = submit(account, session="s", on_busy="enqueue", priority="high")

    finalise(first)

    assert places(second, urgent) == [HOLDS, WAITS]


@pytest.mark.django_db
def test_runs_of_several_sessions_that_end_together_hand_on_each_its_own(account):
    pairs = {name: [submit(account, session=name, on_busy="enqueue") for _ in range(2)] for name in ("s", "t", "u")}
    claims_ = working.claim(*[first for first, _ in pairs.values()])

    done = working.finish(*[working.finish_of(c, session=c.run.session) for c in claims_])

    assert {one.run.pk for one in done.started} == {second.pk for _, second in pairs.values()}
    assert {second.session: place(second) for _, second in pairs.values()} == dict.fromkeys("stu", HOLDS)


@pytest.mark.django_db(transaction=True)
def test_a_successor_is_dispatched_and_can_be_taken_at_once(account, redis):
    first, second = line(account, 2)
    assert working.log_of(second) == ["1-1"]
    assert ready.named_entry(redis, second) is None

    cancel(first)

    assert working.log_of(second) == ["1-1", "2-1"]
    second.refresh_from_db()
    assert ready.named_entry(redis, second) is not None
    (claimed,) = working.claim(second)
    assert claimed.fence == 3


@pytest.mark.django_db
def test_a_run_that_stands_in_line_for_too_long_fails_and_says_so(account):
    first, second, third = line(account)
    timed_out_in_the_queue(second)

    assert place(second)[0] == "failed"
    assert (second.error["class"], second.error["cause"]) == ("queue_timeout", "queue_timeout")
    assert "session s" in second.error["message"]
    assert places(first, third) == [HOLDS, WAITS]


# -- the duty that heals ---------------------------------------------------------------------------------------------
def stall(run):
    """End the holder's hold on the slot without handing on, as a bug or a hand-made UPDATE would."""
    Run.objects.filter(pk=run.pk).update(session_slot=None)


@pytest.mark.django_db(transaction=True)
def test_a_line_whose_slot_is_empty_is_started_by_the_sweeper(account, redis):
    first, second, third = line(account)
    stall(first)
    duties = Duties(broker.client(), actor="sweeper", lease=15.0)

    assert schedule.stalled_sessions() == [(account.pk, SLOT)]
    duties.sessions()
    duties.sessions()

    assert places(second, third) == [HOLDS, WAITS]
    assert ready.named_entry(redis, second) is not None
    assert schedule.stalled_sessions() == []


@pytest.mark.django_db
def test_a_session_whose_slot_is_held_is_not_started_twice(account):
    first, second = line(account, 2)

    assert schedule.stalled_sessions() == []
    assert in_transaction(lambda: schedule.start_blocked(account.pk, SLOT, actor="sweeper")) == []
    assert places(first, second) == [HOLDS, WAITS]


@pytest.mark.django_db
def test_a_stalled_line_whose_first_is_not_due_gives_it_the_slot(account):
    first = submit(account, session="s")
    later = submit(account, session="s", on_busy="enqueue", delay=3600)
    stall(first)

    assert in_transaction(lambda: schedule.start_blocked(account.pk, SLOT, actor="sweeper")) == []

    assert place(later) == ("scheduled", True, False)


@pytest.mark.django_db(transaction=True)
def test_the_queue_wait_duty_buries_the_run_and_starts_the_next(account, redis):
    first, second = line(account, 2)
    Run.objects.filter(pk=first.pk).update(waits_until=timezone.now() - dt.timedelta(seconds=5))

    Duties(broker.client(), actor="sweeper", lease=15.0).queue_wait()

    assert place(first)[0] == "failed"
    letter = DeadLetter.objects.get()
    assert (letter.run_id, letter.reason) == (first.pk, "queue_timeout")
    assert letter.published_at is not None
    assert place(second) == HOLDS
    assert ready.named_entry(redis, second) is not None
    assert ready.named_entry(redis, first) is None
    (claimed,) = working.claim(second)
    assert claimed.run.session == "s"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("agents", "reason"), [(["probe.ret"], "queue_timeout"), (["other"], "unknown_agent"), (None, "queue_timeout")]
)
def test_a_run_that_waited_too_long_says_whether_any_worker_knew_its_agent(account, agents, reason):
    if agents is not None:
        builders.make_worker(agents=agents)
    builders.make_worker(agents=["probe.ret"], stopped_at=timezone.now())
    run = submit(account)
    Run.objects.filter(pk=run.pk).update(waits_until=timezone.now() - dt.timedelta(seconds=5))

    Duties(broker.client(), actor="sweeper", lease=15.0).queue_wait()

    run.refresh_from_db()
    assert (run.state, run.error["cause"], DeadLetter.objects.get().reason) == ("failed", reason, reason)
