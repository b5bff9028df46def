"""Bulk operations: what they freeze, that each item acts once, canary, pace, abort, and what is left for a repeat."""

import datetime as dt
import threading
import uuid

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections
from django.db.models import Count
from django.utils import timezone

from quotas.models import AuditEntry
from runs.errors import InvalidFilter, InvalidRequest, UnknownFilter
from runs.models import Run
from tests import builders, working
from tests.aged import ago
from tests.bulk_work import letters_of, make_purse, started, worked
from workers import dead_letters
from workers.bulk import acts, operations, targets
from workers.bulk.options import Options
from workers.bulk.runner import BulkRunner
from workers.errors import OperationEnded, OperationLive
from workers.models import BulkOperation, DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)
State = BulkOperation.State


@pytest.fixture
def purse(db):
    return make_purse()


def results(operation):
    rows = operation.items.order_by().values_list("state", "code").annotate(number=Count("pk"))
    return {(state, code): number for state, code, number in rows}


# -- what is acted on ------------------------------------------------------------------------------------------------
def test_every_target_of_the_filter_is_requeued_once_and_later_ones_are_not(purse):
    letters = letters_of(purse, 5)
    elsewhere = letters_of(builders.make_account("other"), 1)[0]
    operation = started(query={"account": "purse", "state_is": "open"})
    late = letters_of(purse, 1)[0]

    worked(operation)

    assert (operation.state, operation.total, operation.done_count) == (State.DONE, 5, 5)
    assert operation.reserved == 5 * 1000
    new = Run.objects.filter(retry_of__isnull=False)
    assert set(new.values_list("retry_of", flat=True)) == {letter.run_id for letter in letters}
    assert set(operation.items.values_list("new_run", flat=True)) == set(new.values_list("pk", flat=True))
    assert {dead_letters.get_dead_letter(row.pk).state for row in (elsewhere, late)} == {"open"}
    assert AuditEntry.objects.filter(action="run.made_by_bulk", after__operation=operation.pk).count() == 5
    assert AuditEntry.objects.filter(action="dead_letter.requeue", actor="ann", reason="repaired").count() == 5


def test_targets_are_written_down_in_pages_up_to_the_most(purse, monkeypatch):
    monkeypatch.setattr(targets, "PAGE", 2)
    monkeypatch.setattr(targets, "TARGETS_MAX", 4)
    letters_of(purse, 5)

    cut = worked(started("discard"))

    assert (cut.total, cut.is_cut, cut.done_count) == (4, True, 4)
    assert worked(started("discard", query={"state_is": "open"})).total == 1
    exact = letters_of(purse, 4)
    whole = worked(started("discard", query={"state_is": "open"}))
    assert (whole.total, whole.is_cut) == (len(exact), False)


def test_what_matches_nothing_is_done_at_once(purse):
    operation = worked(started(query={"account": "purse"}))

    assert (operation.state, operation.total) == (State.DONE, 0)
    assert operation.finished_at is not None


@pytest.mark.parametrize(
    ("kind", "source", "options", "error"),
    [
        ("discard", "runs", {}, InvalidRequest),
        ("cancel", "letters", {}, InvalidRequest),
        ("reprioritise", "runs", {}, InvalidRequest),
        ("requeue", "letters", {"pace": 0}, InvalidRequest),
        ("requeue", "letters", {"delay": -1.0}, InvalidRequest),
        ("requeue", "letters", {"priority": "soon"}, InvalidRequest),
    ],
)
def test_an_act_that_cannot_be_is_refused(db, kind, source, options, error):
    with pytest.raises(error):
        started(kind, source, **options)
    assert not BulkOperation.objects.exists()


def test_a_filter_that_is_none_matches_nothing_and_is_refused(db):
    with pytest.raises(UnknownFilter):
        started(query={"everything": "1"})
    with pytest.raises(InvalidFilter):
        started(query={"items_of": "1", "case": "1"})


def test_a_form_sent_twice_starts_one_operation(purse):
    letters_of(purse, 1)
    asked = {"kind": "requeue", "source": "letters", "query": {}, "options": Options(), "actor": "ann", "reason": "x"}
    form = uuid.uuid4()

    first, second = (operations.start(**asked, form_id=form) for _ in range(2))

    assert first.pk == second.pk
    assert AuditEntry.objects.filter(action="bulk.requeue").count() == 1


def test_runs_are_cancelled_and_given_another_priority(purse):
    waiting, ended = working.submit(purse), builders.make_run("succeeded", account=purse)

    moved = worked(started("reprioritise", "runs", {"account": "purse"}, priority="low"))
    unchanged = worked(started("reprioritise", "runs", {"ids": str(waiting.pk)}, priority="low"))
    gone = worked(started("cancel", "runs", {"account": "purse"}))

    assert results(moved) == {("done", "low"): 1, ("refused", "not_waiting"): 1}
    assert results(unchanged) == {("refused", "unchanged"): 1}
    assert AuditEntry.objects.filter(action="run.reprioritise").count() == 1
    assert results(gone) == {("done", "cancelled"): 1, ("refused", "ended"): 1}
    waiting.refresh_from_db()
    assert (waiting.state, waiting.priority) == ("cancelled", "low")
    assert Run.objects.get(pk=ended.pk).state == "succeeded"


