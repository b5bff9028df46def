"""Filters of `GET /runs`."""

import pytest

from runs.states import RunState
from tests import builders
from tests.api import RUNS, Api, problem
from workers.case_filing import file_letters
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(api_key):
    return Api(api_key)


def test_lists_are_filtered(api, account):
    running = builders.make_run(
        RunState.RUNNING, account=account, session="s:1", tags=["a", "ü 😀"], metadata={"customer": "acme"}
    )
    failed = builders.make_run(RunState.FAILED, account=account, agent="probe.boom", tags=["a'b", "ab"])

    def ids(query):
        return [run["id"] for run in api.get(RUNS, query_params=query).json()["results"]]

    assert ids({"state": "running"}) == [str(running.id)]
    assert ids({"agent": "probe.boom"}) == [str(failed.id)]
    assert ids({"session": "s:1"}) == [str(running.id)]
    assert ids({"tag": "a"}) == [str(running.id)]
    assert ids({"tag": "ü 😀"}) == [str(running.id)]
    assert ids({"tag": "a'b"}) == [str(failed.id)]
    assert ids({"tag": "%"}) == []
    assert ids({"state": "failed", "tag": "a"}) == []
    assert ids({"metadata": "customer"}) == ids({"metadata": "customer=acme"}) == [str(running.id)]
    assert ids({"metadata": "customer=other"}) == []
    assert ids({"from": "2020-01-01"}) == ids({"to": "2100-01-01"}) == [str(failed.id), str(running.id)]
    assert ids({"to": "2020-01-01T00:00:00+01:00"}) == []


def test_a_list_is_filtered_by_the_case_of_a_dead_letter_and_shows_none_of_another_account(api, account, other_account):
    letters = [builders.make_dead_letter(builders.make_run("failed", account=one)) for one in (account, other_account)]
    file_letters(letters)
    DeadLetter.objects.bulk_update(letters, ["case"])

    found = api.get(RUNS, query_params={"fingerprint": letters[1].case.fingerprint}).json()["results"]

    assert letters[0].case == letters[1].case
    assert [run["id"] for run in found] == [str(letters[0].run_id)]
    assert api.get(RUNS, query_params={"fingerprint": "0" * 64}).json()["results"] == []


@pytest.mark.parametrize("query", [{"from": "yesterday"}, {"to": "2026-13-01"}, {"from": "2026-01-01T00:00:00"}])
def test_a_filter_that_says_nothing_is_refused(api, query):
    problem(api.get(RUNS, query_params=query), 400, "invalid_parameter")


@pytest.mark.parametrize("key", ["worker", "account", "min_cost", "error", "q"])
def test_what_only_operators_filter_by_is_unknown_here(api, key):
    problem(api.get(RUNS, query_params={key: "x"}), 400, "unknown_parameter")
