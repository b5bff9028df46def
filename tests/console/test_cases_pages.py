"""The pages of cases and dead letters: what they show, to whom, and what their buttons do."""

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agentops.counting import count
from quotas.models import Account, AuditEntry
from runs import controls
from runs.models import Run
from tests import builders
from tests.console.test_pages import inline_parts
from workers.models import Case, DeadLetter

pytestmark = pytest.mark.django_db
LIST = "/admin/workers/case/"
LETTERS = "/admin/workers/deadletter/"
HOSTILE = '<script>alert(1)</script> \' onload="x" \u202e\u200b'


@pytest.fixture
def console(client: Client, operator: Any) -> Client:
    client.force_login(operator)
    return client


def letter_of(account: Account, message: str = "It is full", **fields: Any) -> DeadLetter:
    error = {
        "class": "agent_bug",
        "type": "KeyError",
        "message": message,
        "traceback": "Traceback: t",
        "cause": "fatal",
    }
    error |= fields.pop("error", {})
    agent = fields.pop("agent", "probe.ret")
    run = builders.make_run(
        "failed", account=account, agent=agent, error=error, error_class="agent_bug", cost=1_500_000
    )
    return builders.make_dead_letter(run, **fields)


def page_of(case: Any) -> str:
    return f"{LIST}{case}/change/"


def shown(client: Client, address: str, **query: str) -> str:
    answer = client.get(address, query)
    assert answer.status_code == 200, answer
    return answer.content.decode()


# -- the list --------------------------------------------------------------------------------------------------------
def test_the_list_shows_each_case_with_its_numbers(console: Client, account: Account) -> None:
    builders.make_operator("ann")
    for _ in range(3):
        letter = letter_of(account)
    console.post(f"{LIST}{letter.case_id}/assign/", {"owner": "ann"})

    text = shown(console, LIST)

    assert "KeyError" in text
    assert "It is full" in text
    for cell in ('field-count">3<', "4.50", 'field-owner_shown">ann<', "3 in 24 hours, at most 3 in an hour"):
        assert cell in text, cell
    assert '<rect x="115" y="0" width="4" height="20">' in text
    assert inline_parts(text) == []


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ({}, "full late"),
        ({"state_is": "waiting"}, "full"),
        ({"state_is": "resolved"}, "late"),
        ({"agent_is": "other.agent"}, "late"),
        ({"error_class_is": "agent_bug"}, "full late"),
        ({"error_class_is": "timeout"}, ""),
        ({"owner_is": "ann"}, "full"),
        ({"q": "is full"}, "full"),
        ({"q": "nothing like it"}, ""),
    ],
    ids=str,
)
def test_the_filters_of_the_list(console: Client, account: Account, query: dict[str, str], hits: str) -> None:
    builders.make_operator("ann")
    full, late = letter_of(account), letter_of(account, "It is late", agent="other.agent")
    console.post(f"{LIST}{full.case_id}/assign/", {"owner": "ann"})
    console.post(f"{LIST}{late.case_id}/resolve/")

    text = shown(console, LIST, **query)

    assert {name for name, row in {"full": full, "late": late}.items() if page_of(row.case_id) in text} == set(
        hits.split()
    )
    if full:
        assert page_of(full.case_id) in shown(console, LIST, q=str(full.case_id))


def test_words_are_looked_for_in_the_cases_seen_last(console: Client, account: Account, monkeypatch: Any) -> None:
    monkeypatch.setattr("workers.admin.cases.SEARCHED", 1)
    old, new = letter_of(account, "It is full", agent="other.agent"), letter_of(account, "It is full of it")

    found = shown(console, LIST, q="full")
    of_agent = shown(console, LIST, q="full", agent_is="other.agent")

    assert (page_of(old.case_id) in found, page_of(new.case_id) in found) == (False, True)
    assert page_of(old.case_id) in of_agent
    assert page_of(old.case_id) in shown(console, LIST, q=str(old.case_id))
    assert "of the 5,000 seen last" in found


def test_the_list_costs_as_many_statements_with_thirty_cases(console: Client, account: Account) -> None:
    letter_of(account, "a")
    shown(console, LIST)
    controls.forget()  # read by each page, and remembered for a second
    with count() as few:
        shown(console, LIST)
    for n in range(29):
        letter_of(account, "x" * (n + 2))
    controls.forget()
    with count() as many:
        shown(console, LIST)

    assert many.statements <= few.statements, many.sql
    assert not any("COUNT(*)" in sql and "LIMIT" not in sql for sql in many.sql)


