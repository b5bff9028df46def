"""The page to submit a run by hand: a form from the schema, errors at their fields, one run if pressed twice."""

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from agentops.console import schema_form
from quotas.models import Account
from quotas.prices import install_default_prices
from runs.agents import AgentSpec
from runs.models import Run, StoredFile
from tests import builders

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
