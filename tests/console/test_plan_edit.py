"""The edit of an input on a plan's page: decided against what was shown, and never dropped without a word."""

import json
import re
import uuid

import pytest
from django.conf import settings
from django.utils import timezone

from agentops.console import plan_forms, schema_form
from quotas.display import TEXT_SHOWN
from runs.agents import AgentSpec
from runs.models import Run
from tests import builders, working
from tests.bulk_work import worked
from tests.console.filled import filled
from tests.console.test_bulk_pages import signed_in, text
from workers.models import BulkItem, BulkOperation

pytestmark = pytest.mark.django_db(transaction=True)
MANY = "/admin/bulk-plan/?kind=requeue&source=runs&agent=test.form"
NAMES = ["line", "kind", "loud", "deep"]
SCHEMA = {
    "type": "object",
    "required": NAMES,
    "properties": {
        "line": {"type": "string"},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "loud": {"type": "boolean"},
        "count": {"type": "integer", "minimum": 1},
        "deep": {"type": "object"},
    },
}
GIVEN = {"line": "one\ntwo", "kind": "b", "loud": True, "deep": {"x": [1]}}


@pytest.fixture
def console(db):
    return signed_in()


@pytest.fixture
def agent(db):
    with working.registered("test.form", input_schema=SCHEMA) as name:
        yield name


def run_of(account, run_input=None, **fields):
    given = GIVEN if run_input is None else run_input
    return builders.make_run("failed", account=account, agent="test.form", input=given, **fields)


def opened(console, address=MANY, **typed):
    """Read the page, tick that the input is to be changed, and type."""
    return filled(text(console.get(address)), opened=True, edit_input="on", reason="repaired", canary="", **typed)


def inputs():
    for operation in BulkOperation.objects.all():
        worked(operation)
    return [run.input for run in Run.objects.filter(retry_of__isnull=False).order_by("pk")]


# -- against what was shown ------------------------------------------------------------------------------------------
def test_a_newer_one_that_arrives_lends_none_of_its_fields_to_the_others(console, account, agent):
    run_of(account)
    sent = opened(console, **{"input.line": "mended"})
    run_of(account, {**GIVEN, "kind": "a", "loud": False, "deep": {}})

    console.post(MANY, sent)

    assert inputs() == [{**GIVEN, "line": "mended"}]


def test_what_was_shown_and_is_gone_or_matches_no_more_is_told(console, account, agent):
    run, kept = run_of(account), run_of(account, session="kept")
    for change in ({"session": "other"}, None):
        address = f"{MANY}&session=kept"
        sent = opened(console, address, **{"input.line": "mended"})
        Run.objects.filter(pk=kept.pk).update(**(change or {"session": "kept"}))
        Run.objects.filter(pk=run.pk).update(session="kept")
        if change is None:
            sent["first"] = str(uuid.uuid4())

        answer = console.post(address, sent)

        assert answer.status_code == 409
        assert "the run whose input was shown is gone" in text(answer)
        assert filled(text(answer), opened=True)["first"] in {str(run.pk), str(kept.pk)}
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize(
    "given",
    [
        GIVEN,
        {**GIVEN, "line": "\na\r\nb\rc "},
        {"line": "x"},
        {},
        {**GIVEN, "kind": "z", "loud": "yes", "line": 7, "count": "many", "deep": "{}"},
        {**GIVEN, "kind": None, "loud": None, "line": None, "count": None, "deep": None},
        {**GIVEN, "count": 2.5},
        {**GIVEN, "count": 10**400, "loud": 1, "kind": ["a"], "line": {"a": "b\nc"}},
        {**GIVEN, "deep": {"words": "ä\u2028é\n", "n": 1.0}, "more": True},
        "no object",
        [1, 2],
    ],
    ids=lambda given: json.dumps(given)[:40],
)
def test_what_a_browser_sends_back_untouched_changes_nothing(console, account, agent, given):
    run_of(account, given)

    console.post(MANY, opened(console))

    assert "edit" not in BulkOperation.objects.get().options


