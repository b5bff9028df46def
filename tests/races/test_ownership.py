"""Two writers of one run: one wins, the other goes quietly, and the money moves once (protocol 1.1, 8, 9, 12)."""

import datetime as dt
import threading
from contextlib import contextmanager

import pytest
from django.utils import timezone

from quotas import services as money
from quotas.database import in_transaction
from quotas.errors import Busy
from quotas.models import Hold, LedgerEntry
from quotas.services import Bill
from runs import archive, broker
from runs.models import Attempt, EventArchive, Run
from runs.outcomes import Succeeded
from runs.services import cancel_run, take_over
from runs.services.leaving import Lost
from runs.states import TERMINAL
from tests import builders, invariants, working
from tests.racing import held_open, in_parallel
from workers.leases import _renew
from workers.stream import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]
ROUNDS = 5


def claimed(account):
    run = working.submit(account)
    return run, working.claim(run)[0]


def lost(run):
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - dt.timedelta(seconds=5))
    row = Run.objects.get(pk=run.pk)
    return Lost(row.pk, row.fence, row.lease_expires_at)


def took(seen):
    return in_transaction(lambda: take_over(seen, actor="sweeper"))


def settled_once(account, *runs):
    for run in runs:
        run.refresh_from_db()
        assert run.state in TERMINAL
        assert run.transitions.count() == run.fence
        assert LedgerEntry.objects.filter(run_id=run.pk).count() <= 1
        assert Hold.objects.get(run_id=run.pk).state in {"settled", "released"}
    invariants.check_money([account])


def test_of_many_claims_of_one_entry_one_wins(account):
    run = working.submit(account)

    found = in_parallel(*[lambda: working.try_claim(run)] * 8)

    assert sorted(len(claims.won) for claims in found) == [0] * 7 + [1]
    assert (run.transitions.count(), run.attempts.count()) == (2, 1)
    assert all(claims.seen[run.pk].state == "running" for claims in found)


def test_overlapping_claims_of_sets_share_the_runs_without_a_rest(account):
    runs = [working.submit(account) for _ in range(8)]

    found = in_parallel(*[lambda: working.try_claim(*runs)] * 3, *[lambda: working.try_claim(*reversed(runs))] * 3)

    assert sum(len(claims.won) for claims in found) == 8
    assert Attempt.objects.count() == 8


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_claim_and_a_cancel_leave_a_cancelled_or_a_marked_run(account, turn):
    run = working.submit(account)

    found, verdict = in_parallel(lambda: working.try_claim(run), lambda: cancel_run(run_id=run.pk, actor="tester").what)

    run.refresh_from_db()
    if found.won:
        assert (run.state, verdict) == ("running", "requested")
        assert run.cancel_requested_at is not None
        working.finish(working.finish_of(found.won[0], cost=3))
    else:
        assert (verdict, run.attempts.count()) == ("cancelled", 0)
    run.refresh_from_db()
    assert run.state == "cancelled"
    settled_once(account, run)


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_finalise_and_a_cancel_agree_on_who_was_first(account, turn):
    run, owner = claimed(account)

    done, verdict = in_parallel(
        lambda: working.finish(working.finish_of(owner, Succeeded('"r"'), cost=3)),
        lambda: cancel_run(run_id=run.pk, actor="tester").what,
    )

    run.refresh_from_db()
    assert len(done.moved) == 1
    assert (run.state, verdict) in {("succeeded", "ended"), ("cancelled", "requested")}
    kept = run.attempts.get().result_json
    assert (run.result, kept) == (("r", None) if run.state == "succeeded" else (None, '"r"'))
    assert LedgerEntry.objects.get().amount == 3
    settled_once(account, run)


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_of_a_finalise_and_a_takeover_one_ends_the_run(account, turn):
    run, owner = claimed(account)
    seen = lost(run)

    done, taken = in_parallel(lambda: working.finish(working.finish_of(owner, cost=3)), lambda: took(seen))

    run.refresh_from_db()
    if taken is None:
        assert (run.state, done.lost) == ("succeeded", [])
    else:
        assert (run.state, done.lost, done.moved) == ("interrupted", [run.pk], [])
    assert LedgerEntry.objects.get().amount == (3 if taken is None else 0)
    settled_once(account, run)


def test_of_many_takeovers_one_moves_the_run(account):
    run, _ = claimed(account)
    seen = lost(run)

    results = in_parallel(*[lambda: took(seen)] * 8)

    assert sum(result is not None for result in results) == 1
    assert run.transitions.count() == 3
    settled_once(account, run)