def test_words_of_an_error_need_the_permission(client: Client, account: Account) -> None:
    letter = letter_of(account, "PAYLOAD of it", error={"traceback": "PAYLOAD of it", "type": "PAYLOAD of it"})
    views = ["view_case", "view_deadletter", "view_run"]
    client.force_login(builders.make_operator("viewer", permissions=views))

    for address in (LIST, page_of(letter.case_id), f"{LETTERS}{letter.pk}/change/", f"{LETTERS}?q=PAYLOAD"):
        assert "PAYLOAD of" not in client.get(address).content.decode(), address
    assert page_of(letter.case_id) not in shown(client, LIST, q="PAYLOAD")
    assert f"{LETTERS}{letter.pk}/change/" not in shown(client, LETTERS, q="PAYLOAD")
    assert f"{LETTERS}{letter.pk}/change/" in shown(client, LETTERS, q=str(letter.run_id))
    for name in ("assign-form", "note-form", "resolve-form"):
        assert name not in shown(client, page_of(letter.case_id))


# -- the page of one -------------------------------------------------------------------------------------------------
def test_the_page_of_a_case_shows_sample_accounts_notes_and_letters(console: Client, account: Account) -> None:
    letters = [letter_of(account) for _ in range(2)]
    console.post(f"{LIST}{letters[0].case_id}/note/", {"reason": "Known since the move."})

    text = shown(console, page_of(letters[0].case_id))

    for part in ("KeyError", "It is full", "Traceback: t", account.name, "Known since the move.", "case.note"):
        assert part in text, part
    for letter in letters:
        assert f"{LETTERS}{letter.pk}/change/" in text
    assert f"{LETTERS}?case={letters[0].case_id}" in text
    assert inline_parts(text) == []


def test_hostile_text_stays_text(console: Client, account: Account) -> None:
    letter = letter_of(account, HOSTILE, error={"type": HOSTILE[:100], "traceback": HOSTILE * 3000})
    console.post(f"{LIST}{letter.case_id}/note/", {"reason": HOSTILE})

    for address in (LIST, page_of(letter.case_id), LETTERS, f"{LETTERS}{letter.pk}/change/"):
        text = shown(console, address)
        assert "<script>alert" not in text, address
        assert inline_parts(text) == [], address


def test_the_letters_of_a_case_are_paged(console: Client, account: Account) -> None:
    first = letter_of(account)
    rows = [
        DeadLetter(case=first.case, reason="fatal", error_class="agent_bug", buried_at=timezone.now())
        for _ in range(30)
    ]
    DeadLetter.objects.bulk_create(rows)
    newest = DeadLetter.objects.order_by("-pk").values_list("pk", flat=True)

    text = shown(console, page_of(first.case_id))
    older = shown(console, page_of(first.case_id), before=str(newest[24]))

    assert f'?before={newest[24]}"' in text
    assert f"{LETTERS}{first.pk}/change/" not in text
    assert f"{LETTERS}{first.pk}/change/" in older
    assert "Newest" in older
    for odd in ("x", "-1", "9" * 40):
        assert console.get(page_of(first.case_id), {"before": odd}).status_code == 200


@pytest.mark.parametrize("pk", ["999999", "0", "-1", "x", "9" * 40, "²", "9" * 5000])
def test_a_case_or_letter_that_is_gone_is_a_404_with_words(console: Client, pk: str) -> None:
    for address in (page_of(pk), f"{LETTERS}{pk}/change/", f"/admin/workers/bulkoperation/{pk}/change/"):
        answer = console.get(address)
        assert (answer.status_code, b"There is nothing at this address" in answer.content) == (404, True), address


def test_a_case_without_letters_and_one_of_an_unknown_agent_have_their_page(console: Client) -> None:
    now = timezone.now()
    bare = Case.objects.create(fingerprint="x", reason="odd", agent="gone.agent", first_seen_at=now, last_seen_at=now)
    entry = Case.objects.create(
        fingerprint="y", reason="", state="odd", first_seen_at=now, last_seen_at=now, count=2**31 - 1,
        ignored_until=now, ignored_until_count=3, resolved_at=now,
    )  # fmt: skip

    for case in (bare, entry):
        assert "Retention has deleted its letters" in shown(console, page_of(case.pk))
    shown(console, LIST)


