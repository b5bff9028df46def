"""Refusals of money carry facts (money 8, 9): what is missing, the limit, when it is worth coming back."""

import datetime as dt
import json
import random

import pytest
from django.utils import timezone

from quotas.models import AMOUNT_MAX, Account, Hold
from runs import selectors
from runs.models import Run
from tests import builders, invariants, working
from tests.api import RUNS, Api, problem

pytestmark = pytest.mark.django_db
ESTIMATE = 1000  # of probe.ret, micro-units


@pytest.fixture(autouse=True)
def fresh_backlog():
    selectors._backlog.clear()


@pytest.fixture
def api(api_key):
    return Api(api_key)


@pytest.fixture
def other_api(other_account):
    return Api(builders.make_api_key(other_account)[1])


def limits(account, **fields):
    Account.objects.filter(pk=account.pk).update(**fields)


def refused(response, status, code):
    """Insist on the refusal and that the account's figures still are what its rows say. Returns the problem."""
    body = problem(response, status, code)
    invariants.check_money(Account.objects.all())
    return body


# -- 402 -------------------------------------------------------------------------------------------------------------
def test_too_little_money_is_a_402_with_every_figure_and_the_end_of_the_period(api, account):
    builders.make_run("succeeded", account=account, cost=700)
    limits(account, limit=2500)
    api.submit()

    response = api.submit()

    body = refused(response, 402, "quota_exceeded")
    figures = {name: body[name] for name in ("account", "limit", "spent", "held", "available", "needed")}
    assert figures == {
        "account": "acme", "limit": 2500, "spent": 700, "held": 1000, "available": 800, "needed": 1000,
    }  # fmt: skip
    quota = api.get("/api/v1/quota").json()
    assert {name: quota[name] for name in ("limit", "spent", "held", "available")}.items() <= body.items()
    ends = dt.datetime.fromisoformat(body["period_ends_at"])
    assert ends == dt.datetime.fromisoformat(quota["period_ends_at"])
    wait = (ends - timezone.now()).total_seconds()
    assert abs(int(response["Retry-After"]) - wait) < 60
    assert "0.0008 of 0.0025 credits available; this run needs 0.001; the period ends at" in body["detail"]


def test_where_nothing_resets_no_time_to_come_back_is_told(api, account):
    limits(account, limit=ESTIMATE - 1, period="none")

    response = api.submit()

    body = refused(response, 402, "quota_exceeded")
    assert body["period_ends_at"] is None
    assert "Retry-After" not in response
    assert "period" not in body["detail"]


def test_what_was_spent_in_an_earlier_period_stands_in_nobodys_way(api, account):
    limits(account, limit=ESTIMATE, spent=ESTIMATE, spent_period="2001-01")

    assert api.submit().status_code == 202


def test_an_account_deep_in_overdraft_is_told_so(api, account):
    builders.make_run("succeeded", account=account, cost=5000)
    limits(account, limit=1000)

    assert refused(api.submit(), 402, "quota_exceeded")["available"] == -4000


# -- 429 -------------------------------------------------------------------------------------------------------------
def test_too_many_runs_in_flight_is_a_429_with_the_limit(api, account):
    limits(account, max_in_flight=1)
    api.submit()

    response = api.submit()

    body = refused(response, 429, "too_many_in_flight")
    assert (body["account"], body["in_flight"], body["limit"]) == ("acme", 1, 1)
    assert int(response["Retry-After"]) > 0


def test_a_full_queue_is_a_429_with_its_limit(api, account, settings):
    settings.BACKLOG_LIMIT = 1
    api.submit()
    selectors._backlog.clear()

    response = api.submit()

    body = refused(response, 429, "backlog_full")
    assert (body["queue"], body["backlog"], body["limit"]) == ("default", 1, 1)
    assert int(response["Retry-After"]) > 0


def test_more_runs_than_may_be_at_work_are_no_refusal(api, account):
    limits(account, max_running=1)

    assert [api.submit().status_code for _ in range(3)] == [202] * 3


# -- the fault list --------------------------------------------------------------------------------------------------
NO_AMOUNTS = ["-1", "0.1", "NaN", "-Infinity", "1e999", "true", "null", '"7"']
NO_AMOUNTS += [str(number) for number in (2**63, -(2**63) - 1, 2**62, AMOUNT_MAX + 1)]


@pytest.mark.parametrize("number", NO_AMOUNTS)
@pytest.mark.parametrize("place", ["estimate", "max_cost", "max_attempts"])
@pytest.mark.parametrize("query", ["", "?dry_run=1"])
def test_f42_no_amount_of_a_request_is_negative_broken_or_absurd(api, account, number, place, query):
    field = f'"{place}": {number}'
    rest = f'"input": {{{field}}}' if place == "estimate" else f'"input": {{}}, {field}'
    before = working.rows()

    body = f'{{"agent": "probe.spend", {rest}}}'
    response = api.client.generic("POST", RUNS + query, body, content_type="application/json")

    assert response.status_code == 400, (response.status_code, response.content)
    assert response.json()["code"] in {"invalid_number", "invalid_request", "invalid_input"}
    assert working.new_rows(before) == {}
    account.refresh_from_db()
    assert (account.spent, account.held, account.in_flight) == (0, 0, 0)


def test_f42_the_largest_amount_there_is_is_held_and_no_more(api, account):
    limits(account, limit=AMOUNT_MAX)
    run_input = {"estimate": AMOUNT_MAX}

    assert api.post(RUNS, {"agent": "probe.spend", "input": run_input}).json()["budget"] == AMOUNT_MAX
    assert refused(api.submit(), 402, "quota_exceeded")["available"] == 0


def test_f61_an_idempotency_key_is_its_accounts_own(api, other_api, account, other_account):
    first = api.submit(key="k", value="of A").json()

    for value in ("of A", "of B"):
        theirs = other_api.submit(key=f"k {value}", value=value)
        api.submit(key=f"k {value}", value="of A")
        assert theirs.status_code == 202
    same = other_api.submit(key="k", value="of A")

    assert (same.status_code, "Idempotent-Replayed" in same) == (202, False)
    assert same.json()["id"] != first["id"]
    assert other_api.submit(key="k", value="of A").json()["id"] == same.json()["id"]
    mismatch = problem(other_api.submit(key="k", value="of B"), 422, "idempotency_mismatch")
    assert mismatch["run"] == same.json()["id"]
    assert first["id"] not in json.dumps(mismatch)
    assert set(Run.objects.filter(pk=first["id"]).values_list("account", flat=True)) == {account.pk}
    assert Hold.objects.filter(account=other_account).count() == Run.objects.filter(account=other_account).count() == 3
    for path in ("", "/artifacts"):
        assert other_api.get(f"{RUNS}/{first['id']}{path}").status_code == 404


def test_f63_a_forged_address_evades_no_limit(api, account):
    limits(account, max_in_flight=5)
    chance = random.Random(63)

    answers = []
    for _ in range(50):
        address = ".".join(str(chance.randrange(256)) for _ in range(4))
        forged = dict.fromkeys(("x-forwarded-for", "x-real-ip", "x-client-ip", "client-ip"), address)
        forged |= {"forwarded": f"for={address}", "x-agentops-account": "globex"}
        answers.append(api.post(RUNS, {"agent": "probe.ret", "input": {}}, **forged))

    assert [answer.status_code for answer in answers] == [202] * 5 + [429] * 45
    assert refused(answers[-1], 429, "too_many_in_flight")["limit"] == 5
    assert Run.objects.filter(account=account).count() == 5
