"""The turns of bulk operations: who keeps whom from one, what passes by itself, what an end in the middle leaves."""

import pytest
from django.contrib.auth.models import User
from django.db import connection

from quotas.models import AuditEntry
from runs import controls
from runs.models import Run
from tests import builders
from tests.bulk_work import letters_of, make_purse, started, worked
from workers import retention
from workers.bulk import acts, operations, runner, targets
from workers.bulk.runner import BulkRunner
from workers.errors import NotAllTargets
from workers.models import BulkOperation

pytestmark = pytest.mark.django_db(transaction=True)
State = BulkOperation.State


@pytest.fixture
def purse(db):
    return make_purse()


def test_under_maintenance_nothing_is_refused_and_all_goes_on_after_it(purse):
    letters_of(purse, 3)
    operation = started(canary=True)
    controls.begin_maintenance(message="moving house", actor="ann")

    worked(operation, rounds=3)

    assert (operation.state, operation.refused_count) == (State.RUNNING, 0)
    assert "moving house" in operation.problem
    controls.end_maintenance(actor="ann")
    BulkOperation.objects.filter(pk=operation.pk).update(next_at=None)
    worked(operation, rounds=2)
    assert (operation.state, operation.done_count) == (State.WAITING_FOR_CANARY, 1)


def test_without_leave_not_even_the_targets_are_written_down(purse, monkeypatch):
    monkeypatch.setattr(targets, "PAGE", 2)
    letters_of(purse, 5)
    operation = started()
    User.objects.filter(username="ann").update(is_active=False)

    worked(operation)

    assert (operation.state, operation.total, operation.done_count) == (State.FAILED, 2, 0)
    with pytest.raises(NotAllTargets):
        operations.again(operation.pk, actor="ann", reason="x")


def test_an_operation_whose_filter_is_none_any_more_ends_and_holds_up_no_other(purse):
    letters_of(purse, 2)
    broken, sound = started(), started("discard")
    BulkOperation.objects.filter(pk=broken.pk).update(state="planned", read_to="9999", query={"gone": "1"})

    worked(sound)

    broken.refresh_from_db()
    assert (broken.state, sound.state) == (State.FAILED, State.DONE)
    assert "gone" in broken.problem


def test_what_breaks_in_a_turn_waits_and_the_others_have_theirs(purse):
    letters_of(purse, 2)
    broken, sound = started(), started("discard")
    BulkOperation.objects.filter(pk=broken.pk).update(kind="odd")

    worked(sound)

    broken.refresh_from_db()
    assert (broken.state, sound.state) == (State.RUNNING, State.DONE)
    assert "ValueError" in broken.problem


def test_canaries_that_wait_keep_nobody_from_a_turn(purse, monkeypatch):
    monkeypatch.setattr(runner, "AT_ONCE", 1)
    letters_of(purse, 4)
    waiting = worked(started(canary=True), rounds=2)
    other = started("discard", query={"state_is": "open"})

    worked(other, rounds=6)

    waiting.refresh_from_db()
    assert (waiting.state, other.state) == (State.WAITING_FOR_CANARY, State.DONE)


def test_a_search_stays_what_it_was_when_the_operation_began(purse, monkeypatch):
    monkeypatch.setattr(targets, "PAGE", 1)
    failed = [
        builders.make_run("failed", account=purse, error={"class": "agent_bug", "type": "X", "message": "timeout at 5"})
        for _ in range(3)
    ]
    operation = started("requeue", "runs", {"q": "timeout", "from": "24h"})
    late = builders.make_run("failed", account=purse, session="timeout")

    worked(operation)

    assert set(operation.items.values_list("run_id", flat=True)) == {run.pk for run in failed}
    assert (operation.query["error"], "q" in operation.query) == ("timeout", False)
    assert operation.query["from"].startswith("20")
    assert Run.objects.get(pk=late.pk).retried_by is None


def test_what_an_operation_quotes_goes_with_the_payload(purse):
    letters_of(purse, 1, input_json='{"value":"secret"}')
    operation = worked(started(edit={"set": {"value": "mended"}, "unset": []}))
    old, new = operation.items.values_list("run_id", "new_run").get()
    Run.objects.filter(pk=new).update(state="succeeded")

    assert retention._prune_payloads([old]) == 1

    operation.refresh_from_db()
    assert (operation.options, operation.items.get().changes) == ({}, None)
    assert Run.objects.filter(pk=new).exists()


def test_no_index_with_a_condition_is_made_of_all_rows(db):
    with connection.cursor() as cursor:
        made = connection.introspection.get_constraints(cursor, Run._meta.db_table)

    partial = {index.name for index in Run._meta.indexes if index.condition is not None}
    assert partial & set(made) == (partial if connection.features.supports_partial_indexes else set())


def test_an_abort_says_who_and_is_told_apart_from_a_failure(purse):
    letters_of(purse, 2)
    operation = started()
    acts.fail(operation.pk, "x" * 900)
    acts.fail(operation.pk, "later")

    operation.refresh_from_db()
    assert (operation.state, operation.problem) == (State.FAILED, "x" * 500)
    assert not AuditEntry.objects.filter(action="bulk.abort").exists()
    assert BulkRunner("test").run_once() == (False, 0)
