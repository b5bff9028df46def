"""The page to submit a run by hand: a form from the schema, errors at their fields, one run if pressed twice."""

import datetime as dt
import json
import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from agentops.console import schema_form
from quotas.models import Account
from quotas.prices import install_default_prices
from runs.agents import AgentSpec
from runs.models import Run, StoredFile
from tests import builders, working

pytestmark = pytest.mark.django_db
EMIT = "/admin/submit/?agent=probe.emit"
FORM_ID = "0193a8b2-7c1e-7abc-8def-0123456789ab"


@pytest.fixture
def console(client: Client) -> Client:
    client.force_login(builders.make_user("root", is_staff=True, is_superuser=True))
    return client


def form_for(account: Account, **fields: Any) -> dict[str, Any]:
    return {
        "account": account.pk,
        "priority": "normal",
        "session": "",
        "metadata": "",
        "form_id": FORM_ID,
        **fields,
    }


def spec_of(schema: Any, **fields: Any) -> AgentSpec:
    return AgentSpec(name="x", handler=print, input_schema=schema, **fields)


def test_a_submitted_run_has_the_typed_input_and_the_page_leads_to_it(console: Client, account: Account) -> None:
    form = form_for(account, **{"input.count": "3", "input.seconds": "0.5", "metadata": '{"a": 1}', "session": "s"})

    answer = console.post(EMIT, form)

    run = Run.objects.get()
    assert answer["Location"] == f"/admin/runs/run/{run.pk}/change/"
    assert run.input == {"count": 3, "seconds": 0.5}
    assert (run.session, run.metadata, run.submitted_by, run.account) == ("s", {"a": 1}, "root", account)


def test_pressed_twice_is_one_run_and_changed_is_another(console: Client, account: Account) -> None:
    form = form_for(account, **{"input.count": "3"})

    first, second = console.post(EMIT, form), console.post(EMIT, form)
    changed = console.post(EMIT, {**form, "input.count": "4"})

    assert first["Location"] == second["Location"] != changed["Location"]
    assert Run.objects.count() == 2