def test_each_kind_of_field_can_be_changed(console, account, agent):
    run_of(account, {"line": 7, "kind": "z", "count": 3, "more": 1})
    typed = {"input.kind": "a", "input.loud": "no", "input.count": "4", "input.line": '"x\\ny"', "input.deep": "{}"}

    page = text(console.post(MANY, opened(console, look="1", **typed)))

    assert not BulkOperation.objects.exists()
    assert "Input changed" in page
    assert re.search(r"<del>(<bdi>)?z<.*<ins>(<bdi>)?a<", page)
    console.post(MANY, filled(page))
    (made,) = inputs()
    assert made == {"line": "x\ny", "kind": "a", "loud": False, "count": 4, "deep": {}, "more": 1}


def test_a_look_at_an_edit_that_is_none_says_so_and_needs_no_reason(console, account, agent):
    run_of(account)

    page = console.post(MANY, opened(console, look="1") | {"reason": ""})

    assert page.status_code == 200
    assert 'id="plan-unchanged"' in text(page)


def test_true_in_place_of_1_and_null_in_place_of_nothing_are_changes() -> None:
    spec = AgentSpec(name="x", handler=print, input_schema={"properties": {"a": {}, "b": {}}})
    form = plan_forms.InputForm(spec, {"a": 1}, {"input.a": "true", "input.b": "null", "whole_input": ""})

    assert form.is_valid()
    assert form.edit == {"set": {"a": True, "b": None}, "unset": []}
    whole = plan_forms.InputForm(spec, {"a": 1}, {"input.a": "1", "input.b": "", "whole_input": "null"})
    assert whole.is_valid()
    assert whole.edit == {"whole": None}


# -- not dropped -----------------------------------------------------------------------------------------------------
def other_agent(account, run):
    builders.make_run("failed", account=account, agent="probe.ret", input={})


def pruned(account, run):
    Run.objects.filter(pk=run.pk).update(payload_pruned_at=timezone.now())


def unknown(account, run):
    Run.objects.filter(pk=run.pk).update(agent="test.gone")


@pytest.mark.parametrize(
    ("happens", "why"),
    [(other_agent, "what is eligible is not of one agent"), (pruned, "nothing is"), (unknown, "nothing is")],
)
def test_an_edit_that_can_be_made_no_more_starts_nothing(console, account, agent, happens, why):
    run = run_of(account)
    address = "/admin/bulk-plan/?kind=requeue&source=runs"
    sent = opened(console, address, **{"input.line": "mended"})
    happens(account, run)
    sent.pop("up_to")  # as if the other one had been there

    answer = console.post(address, sent)

    assert answer.status_code == 400
    assert f"The input cannot be changed: {why}" in text(answer)
    assert not BulkOperation.objects.exists()


def test_an_edit_by_who_may_not_see_payloads_is_refused(account, agent):
    run = run_of(account)
    client = signed_in("runs.requeue_run", "workers.run_bulkoperation")
    assert "The input cannot be changed here: that is for those" in text(client.get(MANY))

    answer = client.post(MANY, opened(client, first=str(run.pk), **{"input.line": "mended"}))

    assert answer.status_code == 400
    assert not BulkOperation.objects.exists()


def test_runs_that_succeeded_of_another_agent_are_not_edited_with_the_others(console, account, agent):
    run_of(account)
    builders.make_run("succeeded", account=account, agent="probe.ret", input={})
    address = "/admin/bulk-plan/?kind=requeue&source=runs"

    answer = console.post(address, opened(console, address, with_succeeded="on", **{"input.line": "mended"}))

    assert answer.status_code == 400
    assert not BulkOperation.objects.exists()


# -- opened first ----------------------------------------------------------------------------------------------------
def test_the_input_is_neither_sent_nor_required_before_it_is_asked_for(console, account, agent):
    run_of(account, {})
    page = text(console.get(MANY))

    sent = filled(page, reason="repaired")

    assert not [name for name in sent if name.startswith(("input.", "whole"))]
    assert " required" not in page[page.index('id="plan-form"') :].split("</form>")[0].replace("(required)", "")
    assert "<details" not in page
    console.post(MANY, sent)
    assert inputs() == [{}] or BulkOperation.objects.get().total == 1