@pytest.mark.parametrize("error", ["a text", ["a"], {"message": None}, {"traceback": {"a": 1}}, None], ids=str)
def test_an_odd_error_still_renders(console: Client, account: Account, error: Any) -> None:
    letter = letter_of(account)
    Run.objects.filter(pk=letter.run_id).update(error=error, agent="gone.agent", state="odd")

    shown(console, page_of(letter.case_id))
    shown(console, f"{LETTERS}{letter.pk}/change/")
    shown(console, LETTERS)


def test_open_letters_lead_to_the_plan_of_a_requeue_or_a_discard(client: Client, account: Account) -> None:
    case_id = letter_of(account).case_id
    views = ["view_case", "view_deadletter", "run_bulkoperation", "requeue_deadletter"]
    client.force_login(builders.make_operator("requeuer", permissions=views))

    text = shown(client, page_of(case_id))
    (address,) = re.findall(r'href="([^"]*bulk-plan[^"]*)">Requeue 1 open…<', text)

    assert address.replace("&amp;", "&").endswith(f"?kind=requeue&source=letters&case={case_id}&state_is=open")
    assert client.get(address.replace("&amp;", "&")).status_code == 200
    assert "Discard 1 open" not in text
    Case.objects.update(open_count=0)
    assert "bulk-plan" not in shown(client, page_of(case_id))


# -- acts ------------------------------------------------------------------------------------------------------------
ACTS = {
    "assign": ({"owner": "ann"}, "assigned"),
    "ignore": ({"hours": "24", "times": "5"}, "ignored"),
    "resolve": ({"version": "2.0"}, "resolved"),
    "note": ({"reason": "known"}, "open"),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_double_click_acts_once(console: Client, account: Account, act: str) -> None:
    builders.make_operator("ann")
    case_id, (form, state) = letter_of(account).case_id, ACTS[act]

    answers = [console.post(f"{LIST}{case_id}/{act}/", form, follow=True) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    case = Case.objects.get()
    assert case.state == state
    entries = AuditEntry.objects.filter(target_type="case")
    assert [(entry.actor, entry.action, entry.target_id) for entry in entries] == [
        ("operator", f"case.{act}", str(case_id))
    ]
    assert entries[0].request_id != ""
    assert "nothing was done" in str(next(iter(answers[1].context["messages"])))


def test_what_was_ignored_or_resolved_is_reopened(console: Client, account: Account) -> None:
    case_id = letter_of(account).case_id
    console.post(f"{LIST}{case_id}/ignore/", {"hours": "8", "times": ""})
    until = Case.objects.get().ignored_until

    assert until is not None
    assert abs(until - timezone.now() - dt.timedelta(hours=8)) < dt.timedelta(minutes=5)
    assert "Ignored until" in shown(console, page_of(case_id))
    console.post(f"{LIST}{case_id}/reopen/", {"reason": "too early"})
    assert (Case.objects.get().state, Case.objects.get().ignored_until) == ("open", None)
    assert "reopen-form" not in shown(console, page_of(case_id))


@pytest.mark.parametrize(
    ("act", "form"),
    [
        ("assign", {"owner": "no-such\0user"}),
        ("ignore", {"hours": "", "times": ""}),
        ("ignore", {"hours": "99999999999999999999", "times": "-3"}),
        ("note", {"reason": " "}),
        ("reopen", {}),
    ],
)
def test_a_form_without_sense_is_told_and_changes_nothing(
    console: Client, account: Account, act: str, form: dict[str, str]
) -> None:
    case_id = letter_of(account).case_id
    answer = console.post(f"{LIST}{case_id}/{act}/", form, follow=True)

    assert "nothing was done" in str(next(iter(answer.context["messages"])))
    assert (Case.objects.get().state, AuditEntry.objects.count()) == ("open", 0)
    assert console.post(f"{LIST}{10**9}/{act}/", form | {"hours": "1", "reason": "x"}).status_code == 404


def test_acts_need_the_permission_and_a_post(client: Client, account: Account) -> None:
    case_id = letter_of(account).case_id
    client.force_login(builders.make_operator("viewer", permissions=["view_case", "view_deadletter", "view_payload"]))
    refused = {act: client.post(f"{LIST}{case_id}/{act}/", {"reason": "x"}).status_code for act in [*ACTS, "reopen"]}
    client.force_login(builders.make_operator("triager", permissions=["triage_case"]))
    unread = client.get(page_of(case_id)).status_code
    gotten = client.get(f"{LIST}{case_id}/resolve/").status_code

    assert refused == dict.fromkeys([*ACTS, "reopen"], 403)
    assert (unread, gotten, Case.objects.get().state) == (403, 405, "open")


# -- dead letters ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ({"reason": "fatal"}, "one two"),
        ({"reason": "poison"}, "three"),
        ({"error_class": "agent_bug"}, "one two three"),
        ({"agent_is": "other.agent"}, "two"),
        ({"account": "other"}, "three"),
        ({"account": "no such"}, ""),
        ({"state_is": "discarded"}, "two"),
        ({"since": "2020-01-01", "until": "2020-01-31"}, "one"),
        ({"since": "2020-02-01"}, "two three"),
        ({"q": "is full"}, "one two three"),
    ],
    ids=str,
)
def test_the_filters_of_dead_letters(console: Client, account: Account, query: dict[str, str], hits: str) -> None:
    rows = {
        "one": letter_of(account, buried_at=dt.datetime(2020, 1, 31, 23, 59, tzinfo=dt.UTC)),
        "two": letter_of(account, agent="other.agent", state="discarded"),
        "three": letter_of(builders.make_account("other"), reason="poison"),
    }

    text = shown(console, LETTERS, **query)
    of_case = shown(console, LETTERS, case=str(rows["two"].case_id))

    assert {name for name, row in rows.items() if f"{LETTERS}{row.pk}/change/" in text} == set(hits.split())
    assert {name for name, row in rows.items() if f"{LETTERS}{row.pk}/change/" in of_case} == {"two"}