def test_the_whole_input_as_json_goes_before_the_fields(console: Client, account: Account) -> None:
    console.post(EMIT, form_for(account, **{"input.count": "3", "whole_input": '{"count": 9}'}))

    assert Run.objects.get().input == {"count": 9}


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"input.count": "many"}, "input.count"),
        ({"input.count": "-5"}, "input.count"),
        ({"input.seconds": "NaN"}, "input.seconds"),
        ({"input.seconds": "Infinity"}, "input.seconds"),
        ({"whole_input": "{broken"}, "whole_input"),
        ({"whole_input": '{"a": 1, "a": 2}'}, "whole_input"),
        ({"whole_input": '{"a": NaN}'}, "whole_input"),
        ({"whole_input": "[" * 5000}, "whole_input"),
        ({"whole_input": '{"count": "three"}'}, "input.count"),
        ({"whole_input": "[]"}, "__all__"),
        ({"metadata": "[1]"}, "metadata"),
        ({"metadata": "\0"}, "metadata"),
        ({"session": "x\0y"}, "session"),
        ({"session": "x" * 300}, "session"),
        ({"account": "999999"}, "account"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": "critical"}, "priority"),
        ({"form_id": "nonsense"}, "form_id"),
        ({"on_busy": "wait"}, "on_busy"),
        ({"delay": "0"}, "delay"),
        ({"delay": "-5"}, "delay"),
        ({"delay": "PT0S"}, "delay"),
        ({"delay": "5", "start_at": "2031-05-01T09:00"}, "start_at"),
        ({"start_at": "tomorrow"}, "start_at"),
        ({"start_at": "9999-12-31T23:59"}, "start_at"),
        ({"deadline_seconds": "Infinity"}, "deadline_seconds"),
        ({"deadline_seconds": "5", "delay": "6"}, "deadline_seconds"),
        ({"time_limit": "0"}, "time_limit"),
        ({"time_limit": "86401"}, "time_limit"),
        ({"max_attempts": "0"}, "max_attempts"),
        ({"max_attempts": "2.5"}, "max_attempts"),
        ({"on_lost": "forget"}, "on_lost"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_at_its_field(console: Client, account: Account, fields: dict[str, str], at: str) -> None:
    answer = console.post(EMIT, form_for(account) | fields)

    assert (answer.status_code, list(answer.context["form"].errors)) == (400, [at])
    assert not Run.objects.exists()


def test_a_refusal_of_money_is_said_at_the_account(console: Client, account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(max_in_flight=0)

    answer = console.post(EMIT, form_for(account, **{"input.count": "1"}))

    assert list(answer.context["form"].errors) == ["account"]


def test_a_busy_session_is_said_at_the_session(console: Client, account: Account) -> None:
    console.post(EMIT, form_for(account, **{"input.count": "1", "session": "s"}))

    answer = console.post(EMIT, form_for(account, **{"input.count": "2", "session": "s"}))

    assert list(answer.context["form"].errors) == ["session"]


def test_the_options_go_with_the_run_and_are_open_when_something_was_said(console: Client, account: Account) -> None:
    said = {"delay": "90", "time_limit": "7.5", "max_attempts": "4", "on_lost": "rerun", "deadline_seconds": "600"}

    plain = console.get(EMIT).content.decode()
    wrong = console.post(EMIT, form_for(account, **said, **{"input.count": "many"})).content.decode()
    console.post(EMIT, form_for(account, **said, **{"input.count": "1"}))

    opened = re.compile(r"<details open>\s*<summary>Options")
    assert (opened.search(plain), bool(opened.search(wrong))) == (None, True)
    run = Run.objects.get()
    assert (run.state, run.time_limit_seconds, run.max_attempts, run.on_lost) == ("scheduled", 7.5, 4, "rerun")
    assert run.not_before is not None
    assert run.deadline_at is not None
    assert (run.not_before - run.submitted_at, run.deadline_at - run.submitted_at) == (
        dt.timedelta(seconds=90),
        dt.timedelta(seconds=600),
    )


def test_the_form_asks_only_what_the_agent_allows(console: Client, account: Account) -> None:
    with working.registered("closed", input_schema={"type": "object"}):
        page = console.get("/admin/submit/?agent=closed")
        answer = console.post(
            "/admin/submit/?agent=closed",
            form_for(account, whole_input="{}", start_at="2020-01-01T00:00", max_attempts=9),
        )

    fields = page.context["form"].fields
    assert {name: name in fields for name in ("on_busy", "delay", "max_attempts", "on_lost", "time_limit")} == {
        "on_busy": True,
        "delay": True,
        "max_attempts": False,
        "on_lost": False,
        "time_limit": False,
    }
    run = Run.objects.get()
    assert (answer.status_code, run.state, run.max_attempts) == (302, "queued", 1)


def test_a_busy_session_is_waited_for_when_the_form_says_so(console: Client, account: Account) -> None:
    form = form_for(account, **{"input.count": "1", "session": "s", "on_busy": "enqueue"})
    console.post(EMIT, form)

    answer = console.post(EMIT, form | {"input.count": "2"})

    run = Run.objects.latest("id")
    assert (answer.status_code, run.state, run.not_before) == (302, "scheduled", None)
    assert run.blocked_by_session is not None


def test_a_member_submits_for_their_own_accounts_only(client: Client, account: Account, other_account: Account) -> None:
    user = builders.make_operator("staff", permissions=["submit_run", "view_run"])
    user.memberships.create(account=account, role="member")
    user.memberships.create(account=other_account, role="viewer")
    client.force_login(user)

    page = client.get(EMIT)
    other = client.post(EMIT, form_for(other_account, **{"input.count": "1"}))
    own = client.post(EMIT, form_for(account, **{"input.count": "1"}))

    assert list(page.context["form"].fields["account"].queryset) == [account]
    assert (other.status_code, own.status_code, Run.objects.count()) == (400, 302, 1)


def test_a_file_of_the_form_is_stored_and_named_in_the_input(console: Client, account: Account) -> None:
    install_default_prices()
    upload = SimpleUploadedFile("../a<b>.txt", b"A sentence. Another one.", content_type="text/plain")

    answer = console.post("/admin/submit/?agent=document.digest", form_for(account, **{"input.file": upload}))

    stored = StoredFile.objects.get()
    assert (answer.status_code, stored.account, stored.name) == (302, account, "ab.txt")
    assert Run.objects.get().input["file"] == str(stored.pk)


def test_a_file_of_a_wrong_type_is_refused(console: Client, account: Account) -> None:
    upload = SimpleUploadedFile("x.pdf", b"MZ no pdf at all", content_type="application/pdf")

    answer = console.post("/admin/submit/?agent=document.digest", form_for(account, **{"input.file": upload}))

    assert (answer.status_code, StoredFile.objects.count()) == (400, 0)


# -- the form made from a schema -----------------------------------------------------------------


SCHEMA = {
    "type": "object",
    "required": ["prompt", "kind"],
    "properties": {
        "prompt": {"type": "string", "description": "What to say"},
        "title": {"type": "string", "maxLength": 20},
        "kind": {"type": "string", "enum": ["a", "b"]},
        "maybe": {"type": ["string", "null"]},
        "level": {"enum": [1, 2]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
        "ratio": {"type": "number"},
        "deep": {"type": "object"},
        "list": {"type": "array", "items": {"type": "string"}},
        "loud": {"type": "boolean"},
        "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "file": {"type": "string", "format": "file"},
        "odd": True,
    },
}


def test_each_kind_of_property_gets_its_field() -> None:
    fields = schema_form.fields_for(spec_of(SCHEMA, sample={"prompt": "Hello"}))

    assert {name: type(field).__name__ for name, field in fields.items()} == {
        "input.prompt": "TextField",
        "input.title": "TextField",
        "input.kind": "ChoiceField",
        "input.maybe": "TextField",
        "input.level": "JsonField",
        "input.count": "IntegerField",
        "input.ratio": "FloatField",
        "input.deep": "JsonField",
        "input.list": "JsonField",
        "input.loud": "BooleanField",
        "input.either": "JsonField",
        "input.file": "FileField",
        "whole_input": "JsonField",
    }
    assert (fields["input.prompt"].initial, fields["input.count"].initial) == ("Hello", 2)
    assert (fields["input.prompt"].required, fields["input.title"].required) == (True, False)


def test_what_is_typed_becomes_the_input_and_what_is_empty_is_left_out() -> None:
    spec = spec_of(SCHEMA)
    cleaned = {
        "input.prompt": "a\nb",
        "input.title": "",
        "input.count": 3,
        "input.ratio": None,
        "input.deep": {"x": [1]},
        "input.loud": False,
        "whole_input": None,
    }

    assert schema_form.input_from(spec, cleaned) == {"prompt": "a\nb", "count": 3, "deep": {"x": [1]}, "loud": False}


def test_line_ends_of_the_browser_do_not_reach_the_input() -> None:
    assert schema_form.TextField().clean("a\r\nb ") == "a\nb "


@pytest.mark.parametrize(
    "schema", [True, {}, {"type": "object"}, {"type": "array"}, {"properties": {}}], ids=json.dumps
)
def test_a_schema_without_properties_is_typed_as_json(schema: Any) -> None:
    assert list(schema_form.fields_for(spec_of(schema))) == ["whole_input"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("prompt", "input.prompt"),
        ("deep/x/0", "input.deep"),
        ("list/3", "input.list"),
        ("", None),
        ("unknown", None),
    ],
)
def test_an_error_finds_its_field(path: str, field: str | None) -> None:
    assert schema_form.field_of(spec_of(SCHEMA), path) == field


# -- the estimate ----------------------------------------------------------------------------------------------------
def test_the_page_says_what_the_sample_would_cost_now(console: Client, account: Account) -> None:
    assert "Estimate now: 0.001 credits." in console.get(EMIT).content.decode()
    page = console.get("/admin/submit/?agent=probe.spend").content.decode()
    assert "Estimate now: 0.003 credits for the sample input." in page


def test_a_form_that_is_only_tried_says_what_it_would_cost_and_submits_nothing(
    console: Client, account: Account
) -> None:
    before = working.rows()

    answer = console.post(f"{EMIT}&dry_run=1", form_for(account, **{"input.count": "3"}))

    page = answer.content.decode()
    assert "It would cost about 0.001 credits" in page
    assert "The account acme has 100 of 100 credits available. Nothing was submitted." in page
    assert "It would be queued, as number 1 of default." in page
    assert 'value="3"' in page, "the form stays filled"
    assert (answer.status_code, working.new_rows(before)) == (200, {})


def test_a_form_that_is_tried_names_every_limit_in_words(console: Client, account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(max_in_flight=0, limit=500, period="none")

    page = console.post(f"{EMIT}&dry_run=1", form_for(account)).content.decode()

    assert "It would be refused:" in page
    assert "The account acme has 0 runs in flight; its limit is 0." in page
    assert "The account acme has 0.0005 of 0.0005 credits available; this run needs 0.001." in page


def test_a_form_that_is_tried_shows_what_is_wrong_at_its_field(console: Client, account: Account) -> None:
    answer = console.post(f"{EMIT}&dry_run=1", form_for(account, priority="critical"))

    assert (answer.status_code, list(answer.context["form"].errors)) == (400, ["priority"])


def test_a_file_of_a_form_that_is_tried_is_not_stored(console: Client, account: Account) -> None:
    install_default_prices()
    upload = SimpleUploadedFile("a.txt", b"text", content_type="text/plain")

    answer = console.post("/admin/submit/?agent=document.digest&dry_run=1", form_for(account, **{"input.file": upload}))

    assert "It would cost about" in answer.content.decode()
    assert not StoredFile.objects.exists()


def test_no_money_is_said_at_the_account_in_credits_with_the_end_of_the_period(
    console: Client, account: Account
) -> None:
    Account.objects.filter(pk=account.pk).update(limit=500)

    page = console.post(EMIT, form_for(account)).content.decode()

    assert "has 0.0005 of 0.0005 credits available; this run needs 0.001; the period ends at " in page