def test_of_many_finalises_one_ends_the_attempt(account):
    run, owner = claimed(account)

    results = in_parallel(*[lambda: working.finish(working.finish_of(owner, cost=3))] * 8)

    assert sorted(len(done.moved) for done in results) == [0] * 7 + [1]
    assert all(done.lost == [run.pk] for done in results if not done.moved)
    settled_once(account, run)


def test_sets_that_end_together_in_any_order_do_not_stand_in_each_others_way(account, other_account):
    owners = {a: working.claim(*[working.submit(a) for _ in range(8)]) for a in (account, other_account)}
    calls = []
    for mine in owners.values():
        for part in (mine[:4], mine[4:], list(reversed(mine[2:6]))):
            calls.append(lambda part=part: working.finish(*[working.finish_of(c, cost=1) for c in part]))

    results = in_parallel(*calls)

    assert sum(len(done.moved) for done in results) == 16
    assert sum(len(done.lost) for done in results) == 8
    for each in (account, other_account):
        each.refresh_from_db()
        assert (each.spent, each.held, each.in_flight) == (8, 0, 0)
        settled_once(each, *each.runs.all())


def test_a_settlement_happens_once_whoever_tries(account):
    run = working.submit(account)

    def close():
        def work():
            money.close_holds(money.lock_account(account.pk), [Bill(run.pk, 7)])

        in_transaction(work)

    in_parallel(*[close] * 8)

    account.refresh_from_db()
    assert (account.spent, account.held, account.in_flight) == (7, 0, 0)
    assert LedgerEntry.objects.count() == 1


def test_submits_claims_cancels_and_endings_at_once_leave_the_money_true(account):
    runs = [working.submit(account) for _ in range(6)]
    owners = working.claim(*runs[:3])

    results = in_parallel(
        *[lambda: working.submit(account)] * 4,
        *[lambda c=c: working.finish(working.finish_of(c, cost=5)) for c in owners],
        *[lambda r=r: cancel_run(run_id=r.pk, actor="tester") for r in runs],
        lambda: working.try_claim(*runs[3:]),
    )

    assert [result for result in results if isinstance(result, Exception) and not isinstance(result, Busy)] == []
    invariants.check_money([account])
    for run in account.runs.all():
        assert run.transitions.count() == run.fence


# -- the beat never stands in the way --------------------------------------------------------------------------------
@pytest.mark.row_locks
def test_a_beat_passes_over_a_run_that_is_being_ended_and_the_end_counts(account):
    run, owner = claimed(account)
    other, other_owner = claimed(account)
    held = [working.owned_run(c, Entry("default", "s", "1-1", {}, 1)) for c in (owner, other_owner)]

    with held_open(lambda: working.finish(working.finish_of(owner, cost=3))):
        assert set(_renew(held, 30.0)) == {other.pk}

    run.refresh_from_db()
    assert (run.state, run.cost) == ("succeeded", 3)
    assert set(_renew(held, 30.0)) == {other.pk}


def test_an_end_waits_for_a_beat_and_both_count(account):
    run, owner = claimed(account)
    held = [working.owned_run(owner, Entry("default", "s", "1-1", {}, 1))]
    held[0].ctx.usage.add_cost(3)
    done = []

    with held_open(lambda: _renew(held, 30.0)) as let_go, waiting(lambda: done.append(end(owner))):
        let_go()

    assert len(done[0].moved) == 1
    assert Attempt.objects.get(run=run).cost == 5
    settled_once(account, run)


def end(owner):
    return working.finish(working.finish_of(owner, cost=5))


@contextmanager
def waiting(work):
    """Run `work` on a connection of its own; it has ended when the block has."""
    thread = threading.Thread(target=lambda: in_parallel(work))
    thread.start()
    yield
    thread.join(30)


# -- closing ---------------------------------------------------------------------------------------------------------
def test_of_many_closers_one_archive_is_left(account):
    runs = [builders.make_run("succeeded", account=account, archived=False) for _ in range(3)]
    pairs = [(run.pk, run.fence) for run in runs]

    results = in_parallel(*[lambda: archive.close_logs(broker.client(), pairs)] * 6)

    assert [result for result in results if isinstance(result, Exception)] == []
    assert EventArchive.objects.count() == 3
    assert Run.objects.filter(log_closed_at=None).count() == 0
    for run in runs:
        invariants.check_events(run)
