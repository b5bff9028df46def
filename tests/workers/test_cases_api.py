"""Cases and the filters of dead letters over HTTP, and the filters by themselves: an account sees its share only."""

import pytest

from runs.errors import InvalidFilter, UnknownFilter
from tests import builders
from tests.api import Api, problem
from workers import cases
from workers.letter_filters import FILTERS, letters_matching
from workers.models import Case, DeadLetter

pytestmark = pytest.mark.django_db
SCOPES = ["admin"]


def letter_of(account, message="It is full", **fields):
    error = {"class": "agent_bug", "type": "KeyError", "message": message, "traceback": "", "cause": "fatal"}
    run = builders.make_run("failed", account=account, error=error, error_class="agent_bug", cost=7)
    return builders.make_dead_letter(run, **fields)


@pytest.fixture
def api(account):
    return Api(builders.make_api_key(account, scopes=SCOPES)[1])


def test_an_account_sees_what_it_has_of_a_case_and_no_more(api, account):
    mine, second = letter_of(account), letter_of(account, state="discarded")
    letter_of(builders.make_account("other"))

    row = api.get("/api/v1/cases").json()["results"][0]

    assert row == api.get(f"/api/v1/cases/{mine.case_id}").json()
    assert (Case.objects.get().count, Case.objects.get().account_count) == (3, 2)
    assert (row["id"], row["state"], row["count"], row["open_count"], row["cost"]) == (mine.case_id, "open", 2, 1, 14)
    assert (row["agent"], row["error_type"], row["pattern"]) == ("probe.ret", "KeyError", "It is full")
    assert (row["error_class"], row["reason"]) == ("agent_bug", "fatal")
    assert row["first_seen_at"] < row["last_seen_at"]
    assert second.case_id == mine.case_id


def test_a_case_of_another_account_is_not_there(api, account):
    others = letter_of(builders.make_account("other"))

    assert api.get("/api/v1/cases").json() == {"results": [], "next": None}
    problem(api.get(f"/api/v1/cases/{others.case_id}"), 404, "no_such_case")
    problem(api.get("/api/v1/cases/99999999999999999999"), 404, "no_such_case")
    assert api.get(f"/api/v1/dead-letters?case={others.case_id}").json()["results"] == []


def test_cases_come_in_pages_and_by_state(api, account):
    made = [letter_of(account, message).case_id for message in ("a", "b", "c")]
    cases.resolve(case_id=made[0], actor="ann")

    first = api.get("/api/v1/cases?limit=2").json()
    second = api.get(f"/api/v1/cases?limit=2&after={first['next']}").json()

    assert [row["id"] for page in (first, second) for row in page["results"]] == made[::-1]
    assert second["next"] is None
    assert [row["id"] for row in api.get("/api/v1/cases?state=resolved").json()["results"]] == made[:1]
    problem(api.get("/api/v1/cases?state=odd"), 400, "invalid_parameter")
    problem(api.get("/api/v1/cases?case=1"), 400, "unknown_parameter")


def test_a_dead_letter_names_its_case_and_is_found_by_it(api, account):
    one, other = letter_of(account), letter_of(account, "It is late")

    rows = api.get(f"/api/v1/dead-letters?case={one.case_id}").json()["results"]

    assert [(row["id"], row["case"]) for row in rows] == [(one.pk, one.case_id)]
    assert api.get(f"/api/v1/dead-letters/{other.pk}").json()["case"] == other.case_id
    DeadLetter.objects.filter(pk=one.pk).update(case=None)
    assert api.get(f"/api/v1/dead-letters/{one.pk}").json()["case"] is None
    problem(api.get("/api/v1/dead-letters?case=x"), 400, "invalid_parameter")


def test_cases_need_the_scope_admin(account):
    api = Api(builders.make_api_key(account)[1])

    problem(api.get("/api/v1/cases"), 403, "scope_missing")


# -- filters ---------------------------------------------------------------------------------------------------------
def test_filters_narrow_together_and_an_empty_one_narrows_nothing(account):
    one, two = letter_of(account), letter_of(account, state="discarded")
    letter_of(builders.make_account("other"))

    query = {"case": str(one.case_id), "account": account.name, "state_is": "open", "reason": "", "q": " "}
    assert list(letters_matching(query)) == [one]
    assert list(letters_matching({"ids": f"{two.pk},{one.pk}"})) == [two, one]
    assert list(letters_matching({"q": str(two.run_id)})) == [two]
    assert letters_matching({}).count() == 3


@pytest.mark.parametrize(
    "query",
    [
        {"case": "x"},
        {"case": "9" * 30},
        {"ids": "1,x"},
        {"ids": ",".join(["1"] * 201)},
        {"reason": "odd"},
        {"state_is": "all"},
        {"since": "yesterday"},
        {"until": "2030-01-01T00:00:00"},
        {"q": "x" * 301},
        {"account": "a\0b"},
    ],
    ids=str,
)
def test_a_value_that_means_nothing_is_refused_and_never_everything(query):
    with pytest.raises(InvalidFilter):
        letters_matching(query)


def test_an_unknown_filter_is_refused():
    with pytest.raises(UnknownFilter, match="state_is"):
        letters_matching({"state": "open"})
    assert set(FILTERS) >= {"state_is", "reason", "error_class", "agent_is", "case", "account", "since", "until"}
