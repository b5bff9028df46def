"""The page of one run: why it is not moving, its attempts side by side, and the acts on it."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from quotas.models import Account, AuditEntry
from runs import controls
from runs.models import Attempt, Run
from runs.services import reprioritise
from tests import builders, working

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def console(client: Client, operator: Any) -> Client:
    client.force_login(operator)
    return client


def page_of(run: Run, **query: Any) -> str:
    return reverse("admin:runs_run_change", args=[run.pk], query=query or None)


def facts_of(client: Client, run: Run, **query: Any) -> Any:
    return client.get(reverse("admin:run_facts", args=[run.pk], query=query or None)).json()


def two_attempts(account: Account) -> Run:
    """A failed run of two attempts that failed at different places, at different cost."""
    run = builders.make_run("failed", account=account, attempt=2, max_attempts=2, cost=3_000_000)
    began = timezone.now() - dt.timedelta(seconds=60)
    first = {"class": "timeout", "type": "TimeLimit", "message": "too slow", "traceback": "a\nb\nc"}
    second = {"class": "timeout", "type": "TimeLimit", "message": HOSTILE, "traceback": "a\nB\nc"}
    run.attempts.update(
        number=1,
        error=first,
        error_class="timeout",
        cost=1_000_000,
        usage={"m": {"input": 10}},
        started_at=began,
        ended_at=began + dt.timedelta(seconds=10),
    )
    Attempt.objects.create(
        run=run,
        fence=4,
        number=2,
        worker="built-worker",
        started_at=began,
        ended_at=began + dt.timedelta(seconds=15),
        outcome="failed",
        error=second,
        error_class="timeout",
        cost=2_000_000,
        usage={"m": {"input": 10, "output": 7}},
    )
    return run


# -- why ---------------------------------------------------------------------------------------------------------------
def test_the_page_says_at_its_top_why_a_run_is_not_moving(console: Client, account: Account) -> None:
    run = working.submit(account)

    page, facts = console.get(page_of(run)).content.decode(), facts_of(console, run)

    assert facts["why"]["code"] == "no_worker"
    assert facts["why"]["text"].startswith("No worker is alive, and none ever was.")
    assert 'id="run-why" class="why" data-code="no_worker">No worker is alive' in page
    ended = builders.make_run("succeeded", account=account)
    assert facts_of(console, ended)["why"] == {"code": "", "text": "It has ended."}


def test_what_a_pause_says_is_shown_as_text(console: Client, account: Account) -> None:
    controls.pause_queue(queue="default", actor="alice", reason=HOSTILE)
    page = console.get(page_of(working.submit(account))).content.decode()

    assert HOSTILE not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_trace_of_the_submit_is_told(console: Client, account: Account) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    traced = builders.make_run(account=account, traceparent=f"00-{trace}-00f067aa0ba902b7-01")

    assert f"trace <code>{trace}</code>" in console.get(page_of(traced)).content.decode()
    assert "trace <code>" not in console.get(page_of(builders.make_run(account=account))).content.decode()


def test_the_lease_is_told_in_seconds_for_the_script_to_count(console: Client, account: Account) -> None:
    run = builders.make_run("running", account=account)
    facts = facts_of(console, run)

    assert 55 < facts["lease_seconds"] <= 60
    assert [row for row in facts["head"] if row[2] == "lease"] == [["Lease left", "1 m 0 s", "lease"]]
    assert facts_of(console, working.submit(account))["lease_seconds"] is None


# -- two attempts ------------------------------------------------------------------------------------------------------
def test_two_attempts_stand_side_by_side_with_what_differs_first(console: Client, account: Account) -> None:
    run = two_attempts(account)

    compare = facts_of(console, run)["compare"]

    assert (compare["a"], compare["b"]) == (2, 4)
    assert compare["left"] == "Attempt 1, failed, fence 2"
    assert compare["rows"][:5] == [
        ["Message", "TimeLimit: too slow", f"TimeLimit: {HOSTILE}", True],
        ["Traceback from line 2", "b", "B", True],
        ["Tokens, m output", "0", "7", True],
        ["Cost", "1", "2 (+1)", True],
        ["Ran", "10 s", "15 s", True],
    ]
    assert [row[0] for row in compare["rows"] if not row[3]][:3] == ["Outcome", "Error", "Tokens, m input"]
    page = console.get(page_of(run)).content.decode()
    assert HOSTILE not in page
    assert '<tr class="differs"><th scope="row">Message' in page


def test_which_two_are_compared_is_in_the_address(console: Client, account: Account) -> None:
    run = two_attempts(account)

    swapped = facts_of(console, run, a=4, b=2)["compare"]
    odd = facts_of(console, run, a="x", b=99)["compare"]

    assert (swapped["a"], swapped["b"], swapped["rows"][3]) == (4, 2, ["Cost", "2", "1 (-1)", True])
    assert (odd["a"], odd["b"]) == (2, 4)
    assert '<option value="4" selected>' in console.get(page_of(run, a=4, b=2)).content.decode()
    assert facts_of(console, builders.make_run("failed", account=account))["compare"]["rows"] == []


def test_without_the_permission_no_message_is_compared(client: Client, account: Account) -> None:
    run = two_attempts(account)
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))

    rows = facts_of(client, run)["compare"]["rows"]

    assert {"Message", "Traceback from line 2"} & {row[0] for row in rows} == set()
    assert "too slow" not in client.get(page_of(run)).content.decode()


# -- acts --------------------------------------------------------------------------------------------------------------
def test_change_of_priority_from_the_page(console: Client, account: Account) -> None:
    run = working.submit(account)
    assert facts_of(console, run)["may_reprioritise"] is True

    answer = console.post(
        reverse("admin:run_priority", args=[run.pk]), {"priority": "high", "reason": "urgent"}, follow=True
    )

    run.refresh_from_db()
    assert (run.priority, run.fence) == ("high", 2)
    assert "The priority is high now." in answer.content.decode()
    again = console.post(reverse("admin:run_priority", args=[run.pk]), {"priority": "high"})
    assert (again.status_code, AuditEntry.objects.count()) == (302, 1)
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.reason) == ("run.reprioritise", "operator", "urgent")
    assert facts_of(console, run)["audit"][0][1:] == [
        "operator",
        "run.reprioritise",
        "priority: normal → high",
        "urgent",
    ]


def test_a_requeue_leads_to_its_plan(console: Client, account: Account) -> None:
    run = builders.make_run("failed", account=account)

    page = console.get(page_of(run)).content.decode()

    assert f'href="{reverse("admin:requeue_plan")}?run={run.pk}"' in page
    assert console.get(reverse("admin:requeue_plan"), {"run": str(run.pk)}).status_code == 200


@pytest.mark.parametrize(("state", "word"), [("running", "high"), ("queued", "nonsense"), ("queued", "")])
def test_a_priority_that_cannot_be_is_a_message(console: Client, account: Account, state: str, word: str) -> None:
    run = builders.make_run(state, account=account)

    answer = console.post(reverse("admin:run_priority", args=[run.pk]), {"priority": word}, follow=True)

    run.refresh_from_db()
    assert answer.status_code == 200
    assert [message.level_tag for message in answer.context["messages"]] == ["error"]
    assert (run.priority, AuditEntry.objects.count()) == ("normal", 0)


def test_only_priorities_of_the_account_and_only_waiting_runs_are_offered(client: Client, account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(max_priority="normal")
    run = builders.make_run(account=Account.objects.get(pk=account.pk))
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))
    assert facts_of(client, run)["may_reprioritise"] is False
    client.force_login(builders.make_operator("mover", permissions=["view_run", "reprioritise_run"]))

    page = client.get(page_of(run)).content.decode()

    form = page[page.index('id="run-priority"') : page.index("Change priority")]
    assert form.count("<option") == 2
    assert "<option selected>normal</option><option>low</option>" in form
    assert facts_of(client, builders.make_run("running", account=account))["may_reprioritise"] is False


def test_the_audit_of_a_run_shows_no_part_of_an_input(console: Client, account: Account) -> None:
    run = working.submit(account)
    reprioritise(run.pk, "low", "alice")
    AuditEntry.objects.create(
        actor="alice", action="run.requeue", target_type="run", target_id=str(run.pk), after={"input": {"secret": "s3"}}
    )

    assert "s3" not in str(facts_of(console, run)["audit"])
