"""What a submit may say about the life of its run: when it begins, how long it may take, how often it is tried."""

import datetime as dt

import pytest
from django.utils import timezone

from runs.models import Run
from tests import working
from tests.api import RUNS, Api, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(api_key):
    return Api(api_key)


def seconds(start, end):
    return (dt.datetime.fromisoformat(end) - dt.datetime.fromisoformat(start)).total_seconds()


@pytest.mark.parametrize("field", ["time_limit", "delay", "deadline_seconds"])
@pytest.mark.parametrize("value", [None, -1, 0, "PT0S", "0", "", False, 10**12, -0.001], ids=repr)
def test_f23_a_duration_that_means_no_limit_is_refused(api, field, value):
    """An absent field takes the agent's default; nothing takes a limit away. A delay of 0 is none, and is taken."""
    answer = api.submit(**{field: value})

    if (field, value) == ("delay", 0) and value is not False:
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    else:
        assert problem(answer, 400, "invalid_request")["errors"][0]["path"] == field
        assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"deadline_seconds": 5, "delay": 6}, "deadline_seconds"),
        ({"start_at": "9999-12-31T23:59:59Z"}, "start_at"),
        ({"agent": "closed", "on_lost": "rerun"}, "on_lost"),
        ({"agent": "closed", "max_attempts": 2}, "max_attempts"),
        ({"agent": "closed", "time_limit": 2}, "time_limit"),
    ],
    ids=str,
)
def test_what_cannot_be_or_the_agent_does_not_allow_is_refused_by_name(api, fields, field):
    with working.registered("closed"):
        assert problem(api.submit(**fields), 400, "invalid_request")["field"] == field
    assert not Run.objects.exists()


def test_a_delayed_run_is_scheduled_and_listed_as_such(api):
    queued = api.submit().json()
    answer = api.submit(delay=3600, deadline_seconds=7200)
    late = answer.json()

    assert (answer.status_code, late["state"], late["blocked_by_session"]) == (202, "scheduled", None)
    assert seconds(late["submitted_at"], late["not_before"]) == 3600
    assert seconds(late["submitted_at"], late["deadline_at"]) == 7200
    assert late["waits_until"] == late["deadline_at"]  # a queue wait begins when it may begin
    assert [run["id"] for run in api.get(f"{RUNS}?state=scheduled").json()["results"]] == [late["id"]]
    assert [run["id"] for run in api.get(f"{RUNS}?state=queued").json()["results"]] == [queued["id"]]
    assert seconds(queued["submitted_at"], queued["waits_until"]) == 1800
    assert (queued["not_before"], queued["deadline_at"], queued["stop_requested"]) == (None, None, "")


def test_a_start_time_is_one_moment_whatever_its_offset(api):
    at = (timezone.now() + dt.timedelta(hours=2)).replace(microsecond=0)
    there = at.astimezone(dt.timezone(dt.timedelta(hours=-7, minutes=-30)))

    first = api.submit(start_at=at.isoformat(), key="k")
    again = api.submit(start_at=there.isoformat(), key="k")
    past = api.submit(start_at="2020-01-01T00:00:00Z")

    assert (first.json()["state"], dt.datetime.fromisoformat(first.json()["not_before"])) == ("scheduled", at)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    assert (past.json()["state"], past.json()["not_before"]) == ("queued", None)


def test_a_busy_session_is_refused_waited_for_or_replaced(api):
    holder = api.submit(session="s").json()
    problem(api.submit(session="s"), 409, "session_busy")
    problem(api.submit(session="s", on_busy="reject"), 409, "session_busy")
    behind = api.submit(session="s", on_busy="enqueue").json()

    assert (behind["state"], behind["blocked_by_session"], behind["not_before"]) == ("scheduled", "s", None)
    instead = api.submit(session="s", on_busy="replace").json()
    assert (instead["state"], instead["blocked_by_session"]) == ("queued", None)
    assert [api.get(f"{RUNS}/{run['id']}").json()["state"] for run in (holder, behind)] == ["cancelled"] * 2


def test_what_a_submit_says_about_attempts_and_limits_is_shown(api):
    plain = api.submit().json()
    own = api.submit(time_limit=7, max_attempts=9, on_lost="rerun").json()

    limits = ("time_limit_seconds", "wall_clock_seconds", "no_progress_seconds", "max_attempts", "on_lost")
    assert [plain[name] for name in limits] == [600.0, 1800.0, None, 1, "interrupt"]
    assert [own[name] for name in limits] == [7.0, 1800.0, None, 9, "rerun"]
    listed = api.get(RUNS).json()["results"][0]
    assert {name: listed[name] for name in limits} == {name: own[name] for name in limits}
    assert api.submit(on_lost="rerun").json()["max_attempts"] == 3