def test_what_is_live_or_requeued_or_succeeded_is_refused_and_says_why(purse):
    runs = [builders.make_run(state, account=purse) for state in ("queued", "succeeded", "failed")]
    again = builders.make_run("failed", account=purse)
    dead_letters.requeue_run(run_id=again.pk, actor="x")

    operation = worked(started("requeue", "runs", {"ids": ",".join(str(run.pk) for run in [*runs, again])}))

    assert results(operation) == {
        ("refused", "not_ended"): 1,
        ("refused", "already_succeeded"): 1,
        ("refused", "already_requeued"): 1,
        ("done", ""): 1,
    }
    with_them = worked(started("requeue", "runs", {"ids": str(runs[1].pk)}, with_succeeded=True))
    assert with_them.done_count == 1


# -- once ------------------------------------------------------------------------------------------------------------
def test_two_runners_at_the_same_time_act_on_every_item_once(purse):
    letters_of(purse, 30)
    operation = started()

    def work():
        try:
            worked(operation.__class__.objects.get(pk=operation.pk), rounds=5)
            runner = BulkRunner(threading.current_thread().name)
            while runner.work_on(operation.pk):
                pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, name=f"runner {number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    worked(operation)
    assert (operation.done_count, operation.refused_count) == (30, 0)
    assert Run.objects.filter(retry_of__isnull=False).count() == 30


def test_an_operation_that_a_live_process_has_is_left_to_it(purse):
    letters_of(purse, 2)
    operation = started()
    BulkOperation.objects.filter(pk=operation.pk).update(holder="other", held_until=ago(-60))

    assert BulkRunner("test").run_once() == (True, 0)
    BulkOperation.objects.filter(pk=operation.pk).update(held_until=ago(1))
    is_live, acted = BulkRunner("test").run_once()
    assert is_live
    assert acted >= 1  # a turn is short, and both may not fit into it


def test_an_item_whose_act_breaks_is_told_and_the_others_go_on(purse):
    bad = builders.make_run("failed", account=purse)
    letters = [builders.make_dead_letter(bad), *letters_of(purse, 1)]
    Run.objects.filter(pk=bad.pk).update(input_json="{")
    operation = worked(started())

    assert (operation.state, operation.done_count, operation.failed_count) == (State.DONE, 1, 1)
    assert dead_letters.get_dead_letter(letters[0].pk).state == "open"


# -- canary, pace, waiting, abort --------------------------------------------------------------------------------------
def finish(run, state):
    Run.objects.filter(pk=run).update(state=state, error_class="agent_bug" if state == "failed" else "")


def test_the_rest_begins_when_the_canary_has_succeeded(purse):
    letters_of(purse, 4)
    operation = started(canary=True)

    worked(operation, rounds=3)
    assert (operation.state, operation.done_count) == (State.WAITING_FOR_CANARY, 1)
    finish(operation.canary_run, "succeeded")
    worked(operation)

    assert (operation.state, operation.done_count) == (State.DONE, 4)


def test_a_canary_that_fails_stops_the_operation(purse):
    letters = letters_of(purse, 4)
    operation = started(canary=True)
    worked(operation, rounds=2)
    finish(operation.canary_run, "failed")

    worked(operation)

    assert (operation.state, operation.done_count) == (State.FAILED, 1)
    assert operation.problem == "The canary ended as failed agent_bug."
    assert DeadLetter.objects.filter(pk__in=[row.pk for row in letters], state="open").count() == 3


def test_one_that_is_settled_already_is_no_canary(purse):
    letters = letters_of(purse, 3)
    operation = started(canary=True)
    dead_letters.requeue(dead_letter_id=letters[-1].pk, actor="x", reason="")  # the newest is the first

    worked(operation, rounds=3)

    assert (operation.state, operation.done_count, operation.refused_count) == (State.WAITING_FOR_CANARY, 1, 1)


def test_a_canary_that_is_refused_stops_the_operation(purse):
    letters_of(purse, 3)
    operation = started(canary=True)
    type(purse).objects.filter(pk=purse.pk).update(limit=0)

    worked(operation)

    assert (operation.state, operation.refused_count) == (State.FAILED, 1)
    assert operation.problem.startswith("The canary was not accepted: ")


def test_what_a_bug_says_of_the_canary_is_not_told_to_everybody(purse, monkeypatch):
    def breaks(**asked):
        raise ValueError("secret of the payload")

    letters_of(purse, 2)
    monkeypatch.setattr(dead_letters, "requeue", breaks)

    operation = worked(started(canary=True))

    assert operation.problem == "The canary was not accepted: broke."
    assert "secret" in operation.items.order_by("position")[0].message  # which is masked where it is shown


