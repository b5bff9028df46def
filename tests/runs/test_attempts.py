"""Claim, finalise, hand back and takeover as set operations on rows (protocol 6, 8, 9). No Redis in here."""

import dataclasses
import datetime as dt

import pytest
from django.utils import timezone

from quotas.database import in_transaction
from quotas.models import Account, Hold, LedgerEntry
from quotas.prices import set_price
from runs.models import Attempt, Run, Transition
from runs.outcomes import Cancelled, ErrorClass, Failed, Interrupted, Succeeded
from runs.services import cancel_run, claims, hand_back, take_over
from runs.services.leaving import Lost
from runs.services.moves import Left
from tests import invariants, working
from workers import dead_letters
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db
FAILED = Failed(ErrorClass.AGENT_BUG, "RuntimeError", "boom ä", "trace", partial_json='"part"')


@pytest.fixture(autouse=True)
def money_is_true(db):
    yield
    invariants.check_money(Account.objects.all())


def submitted(account, count=1, **fields):
    return [working.submit(account, **fields) for _ in range(count)]


def lapse_lease(run):
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    return Lost(run.pk, run.fence, Run.objects.get(pk=run.pk).lease_expires_at)


def lapse_hold(run):
    Hold.objects.filter(run_id=run.pk).update(expires_at=timezone.now() - dt.timedelta(seconds=5))


# -- claim -----------------------------------------------------------------------------------------------------------
def test_a_claim_makes_the_runs_the_workers_own(account):
    runs = submitted(account, 3)

    won = working.claim(*runs, worker="w7", lease=30)

    assert len({claimed.token for claimed in won}) == 1
    for run, claimed in zip(runs, won, strict=True):
        run.refresh_from_db()
        assert (run.state, run.fence, run.worker, run.claim_token) == ("running", 2, "w7", claimed.token)
        left = run.lease_expires_at - timezone.now()
        assert dt.timedelta(seconds=25) < left < dt.timedelta(seconds=31)
        assert run.started_at is not None
        assert (claimed.run.input, claimed.fence, claimed.started.kind) == ({}, 2, "run.started")
        attempt = run.attempts.get()
        assert (attempt.fence, attempt.number, attempt.worker, attempt.outcome) == (2, 1, "w7", "")
        assert Hold.objects.get(run_id=run.pk).expires_at is None
    assert [claimed.run.pk for claimed in claims.claimed_by(won[0].token)] == sorted(run.pk for run in runs)


def test_a_claim_takes_only_what_is_queued_at_that_fence_for_a_known_agent(account):
    good, moved, running, ended, foreign = submitted(account, 5)
    Run.objects.filter(pk=moved.pk).update(fence=5)
    working.claim(running, worker="other")
    cancel_run(run_id=ended.pk, actor="tester")
    Run.objects.filter(pk=foreign.pk).update(agent="not.known")
    before = working.rows()

    found = working.try_claim(good, moved, running, ended, foreign)

    assert [claimed.run.pk for claimed in found.won] == [good.pk]
    assert (found.unheld, set(found.seen)) == ([], {run.pk for run in (good, moved, running, ended, foreign)})
    assert working.new_rows(before) == {"Transition": 1, "Attempt": 1}
    Transition.objects.filter(run=moved).update(fence=5)


def test_runs_whose_hold_lapsed_leave_the_set(account):
    good, lapsed = submitted(account, 2)
    lapse_hold(lapsed)
    working.submit(account)  # the submit that moves the lapsed hold to expired

    found = working.try_claim(good, lapsed)

    assert ([claimed.run.pk for claimed in found.won], found.unheld) == ([good.pk], [lapsed.pk])
    assert Run.objects.get(pk=lapsed.pk).state == "queued"


def rearmed(run):
    return in_transaction(lambda: claims.start_attempt_rearmed(run.pk, run.fence, working.owner()))


def test_a_run_whose_hold_lapsed_is_claimed_alone_with_its_hold_armed_again(account):
    (run,) = submitted(account)
    lapse_hold(run)
    working.submit(account)

    claimed = rearmed(run)

    assert claimed.run.pk == run.pk
    hold = Hold.objects.get(run_id=run.pk)
    assert (hold.state, hold.expires_at) == ("active", None)
    assert rearmed(run) is None


def test_a_run_whose_hold_lapsed_fails_where_there_is_no_room_any_more(account):
    (run,) = submitted(account)
    lapse_hold(run)
    Account.objects.filter(pk=account.pk).update(limit=1500)
    working.submit(account)

    refused = rearmed(run)

    run.refresh_from_db()
    assert isinstance(refused, Left)
    assert [failed.pk for failed in refused.failed] == [run.pk]
    assert (run.state, run.error_class, run.attempts.count()) == ("failed", "quota_exceeded", 0)
    assert Hold.objects.get(run_id=run.pk).state == "released"
    assert LedgerEntry.objects.count() == 0


