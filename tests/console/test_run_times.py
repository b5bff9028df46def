"""What the pages say about a run's time and attempts: what it waits for, what it was asked, why it was set aside."""

import datetime as dt
import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from quotas.models import Account
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(builders.make_user("root", is_staff=True, is_superuser=True))
    return client


def test_scheduled_runs_are_found_and_say_what_they_wait_for(root: Client, account: Account) -> None:
    late = builders.make_run("scheduled", account=account, not_before=timezone.now() + dt.timedelta(minutes=5))
    holder = builders.make_run(account=account, session="s", session_slot="x" * 64)
    behind = builders.make_run("scheduled", account=account, session="s", blocked_by_session="x" * 64)

    rows = root.get("/admin/runs/run/?state=scheduled").content.decode()
    pages = {run.pk: root.get(f"/admin/runs/run/{run.pk}/facts.json").json() for run in (late, holder, behind)}

    assert re.search(r"in 4 m \d+ s", rows)
    assert "behind its session" in rows
    assert f"/admin/runs/run/{holder.pk}/change/" not in rows
    assert pages[late.pk]["when"].startswith("not before 20")
    assert (pages[holder.pk]["when"], pages[behind.pk]["when"]) == ("", "waiting for its session")
    address = f"/admin/runs/run/{holder.pk}/change/"
    assert pages[behind.pk]["links"] == [["Waits for the session's run", str(holder.pk), address]]
    assert "x" * 64 not in json.dumps(list(pages.values())) + rows


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "It is moving."),
        ({"stop_requested": "no_progress"}, "Its limit of no progress passed, and its worker was asked"),
        (
            {"stop_requested": "deadline", "cancel_requested_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
            "Cancel was requested ",
        ),
        ({"stop_requested": "unheard-of"}, "Its unheard-of passed, "),
    ],
    ids=str,
)
def test_a_running_run_says_what_was_asked_of_it(
    root: Client, account: Account, columns: dict[str, Any], said: str
) -> None:
    run = builders.make_run("running", account=account, max_attempts=3, **columns)

    facts = root.get(f"/admin/runs/run/{run.pk}/facts.json").json()

    assert facts["why"]["text"].startswith(said)
    assert facts["head"][0] == ["Attempt", "1 of 3", ""]
    assert ["Attempts", "3"] in facts["limits"]


def test_a_dead_letter_shows_why_and_the_answer_that_was_not_accepted(root: Client, account: Account) -> None:
    error = {"class": "bad_output", "type": "BadOutput", "message": "no number", "traceback": "", "cause": "exhausted"}
    run = builders.make_run(
        "failed", account=account, error=error, result_json='{"said": "ANSWER"}', attempt=3, max_attempts=3
    )
    letter = builders.make_dead_letter(run, reason="exhausted")
    for reason in ("fatal", "crash_loop", "queue_timeout", "quota_exceeded"):
        builders.make_dead_letter(builders.make_run("failed", account=account), reason=reason)

    page = root.get(f"/admin/workers/deadletter/{letter.pk}/change/").content.decode()
    facts = root.get(f"/admin/runs/run/{run.pk}/facts.json").json()
    found = root.get("/admin/workers/deadletter/?reason=crash_loop").content.decode()
    root.force_login(builders.make_operator("viewer", permissions=["view_deadletter"]))
    closed = root.get(f"/admin/workers/deadletter/{letter.pk}/change/").content.decode()

    assert ("ANSWER" in page, "3 of 3" in page, "Exhausted" in page) == (True, True, True)
    assert (facts["result_name"], "ANSWER" in facts["result"]) == ("Last answer, not accepted", True)
    assert facts["error"] == "BadOutput: no number\n\nIts last attempt failed as well."
    assert ("Crash Loop" in found, found.count('class="run-id"')) == (True, 1)
    assert ("ANSWER" in closed, "3 of 3" in closed) == (False, True)