def test_a_pace_lets_one_go_and_the_next_by_the_clock_of_the_database(purse):
    letters_of(purse, 3)
    operation = started(pace=1)

    worked(operation, rounds=3)
    assert operation.done_count == 1
    BulkOperation.objects.filter(pk=operation.pk).update(next_at=ago(600))  # nobody worked for a while: no burst
    worked(operation, rounds=3)
    assert operation.done_count == 2


def test_without_a_place_in_flight_it_waits_and_says_so(purse):
    letters_of(purse, 2)
    type(purse).objects.filter(pk=purse.pk).update(max_in_flight=1)
    operation = started()

    worked(operation, rounds=3)
    assert (operation.state, operation.done_count) == (State.RUNNING, 1)
    assert operation.problem.startswith("Waiting: ")
    type(purse).objects.filter(pk=purse.pk).update(max_in_flight=9)
    BulkOperation.objects.filter(pk=operation.pk).update(next_at=None, held_up={})
    worked(operation)

    assert (operation.state, operation.done_count, operation.problem) == (State.DONE, 2, "")


def test_an_account_without_a_place_holds_up_no_other(purse):
    other = builders.make_account("other", limit=10**9, max_in_flight=1000)
    letters = [*letters_of(other, 2), *letters_of(purse, 3)]  # the newest are first
    type(purse).objects.filter(pk=purse.pk).update(max_in_flight=0)
    operation = started()

    worked(operation, rounds=4)

    assert (operation.state, operation.done_count) == (State.RUNNING, 2)
    assert operation.problem.startswith("Waiting: ")
    waiting = operation.items.filter(state="waiting").values_list("letter_id", flat=True)
    assert set(waiting) == {letter.pk for letter in letters[2:]}
    type(purse).objects.filter(pk=purse.pk).update(max_in_flight=9)
    soon = (timezone.now() - dt.timedelta(seconds=1)).isoformat()
    BulkOperation.objects.filter(pk=operation.pk).update(next_at=None, held_up={str(purse.pk): soon})
    worked(operation)
    assert (operation.state, operation.done_count) == (State.DONE, 5)


@pytest.mark.parametrize("lost", ["run_bulkoperation", "requeue_deadletter", "is_active", "is_staff"])
def test_who_may_not_do_it_any_more_has_it_stopped(purse, lost):
    letters_of(purse, 3)
    operation = started()
    acts.act_on_next(operation.pk)
    ann = User.objects.get(username="ann")
    if lost.startswith("is_"):
        User.objects.filter(pk=ann.pk).update(**{lost: False})
    else:
        ann.user_permissions.remove(Permission.objects.get(codename=lost))

    worked(operation)

    assert (operation.state, operation.done_count) == (State.FAILED, 1)
    assert operation.problem == "ann may not do this any more."


def test_an_abort_leaves_the_rest_as_it_was(purse):
    letters_of(purse, 5)
    operation = started()
    acts.act_on_next(operation.pk)

    operations.abort(operation.pk, actor="bob", reason="wrong filter")
    worked(operation)

    assert (operation.state, operation.done_count) == (State.ABORTED, 1)
    assert DeadLetter.objects.filter(state="open").count() == 4
    entry = AuditEntry.objects.get(action="bulk.abort")
    assert (entry.actor, entry.reason, entry.after["done"]) == ("bob", "wrong filter", 1)
    with pytest.raises(OperationEnded):
        operations.abort(operation.pk, actor="bob", reason="again")


def test_what_was_left_is_done_by_a_repeat(purse):
    letters = letters_of(purse, 4)
    operation = started()
    with pytest.raises(OperationLive):
        operations.again(operation.pk, actor="ann", reason="x")
    acts.act_on_next(operation.pk)
    dead_letters.discard(dead_letter_id=letters[0].pk, actor="x", reason="x")
    operations.abort(operation.pk, actor="ann", reason="x")

    again = worked(operations.again(operation.pk, actor="ann", reason="on with it"))

    assert (again.total, again.done_count, again.refused_count) == (3, 2, 1)
    assert worked(operations.again(again.pk, actor="ann", reason="x")).total == 0


# -- what is old or forgotten ------------------------------------------------------------------------------------------
def test_an_operation_goes_with_the_time_that_runs_are_kept(purse, monkeypatch):
    monkeypatch.setattr(operations, "PRUNE", 2)
    letters_of(purse, 3)
    operation = worked(started("discard"))
    assert (operations.prune(0), operations.prune(1)) == (0, 0)
    BulkOperation.objects.filter(pk=operation.pk).update(finished_at=ago(3 * 24 * 3600))

    assert [operations.prune(2) for _ in range(3)] == [2, 2, 0]
    assert not BulkOperation.objects.exists()


def test_forgetting_an_account_takes_what_its_operations_say_in_words(purse):
    letters_of(purse, 1, input_json='{"value":"secret"}')
    operation = worked(started(edit={"set": {"value": "mended"}, "unset": []}))

    operations.forget_words([operation.items.get().run_id])

    operation.refresh_from_db()
    assert operation.options == {}
    assert operation.items.get().changes is None