# -- finalise --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("outcome", "state", "attempt", "error_class", "result"),
    [
        (Succeeded('{"a":"ä"}'), "succeeded", "succeeded", "", {"a": "ä"}),
        (Succeeded("null"), "succeeded", "succeeded", "", None),
        (FAILED, "failed", "failed", "agent_bug", "part"),
        (Cancelled(), "cancelled", "cancelled", "", None),
        (Interrupted("drained"), "interrupted", "interrupted", "", None),
    ],
)
def test_each_outcome_ends_run_attempt_and_hold_together(account, outcome, state, attempt, error_class, result):
    (run,) = submitted(account, session="s")
    (claimed,) = working.claim(run)
    before = working.rows()

    done = working.finish(
        working.finish_of(
            claimed, outcome, cost=70, usage={"m": {"input": 3}}, last_seq=9, progress={"done": 1, "total": 2}
        )
    )

    run.refresh_from_db()
    assert (run.state, run.fence, run.error_class, run.result) == (state, 3, error_class, result)
    assert (run.cost, run.usage, run.session_slot, run.claim_token) == (70, {"m": {"input": 3}}, None, None)
    assert working.new_rows(before) == {"Transition": 1, "LedgerEntry": 1}
    row = run.attempts.get()
    assert (row.outcome, row.error_class, row.cost, row.progress) == (attempt, error_class, 70, {"done": 1, "total": 2})
    assert row.ended_at is not None
    (last,) = (one.row for one in done.moved)
    assert (last.kind, last.prev, last.data["cost"]) == (f"run.{state}", "2-9", 70)
    assert done.lost == []
    assert [failed.pk for failed in done.failed] == ([run.pk] if state == "failed" else [])
    assert (Hold.objects.get(run_id=run.pk).state, Hold.objects.get(run_id=run.pk).actual) == ("settled", 70)


def test_a_failure_is_told_on_run_attempt_event_and_dead_letter(account):
    (run,) = submitted(account)
    done = working.finish(working.finish_of(*working.claim(run), FAILED))
    dead_letters.bury(done.failed)

    run.refresh_from_db()
    error = {"class": "agent_bug", "type": "RuntimeError", "message": "boom ä", "traceback": "trace"}
    error["cause"] = "fatal"
    assert (run.error, run.attempts.get().error) == (error, error)
    assert run.transitions.get(fence=3).data["error"] == {**error, "traceback": ""}
    letter = DeadLetter.objects.get()
    assert (letter.run_id, letter.reason, letter.error_class, letter.message) == (
        run.pk, "fatal", "agent_bug", "boom ä",
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [{"fence": 1}, {"fence": 3}, {"token": "x" * 32}])
def test_whoever_is_not_the_owner_ends_nothing(account, wrong):
    (run,) = submitted(account)
    (claimed,) = working.claim(run)
    said = working.finish_of(claimed, cost=5)
    before, row = working.rows(), Run.objects.filter(pk=run.pk).values().get()
    fields = {name: getattr(said, name) for name in said.__slots__} | wrong

    done = working.finish(type(said)(**fields))

    assert (done.moved, done.lost, done.failed) == ([], [run.pk], [])
    assert working.new_rows(before) == {}
    assert Run.objects.filter(pk=run.pk).values().get() == row


def test_an_attempt_ends_once(account):
    (run,) = submitted(account)
    said = working.finish_of(*working.claim(run), cost=5)
    working.finish(said)
    before = working.rows()

    assert working.finish(said).lost == [run.pk]
    assert working.new_rows(before) == {}


def test_a_set_of_sixteen_ends_each_its_own_way_and_the_lost_are_left_out(account):
    runs = submitted(account, 16)
    claimed = working.claim(*runs)
    cancel_run(run_id=runs[4].pk, actor="tester")
    take = lapse_lease(claimed[5].run)
    assert in_transaction(lambda: take_over(take, actor="sweeper")) is not None
    outcomes = [Succeeded('"a"'), FAILED, Interrupted("drained"), Cancelled()] * 4
    said = [working.finish_of(c, o, cost=n) for n, (c, o) in enumerate(zip(claimed, outcomes, strict=True))]

    done = working.finish(*said)

    states = [Run.objects.get(pk=run.pk).state for run in runs]
    expected = ["succeeded", "failed", "interrupted", "cancelled"] * 4
    expected[4], expected[5] = "cancelled", "interrupted"
    assert states == expected
    assert done.lost == [runs[5].pk]
    assert len(done.moved) == 15
    assert [run.pk for run in done.failed] == [runs[n].pk for n in (1, 9, 13)]
    assert sorted(LedgerEntry.objects.values_list("amount", flat=True)) == sorted([0, *range(5), *range(6, 16)])
    assert Attempt.objects.get(run=runs[4]).result_json == '"a"'
    assert Attempt.objects.filter(ended_at=None).count() == 0


