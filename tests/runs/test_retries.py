"""Attempts: counted, spaced, bounded in number and time, paid once (protocol 2, 8.3; money 3-5)."""

import datetime as dt
import random

import pytest
from django.utils import timezone

from quotas.models import Account, Hold, LedgerEntry
from runs.models import Run
from runs.outcomes import ErrorClass, Failed, Succeeded
from runs.retry import Backoff
from runs.services import cancel_run
from runs.services.attempts import add_usage
from tests import invariants, working
from workers import dead_letters
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def money_is_true(db):
    yield
    invariants.check_money(Account.objects.all())


def boom(retry_in=5.0, error_class=ErrorClass.AGENT_BUG, **fields):
    return Failed(error_class, "RuntimeError", "boom", **({"retry_in": retry_in} | fields))


def submitted(account, attempts=3, **fields):
    return working.submit(account, max_attempts=attempts, **fields)


def ended(claimed, outcome=None, **fields):
    """End a claimed run's attempt; bury what failed for good, as the finaliser does. Returns what it did."""
    done = working.finish(working.finish_of(claimed, outcome, **fields))
    dead_letters.bury(done.failed)
    return done


def again(run):
    """Let a retried run's time come, and claim it. Returns the claim."""
    run.refresh_from_db()
    if run.state == "scheduled":
        Run.objects.filter(pk=run.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))
        working.promote()
        run.refresh_from_db()
    return working.claim(run)[0]


# -- back to wait ----------------------------------------------------------------------------------------------------
def test_a_failed_attempt_is_scheduled_for_the_next_one(account):
    run = submitted(account, session="s")
    (claimed,) = working.claim(run)
    before = timezone.now()

    done = ended(claimed, boom(retry_in=30.0), cost=7, last_seq=4)

    run.refresh_from_db()
    (moved,) = done.moved
    assert (run.state, run.attempt, run.fence, run.claim_token, run.stop_at) == ("scheduled", 2, 3, None, None)
    assert dt.timedelta(seconds=28) < run.not_before - before < dt.timedelta(seconds=60)
    assert (run.error, run.error_class, run.finished_at, run.waits_until) == (None, "", None, None)
    assert run.session_slot is not None  # its session is its own until it ends
    assert (moved.run.state, moved.row.kind, moved.row.prev) == ("scheduled", "run.retrying", "2-4")
    said = moved.row.data
    assert (said["attempt"], said["of"], said["cost"], said["not_before"]) == (2, 3, 7, run.not_before.isoformat())
    assert (said["error"]["class"], said["error"]["message"], said["error"]["cause"]) == ("agent_bug", "boom", "")
    attempt = run.attempts.get()
    assert (attempt.number, attempt.outcome, attempt.error_class, attempt.cost) == (1, "failed", "agent_bug", 7)
    assert attempt.ended_at is not None
    assert (done.failed, DeadLetter.objects.count()) == ([], 0)


def test_a_retry_at_once_is_queued_again(account):
    run = submitted(account)
    (claimed,) = working.claim(run)

    (moved,) = ended(claimed, boom(retry_in=0.0)).moved

    run.refresh_from_db()
    assert (run.state, run.attempt, run.not_before, moved.row.kind) == ("queued", 2, None, "run.retrying")
    assert run.waits_until > timezone.now() + dt.timedelta(seconds=run.queue_wait_seconds - 60)
    assert run.queued_at > run.submitted_at
    assert working.claim(run)[0].run.attempt == 2


def test_a_retried_run_keeps_its_priority_and_its_first_start(account):
    run = submitted(account, priority="high")
    claimed = working.claim(run)[0]
    ended(claimed, boom())

    second = again(run)

    assert (second.run.priority, second.run.attempt, second.run.started_at) == ("high", 2, claimed.run.started_at)
    assert (claimed.begun_before, second.begun_before) == (False, True)
    assert list(run.attempts.order_by("fence").values_list("fence", "number")) == [(2, 1), (5, 2)]


def test_the_last_attempt_fails_for_good_as_exhausted(account):
    run = submitted(account, attempts=3)
    for _ in range(2):
        assert ended(again(run), boom(), cost=5).failed == []

    done = ended(again(run), boom(), cost=5)

    run.refresh_from_db()
    assert (run.state, run.attempt, run.error["cause"], run.cost) == ("failed", 3, "exhausted", 15)
    assert [failed.pk for failed in done.failed] == [run.pk]
    letter = DeadLetter.objects.get()
    assert (letter.run_id, letter.reason, letter.error_class, letter.message) == (
        run.pk, "exhausted", "agent_bug", "boom",
    )  # fmt: skip
    assert [attempt.number for attempt in run.attempts.order_by("fence")] == [1, 2, 3]