def test_without_a_script_plan_again_opens_it_and_a_start_does_not_go_on(console, account, agent):
    run_of(account)
    sent = filled(text(console.get(MANY)), edit_input="on", reason="repaired")

    start, look = console.post(MANY, sent), console.post(MANY, sent | {"look": "1"})

    assert (start.status_code, look.status_code) == (400, 200)
    assert "the input is shown now" in text(start)
    assert not BulkOperation.objects.exists()
    shown = filled(text(look))
    assert shown["input.line"] == "one\r\ntwo"
    console.post(MANY, shown | {"input.line": "mended"})
    assert inputs() == [{**GIVEN, "line": "mended"}]


def test_a_long_input_is_not_offered_to_be_edited(console, account, agent):
    run_of(account, {**GIVEN, "line": "x" * TEXT_SHOWN})

    page = text(console.get(MANY))

    assert f"up to {TEXT_SHOWN:,} can be edited here" in page
    assert "edit_input" not in page
    assert len(page) < TEXT_SHOWN
    console.post(MANY, filled(page, reason="repaired"))
    assert BulkOperation.objects.exists()


def test_the_longest_input_that_is_offered_can_be_sent_back(console, account, agent):
    deep: object = [0] * (TEXT_SHOWN // 3 - 400)
    for _ in range(50):
        deep = [deep]
    run_of(account, {**GIVEN, "line": "ä" * 100, "deep": {"x": deep}})

    sent = opened(console)

    assert "input.deep" in sent
    assert sum(map(len, sent.values())) * 9 < settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    assert console.post(MANY, sent).status_code == 302


def test_the_old_value_stands_among_the_choices_under_no_name_of_theirs() -> None:
    given = {"kind": "z"}
    spec = AgentSpec(name="x", handler=print, input_schema={"properties": {"kind": {"enum": [schema_form.KEPT, "a"]}}})
    made = schema_form.showing(schema_form.fields_for(spec)["input.kind"], given, "kind", None)

    assert made.initial == f"{schema_form.KEPT}."
    assert [label for _, label in made.choices] == ['as it was: "z"', made.choices[1][1], schema_form.KEPT, "a"]


# -- one run ---------------------------------------------------------------------------------------------------------
def test_the_difference_of_a_single_edit_is_kept_and_shown(console, account):
    run = builders.make_run("failed", account=account, agent="probe.ret", input={"value": 1, "own": "x"})
    address = f"/admin/requeue-plan/?run={run.pk}"

    answer = console.post(address, opened(console, address, whole_input='{"value": 2, "own": "x"}'))

    new = Run.objects.get(retry_of=run.pk)
    assert answer["Location"].endswith(f"{new.pk}/change/")
    assert new.input == {"value": 2, "own": "x"}
    item = BulkItem.objects.get(new_run=new.pk)
    page = text(console.get(f"/admin/workers/bulkoperation/{item.operation_id}/change/"))
    assert "Input changed" in page
    shown = text(console.get(f"/admin/runs/run/{new.pk}/change/"))
    assert "run.made_by_bulk" in shown
    assert "Input changed" in shown


def test_an_input_the_agent_does_not_take_is_told_and_nothing_starts(console, account, agent):
    run = builders.make_run("failed", account=account, agent="probe.ret", input={"value": 1})
    one = f"/admin/requeue-plan/?run={run.pk}"
    run_of(account)

    answers = [
        console.post(one, opened(console, one, whole_input="{")),
        console.post(MANY, opened(console, whole_input='{"line": 1}')),
        console.post(MANY, opened(console, **{"input.count": "0"})),
    ]

    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert "correct what is marked" in text(answers[1])
    assert not BulkOperation.objects.exists()
