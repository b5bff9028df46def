"""Before and around bulk operations: the edit of an input, the plan, and what is discarded and restored."""

import pytest

from quotas.models import AuditEntry
from runs.models import Run
from tests import builders
from tests.aged import ago
from tests.bulk_work import letters_of, make_purse, started, worked
from workers import dead_letters
from workers.bulk.edits import applied, difference, edit_between
from workers.bulk.options import Options
from workers.bulk.plans import plan_of
from workers.errors import NotRestorable
from workers.models import DeadLetter
from workers.retention import open_letters

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def purse(db):
    return make_purse()


# -- the edit ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("before", "after", "edit"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, None),
        ({"a": 1, "b": 2}, {"a": 3, "c": 4}, {"set": {"a": 3, "c": 4}, "unset": ["b"]}),
        ("text", {"a": 1}, {"whole": {"a": 1}}),
    ],
)
def test_an_edit_is_what_differs_and_makes_the_one_of_the_other(before, after, edit):
    assert edit_between(before, after) == edit
    assert edit is None or applied(edit, before) == after


def test_the_difference_has_both_sides_and_cuts_what_is_long():
    assert difference({"a": 1, "b": "x" * 3000}, {"b": "y", "c": None}) == {
        "a": {"before": 1},
        "b": {"before": "x" * 2000 + "…", "after": "y"},
        "c": {"after": None},
    }
    assert difference(1, 2) == {"": {"before": 1, "after": 2}}


def test_the_same_edit_is_made_to_every_input_and_its_difference_kept(purse):
    letters_of(purse, 1, input_json='{"value":1,"own":"a"}')
    letters_of(purse, 1, input_json='{"value":2,"own":"b"}')

    operation = worked(started(edit={"set": {"value": 7}, "unset": []}, priority="low", delay=3600.0))

    new = Run.objects.filter(pk__in=operation.items.values("new_run")).order_by("pk")
    assert [run.input for run in new] == [{"value": 7, "own": "b"}, {"value": 7, "own": "a"}]
    assert {(run.priority, run.state) for run in new} == {("low", "scheduled")}
    kept = [item.changes for item in operation.items.order_by("position")]
    assert kept == [{"value": {"before": 2, "after": 7}}, {"value": {"before": 1, "after": 7}}]
    entry = AuditEntry.objects.filter(action="run.requeue").first()
    assert (entry.after["input"], entry.after["priority"], entry.after["delay"]) == ("edited", "low", 3600.0)


# -- the plan --------------------------------------------------------------------------------------------------------
def test_the_plan_says_who_is_skipped_why_and_what_money_there_is(purse):
    letters = letters_of(purse, 4)
    dead_letters.requeue(dead_letter_id=letters[0].pk, actor="x", reason="")
    dead_letters.discard(dead_letter_id=letters[1].pk, actor="x", reason="x")
    DeadLetter.objects.create(reason="undecodable", buried_at=ago(1))
    Run.objects.filter(pk=letters[2].run_id).update(agent="nobody.knows")
    type(purse).objects.filter(pk=purse.pk).update(limit=1500)

    plan = plan_of("requeue", "letters", {}, Options())

    assert (plan.total, plan.eligible, plan.is_cut) == (5, 1, False)
    assert plan.skipped == {
        "requeued already": 1,
        "discarded already": 1,
        "without a run": 1,
        "agent not known here": 1,
    }
    (one,) = plan.purses
    assert (one.eligible, one.needed, one.free, one.room, one.refused) == (1, 1000, 500, 999, 1)


def test_the_plan_of_runs_counts_by_what_may_be_done(purse):
    for state in ("queued", "running", "succeeded", "failed"):
        builders.make_run(state, account=purse)

    assert plan_of("cancel", "runs", {}, Options()).eligible == 2
    assert plan_of("reprioritise", "runs", {}, Options(priority="low")).eligible == 1
    requeue = plan_of("requeue", "runs", {"account": "purse"}, Options())
    assert (requeue.eligible, requeue.only_agent) == (1, "probe.ret")
    assert requeue.skipped == {"still live": 2, "succeeded": 1}
    assert plan_of("requeue", "runs", {}, Options(with_succeeded=True)).eligible == 2


def test_a_plan_looks_at_no_more_than_one_operation_takes(purse, monkeypatch):
    monkeypatch.setattr("workers.bulk.plans.TARGETS_MAX", 3)
    letters_of(purse, 4)

    plan = plan_of("discard", "letters", {}, Options())

    assert (plan.total, plan.eligible, plan.is_cut) == (3, 3, True)


# -- discarded and restored --------------------------------------------------------------------------------------------
def test_a_discarded_letter_is_restored_within_seven_days(purse):
    letter = letters_of(purse, 1)[0]
    dead_letters.discard(dead_letter_id=letter.pk, actor="ann", reason="no use")
    assert open_letters([letter.run_id]) == {letter.run_id}

    restored = dead_letters.restore(dead_letter_id=letter.pk, actor="bob", reason="of use")

    assert (restored.state, restored.resolved_at, restored.resolved_by) == ("open", None, "")
    entry = AuditEntry.objects.get(action="dead_letter.restore")
    assert (entry.before["by"], entry.before["why"], entry.reason) == ("ann", "no use", "of use")
    with pytest.raises(NotRestorable):
        dead_letters.restore(dead_letter_id=letter.pk, actor="bob", reason="again")


def test_after_seven_days_it_is_neither_restored_nor_kept(purse):
    letter = letters_of(purse, 1)[0]
    dead_letters.discard(dead_letter_id=letter.pk, actor="ann", reason="no use")
    DeadLetter.objects.filter(pk=letter.pk).update(resolved_at=ago(7 * 24 * 3600 + 60))

    with pytest.raises(NotRestorable):
        dead_letters.restore(dead_letter_id=letter.pk, actor="bob", reason="x")
    assert open_letters([letter.run_id]) == set()


def test_a_discarded_letter_whose_run_was_requeued_stays_as_it_is(purse):
    letter = letters_of(purse, 1)[0]
    dead_letters.discard(dead_letter_id=letter.pk, actor="ann", reason="no use")
    dead_letters.requeue_run(run_id=letter.run_id, actor="x")

    with pytest.raises(NotRestorable):
        dead_letters.restore(dead_letter_id=letter.pk, actor="bob", reason="x")