def test_what_is_not_to_be_tried_again_fails_as_fatal_with_attempts_left(account):
    run = submitted(account, attempts=3)

    ended(again(run), boom(retry_in=None))

    run.refresh_from_db()
    assert (run.state, run.attempt, run.error["cause"]) == ("failed", 1, "fatal")
    assert DeadLetter.objects.get().reason == "fatal"


def test_runs_of_one_set_go_each_its_own_way(account):
    good, again_, later, over, cancelled = runs = [submitted(account, attempts=2) for _ in range(5)]
    claims = working.claim(*runs)
    cancel_run(run_id=cancelled.pk, actor="tester")
    outcomes = [Succeeded("1"), boom(0.0), boom(9.0), boom(None), boom(9.0)]

    done = working.finish(*[working.finish_of(c, o, cost=1) for c, o in zip(claims, outcomes, strict=True)])

    states = {run.pk: Run.objects.get(pk=run.pk).state for run in runs}
    assert [states[run.pk] for run in (good, again_, later, over, cancelled)] == [
        "succeeded", "queued", "scheduled", "failed", "cancelled",
    ]  # fmt: skip
    assert {one.run.pk: one.run.state for one in done.moved} == states
    assert ([failed.pk for failed in done.failed], done.lost) == ([over.pk], [])
    assert LedgerEntry.objects.count() == 3


# -- money -----------------------------------------------------------------------------------------------------------
def test_cost_adds_up_over_attempts_and_is_settled_once(account):
    run = submitted(account)
    for cost, usage in ((3, {"m": {"input": 1}}), (4, {"m": {"input": 2, "output": 5}})):
        ended(again(run), boom(), cost=cost, usage=usage)
        assert LedgerEntry.objects.count() == 0
        assert Hold.objects.get().state == "active"

    ended(again(run), cost=5, usage={"n": {"input": 9}})

    run.refresh_from_db()
    assert (run.state, run.cost) == ("succeeded", 12)
    assert run.usage == {"m": {"input": 3, "output": 5}, "n": {"input": 9}}
    assert list(run.attempts.order_by("fence").values_list("cost", flat=True)) == [3, 4, 5]
    assert LedgerEntry.objects.get().amount == 12


def test_the_hold_lapses_anew_from_when_the_next_attempt_may_begin(account):
    run = submitted(account)
    (claimed,) = working.claim(run)
    assert Hold.objects.get().expires_at is None

    ended(claimed, boom(retry_in=900.0))

    run.refresh_from_db()
    counts = run.queue_wait_seconds + run.time_limit_seconds + 300
    assert abs((Hold.objects.get().expires_at - run.not_before).total_seconds() - counts) < 60
    again(run)
    assert Hold.objects.get().expires_at is None


def test_a_run_that_is_cancelled_between_two_attempts_is_settled_at_what_it_cost(account):
    run = submitted(account)
    ended(again(run), boom(), cost=7)

    cancel_run(run_id=run.pk, actor="tester")

    run.refresh_from_db()
    assert (run.state, run.cost, run.not_before) == ("cancelled", 7, None)
    assert LedgerEntry.objects.get().amount == 7


def test_usage_is_added_by_model_and_kind_and_leaves_what_it_adds_to_alone():
    before = {"m": {"input": 1}}

    assert add_usage(before, {"m": {"input": 2, "output": 1}, "n": {}}) == {"m": {"input": 3, "output": 1}}
    assert before == {"m": {"input": 1}}


# -- what wins over a retry ------------------------------------------------------------------------------------------
def test_a_cancel_mark_wins_over_a_retry(account):
    run = submitted(account)
    (claimed,) = working.claim(run)
    cancel_run(run_id=run.pk, actor="tester")

    done = ended(claimed, boom(partial_json='"part"'), cost=7)

    run.refresh_from_db()
    assert (run.state, run.attempt, run.error, run.cost) == ("cancelled", 1, None, 7)
    assert run.transitions.get(fence=3).data["after"] == "failed"
    attempt = run.attempts.get()
    assert (attempt.outcome, attempt.result_json, attempt.error["message"]) == ("failed", '"part"', "boom")
    assert (done.failed, LedgerEntry.objects.get().amount) == ([], 7)


@pytest.mark.parametrize("limit", ["wall_clock", "deadline"])
def test_no_attempt_begins_that_has_no_time_left(account, limit):
    run = submitted(account)
    (claimed,) = working.claim(run)
    if limit == "wall_clock":
        Run.objects.filter(pk=run.pk).update(started_at=timezone.now() - dt.timedelta(seconds=run.wall_clock_seconds))
    else:
        Run.objects.filter(pk=run.pk).update(deadline_at=timezone.now() + dt.timedelta(seconds=4))

    ended(claimed, boom(retry_in=5.0))

    run.refresh_from_db()
    assert (run.state, run.attempt, run.error["cause"]) == ("failed", 1, "exhausted")