@pytest.mark.parametrize(
    ("address", "query", "told"),
    [
        (LETTERS, {"case": "x", "agent_is": "probe.ret"}, "case must be a number"),
        (LETTERS, {"reason": "odd"}, "reason must be one of"),
        (LETTERS, {"state_is": "odd"}, "state_is must be one of"),
        (LETTERS, {"since": "yesterday"}, "takes days"),
        (LETTERS, {"q": "x" * 400}, "at most 300 characters"),
        (LETTERS, {"resolved_by": "ann"}, "no filter &#x27;resolved_by&#x27;"),
        (LETTERS, {"nonsense": "1"}, "no filter &#x27;nonsense&#x27;"),
        (LIST, {"state_is": "odd"}, "takes one of waiting, open"),
        (LIST, {"owner": "1"}, "no filter"),
    ],
    ids=str,
)
def test_a_filter_that_means_nothing_is_told_and_shows_no_row(
    console: Client, account: Account, address: str, query: dict[str, str], told: str
) -> None:
    letter = letter_of(account)

    answer = console.get(address, query)
    text = answer.content.decode()

    assert answer.status_code == 400
    assert told in text
    assert f"{LETTERS}{letter.pk}/change/" not in text
    assert page_of(letter.case_id) not in text
    assert "changelist-filter" in text, "the filters are there to be mended"


@pytest.mark.parametrize("query", ["case=x&agent_is=probe.ret", "resolved_by=ann", "since=yesterday", "state_is=odd"])
def test_all_that_match_what_is_no_filter_are_not_planned(console: Client, account: Account, query: str) -> None:
    letter = letter_of(account)
    form = {"action": "plan_discard", "index": "0", "select_across": "1", "_selected_action": [letter.pk]}

    assert console.post(f"{LETTERS}?{query}", form).status_code == 400


def test_a_page_beyond_the_last_keeps_its_filters(console: Client, account: Account) -> None:
    now = timezone.now()
    DeadLetter.objects.bulk_create([DeadLetter(reason="fatal", error_class="agent_bug", buried_at=now)] * 51)

    answer = console.get(LETTERS, {"reason": "fatal", "p": "99"})

    assert (answer.status_code, "no such page" in answer.content.decode()) == (400, True)


def test_a_letter_links_to_its_case(console: Client, account: Account) -> None:
    letter = letter_of(account)

    for address in (LETTERS, f"{LETTERS}{letter.pk}/change/"):
        assert page_of(letter.case_id) in shown(console, address)


def test_an_action_with_nothing_selected_does_nothing(console: Client, account: Account) -> None:
    letter_of(account)

    answer = console.post(LETTERS, {"action": "plan_discard"}, follow=True)

    assert (answer.status_code, DeadLetter.objects.get().state) == (200, "open")