def test_a_set_of_two_price_books_books_each_by_its_own(account):
    first, second = submitted(account, 2)
    books = [set_price(model="m", prices={"input": n}, actor="tester").pk for n in (1, 2)]
    claimed = working.claim(first, second)

    working.finish(*(working.finish_of(c, cost=1, price_book=b) for c, b in zip(claimed, books, strict=True)))

    assert dict(LedgerEntry.objects.values_list("run_id", "price_book_id")) == {first.pk: books[0], second.pk: books[1]}


# -- hand back -------------------------------------------------------------------------------------------------------
def handed_back(claimed, **fields):
    left = in_transaction(lambda: hand_back(claimed, actor="w1", reason="late", **fields))
    return None if left is None else left.moved.row


def test_a_handed_back_run_is_queued_again_uncounted(account):
    (run,) = submitted(account)
    (claimed,) = working.claim(run)

    row = handed_back(claimed)

    run.refresh_from_db()
    assert (row.kind, row.fence, row.prev) == ("run.handed_back", 3, "2-1")
    assert (run.state, run.attempt, run.claim_token, run.lease_expires_at) == ("queued", 1, None, None)
    assert run.attempts.get().outcome == "handed_back"
    assert Hold.objects.get(run_id=run.pk).expires_at > timezone.now() + dt.timedelta(minutes=30)
    (again,) = working.claim(run)
    assert (again.fence, again.run.attempt) == (4, 1)
    working.finish(working.finish_of(again, cost=3))
    assert Run.objects.get(pk=run.pk).cost == 3


def test_only_the_owner_hands_back_and_a_run_that_is_to_be_cancelled_ends(account):
    (run,) = submitted(account)
    (claimed,) = working.claim(run)
    assert handed_back(dataclasses.replace(claimed, token="x" * 32)) is None
    cancel_run(run_id=run.pk, actor="tester")

    assert handed_back(claimed).kind == "run.cancelled"
    assert Run.objects.get(pk=run.pk).state == "cancelled"
    assert Hold.objects.get(run_id=run.pk).state == "released"
    assert not LedgerEntry.objects.exists()


def test_a_hand_back_leaves_a_log_that_is_ahead_behind(account):
    (run,) = submitted(account)
    (claimed,) = working.claim(run)

    assert handed_back(claimed, above=40).fence == 41


# -- takeover --------------------------------------------------------------------------------------------------------
def taken(lost):
    left = in_transaction(lambda: take_over(lost, actor="sweeper"))
    return None if left is None else left.moved.row


def test_a_lost_run_is_interrupted_at_the_cost_its_worker_reported_last(account):
    (run,) = submitted(account, session="s")
    (claimed,) = working.claim(run)
    Attempt.objects.filter(run=run).update(cost=40, usage={"m": {"output": 2}})

    row = taken(lapse_lease(claimed.run))

    run.refresh_from_db()
    assert (run.state, run.cost, run.usage, run.error_class) == ("interrupted", 40, {"m": {"output": 2}}, "lost_worker")
    assert run.session_slot is None
    assert (row.kind, row.data["cost_after_last_beat"]) == ("run.interrupted", "unknown")
    assert LedgerEntry.objects.get().amount == 40
    attempt = run.attempts.get()
    assert (attempt.outcome, attempt.error_class) == ("interrupted", "lost_worker")


def test_a_lost_run_marked_for_cancel_is_cancelled(account):
    (run,) = submitted(account)
    (claimed,) = working.claim(run)
    cancel_run(run_id=run.pk, actor="tester")

    taken(lapse_lease(claimed.run))

    assert Run.objects.get(pk=run.pk).state == "cancelled"


def test_nothing_is_taken_over_that_is_not_as_it_was_seen(account):
    (run,) = submitted(account)
    (claimed,) = working.claim(run)
    alive = Lost(run.pk, 2, Run.objects.get(pk=run.pk).lease_expires_at)
    lost = lapse_lease(claimed.run)
    before = working.rows()

    assert taken(alive) is None
    assert taken(Lost(run.pk, 3, lost.lease_expires_at)) is None
    assert taken(Lost(run.pk, 2, lost.lease_expires_at - dt.timedelta(microseconds=1000))) is None
    assert working.new_rows(before) == {}

    assert taken(lost) is not None
    assert taken(lost) is None


def test_a_lease_that_has_not_lapsed_is_not_taken_over(account):
    (run,) = submitted(account)
    working.claim(run, lease=60)
    seen = Run.objects.get(pk=run.pk)

    assert taken(Lost(run.pk, 2, seen.lease_expires_at)) is None