def test_an_attempt_that_begins_before_the_end_gets_the_time_that_is_left(account):
    run = submitted(account, deadline_seconds=3600)
    ended(again(run), boom())
    begun = timezone.now() - dt.timedelta(seconds=run.wall_clock_seconds - 60)
    Run.objects.filter(pk=run.pk).update(started_at=begun)

    stop_at = again(run).run.stop_at

    assert dt.timedelta(seconds=30) < stop_at - timezone.now() <= dt.timedelta(seconds=60)


def test_a_run_that_waits_for_its_next_attempt_fails_at_its_deadline(account):
    run = submitted(account, deadline_seconds=3600)
    ended(again(run), boom(retry_in=60.0))

    run.refresh_from_db()
    assert run.waits_until == run.deadline_at


# -- bad output ------------------------------------------------------------------------------------------------------
def test_a_bad_output_is_kept_on_its_attempt_and_the_last_one_with_the_dead_letter(account):
    run = submitted(account, attempts=2)
    bad = [boom(error_class=ErrorClass.BAD_OUTPUT, partial_json=f'"answer {n}"') for n in (1, 2)]

    ended(again(run), bad[0])
    run.refresh_from_db()
    assert (run.state, run.result) == ("scheduled", None)
    ended(again(run), bad[1])

    kept = list(run.attempts.order_by("fence").values_list("result_json", "error_class"))
    assert kept == [('"answer 1"', "bad_output"), ('"answer 2"', "bad_output")]
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.error_class, letter.run.result) == ("exhausted", "bad_output", "answer 2")


def test_a_good_output_after_a_bad_one_is_the_result(account):
    run = submitted(account, attempts=2)
    ended(again(run), boom(error_class=ErrorClass.BAD_OUTPUT, partial_json='"bad"'))

    ended(again(run), Succeeded('"good"'))

    run.refresh_from_db()
    assert (run.state, run.result, run.error) == ("succeeded", "good", None)


# -- the delay -------------------------------------------------------------------------------------------------------
def test_the_delay_grows_to_its_cap_with_full_jitter():
    backoff = Backoff(base=5.0, cap=300.0)

    for attempt, most in ((1, 5.0), (2, 10.0), (3, 20.0), (7, 300.0), (20, 300.0)):
        delays = [backoff.delay(attempt) for _ in range(500)]
        assert 0 <= min(delays) < most / 10
        assert most * 0.9 < max(delays) <= most


@pytest.mark.parametrize("attempt", [1, 63, 64, 1024, 1100, 10**6])
def test_no_number_of_attempts_is_too_large_for_the_delay(attempt):
    """F29: the power of a four-digit attempt is no float any more."""
    assert 0 <= Backoff(cap=300.0).delay(attempt) <= 300.0


def test_attempt_1100_of_2000_is_retried_within_the_cap(account):
    """F29: the row's own numbers."""
    run = submitted(account, attempts=1000)
    Run.objects.filter(pk=run.pk).update(attempt=1100, max_attempts=2000)
    (claimed,) = working.claim(run)

    ended(claimed, boom(retry_in=Backoff().delay(claimed.run.attempt)))

    run.refresh_from_db()
    assert (run.state, run.attempt) == ("scheduled", 1101)
    assert run.not_before <= timezone.now() + dt.timedelta(seconds=300)


@pytest.mark.parametrize(
    ("after", "delay"), [(0, 0.0), (7, 7.0), (-3, 0.0), (float("nan"), 0.0), (1e300, 86400.0), (float("inf"), 86400.0)]
)
def test_what_a_provider_says_about_the_delay_counts_within_reason(after, delay):
    assert Backoff().delay(1, after) == delay


@pytest.mark.parametrize(("base", "cap"), [(-1, 5), (5, -1), (float("nan"), 5), (5, float("inf"))])
def test_a_back_off_that_is_no_time_is_refused(base, cap):
    with pytest.raises(ValueError, match="Back-off takes"):
        Backoff(base, cap)


@pytest.mark.django_db(transaction=True)
def test_two_hundred_runs_that_fail_together_do_not_come_back_together(account):
    """F71: retry times are spread over at least half of the delay."""
    Account.objects.filter(pk=account.pk).update(max_in_flight=1000)
    random.seed(71)
    backoff = Backoff(base=60.0, cap=60.0)
    runs = [submitted(account, attempts=2) for _ in range(200)]
    for page in range(0, 200, 50):
        claims = working.claim(*runs[page : page + 50])
        working.finish(*[working.finish_of(claimed, boom(backoff.delay(1))) for claimed in claims])

    rows = Run.objects.filter(state="scheduled").values_list("not_before", "attempts__ended_at")
    delays = sorted((at - ended_at).total_seconds() for at, ended_at in rows)

    assert len(delays) == 200
    assert delays[-1] - delays[0] > 30
    busiest = max(sum(at <= other < at + 1 for other in delays) for at in delays)
    assert busiest < 20
    for run in runs:
        cancel_run(run_id=run.pk, actor="tester")
