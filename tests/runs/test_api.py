"""Runs over HTTP: submit, read, cancel, retry, files, tickets, and who may do what."""

from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from quotas.models import ApiKey, Hold
from quotas.standing import Standing
from runs import tickets
from runs.models import Attempt, Run
from runs.states import RunState
from tests import builders, working
from tests.api import RUNS, Api, problem

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(api_key):
    return Api(api_key)


@pytest.fixture
def other_api(other_account):
    return Api(builders.make_api_key(other_account)[1])


def test_submit_is_accepted_and_can_be_read(api, account):
    response = api.submit(session="s/1", metadata={"a": [1]}, tags=["x"], priority="low")

    assert response.status_code == 202
    body = response.json()
    assert response["Location"] == f"{RUNS}/{body['id']}"
    assert {k: body[k] for k in ("state", "agent", "input", "priority", "session", "account", "metadata", "tags")} == {
        "state": "queued",
        "agent": "probe.ret",
        "input": {"value": 1},
        "priority": "low",
        "session": "s/1",
        "account": account.name,
        "metadata": {"a": [1]},
        "tags": ["x"],
    }
    assert body["hold"] == Hold.objects.get(run_id=body["id"]).amount
    assert body["is_terminal"] is False
    read = api.get(response["Location"])
    assert read.status_code == 200
    assert (body["why"], read.json()["why"]["code"]) == (None, "no_worker")
    assert read.json() | {"why": None} == body


def test_a_submit_does_not_read_back_what_it_knows_and_the_estimate_stays(api):
    with CaptureQueriesContext(connection) as queries:
        body = api.submit().json()
    read = [query["sql"] for query in queries if query["sql"].startswith("SELECT")]
    assert not [sql for sql in read if "runs_transition" in sql or "runs_attempt" in sql]
    (claim,) = working.claim(Run.objects.get(pk=body["id"]))
    Run.objects.filter(pk=claim.run.pk).update(budget=body["estimate"] * 3)

    assert api.get(f"{RUNS}/{body['id']}").json()["estimate"] == body["estimate"] == body["hold"]


def test_same_idempotency_key_and_body_answer_the_first_run(api):
    first = api.submit(key="k: 1/2%2F*{}")
    again = api.submit(key="k: 1/2%2F*{}")

    assert (first.status_code, again.status_code) == (202, 200)
    assert again["Idempotent-Replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]
    problem(api.submit(value=2, key="k: 1/2%2F*{}"), 422, "idempotency_mismatch")
    problem(api.submit(key="k: 1/2%2F*{}", tags=["other"]), 422, "idempotency_mismatch")
    assert Run.objects.count() == 1


def test_idempotency_keys_of_accounts_do_not_meet(api, other_api):
    mine = api.submit(key="k").json()["id"]
    theirs = other_api.submit(key="k")
    assert theirs.status_code == 202
    assert theirs.json()["id"] != mine
    assert other_api.submit(value=2, key="k").status_code == 422


def test_a_wrong_method_type_or_host_is_told_what_would_be_right(api):
    wrong = api.client.delete(RUNS)
    problem(wrong, 405, "method_not_allowed")
    assert "POST" in wrong["Allow"]
    form = problem(api.client.post(RUNS, {"agent": "x"}), 415, "unsupported_media_type")
    assert "Send Content-Type: application/json" in form["detail"]
    host = problem(api.get(RUNS, headers={"host": "evil.example"}), 400, "unknown_host")
    assert "AGENTOPS_ALLOWED_HOSTS" in host["detail"]
    page = api.get("/admin/", headers={"host": "evil.example"})
    assert (page.status_code, b"AGENTOPS_ALLOWED_HOSTS" in page.content) == (400, True)


def test_another_accounts_run_is_not_there(api, other_account):
    run = builders.make_run(RunState.SUCCEEDED, account=other_account)
    for path in ("", "/artifacts", "/artifacts/x"):
        assert api.get(f"{RUNS}/{run.id}{path}").status_code == 404
    for verb in ("cancel", "retry", "ticket"):
        problem(api.post(f"{RUNS}/{run.id}/{verb}"), 404, "no_such_run")
    assert api.get(RUNS).json()["results"] == []


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"agent": "no.such"}, 422, "unknown_agent"),
        ({"agent": 7}, 400, "invalid_request"),
        ({"agent": ""}, 400, "invalid_request"),
        ({"agent": "x" * 121}, 400, "invalid_request"),
        ({"priority": "urgent"}, 400, "invalid_request"),
        ({"priority": "critical"}, 403, "priority_too_high"),
        ({"on_busy": "wait"}, 400, "invalid_request"),
        ({"on_busy": None}, 400, "invalid_request"),
        ({"on_lost": "forget"}, 400, "invalid_request"),
        ({"max_attempts": 0}, 400, "invalid_request"),
        ({"max_attempts": 1001}, 400, "invalid_request"),
        ({"max_attempts": 2.5}, 400, "invalid_request"),
        ({"max_attempts": True}, 400, "invalid_request"),
        ({"max_attempts": "3"}, 400, "invalid_request"),
        ({"max_attempts": None}, 400, "invalid_request"),
        ({"start_at": "2031-05-01T09:00:00"}, 400, "invalid_request"),
        ({"start_at": "2031-05-01"}, 400, "invalid_request"),
        ({"start_at": "2031-02-30T09:00:00Z"}, 400, "invalid_request"),
        ({"start_at": "0001-01-01T00:00:00+14:00"}, 400, "invalid_request"),
        ({"start_at": "9999-12-31T23:59:59-01:00"}, 400, "invalid_request"),
        ({"start_at": 1_900_000_000}, 400, "invalid_request"),
        ({"start_at": None}, 400, "invalid_request"),
        ({"start_at": "2020-01-01T00:00:00Z", "delay": 0}, 400, "invalid_request"),
        ({"session": "x" * 201}, 400, "invalid_request"),
        ({"session": 5}, 400, "invalid_request"),
        ({"metadata": []}, 400, "invalid_request"),
        ({"metadata": {"x": "y" * 17_000}}, 400, "invalid_request"),
        ({"tags": ["x"] * 21}, 400, "invalid_request"),
        ({"tags": ["x" * 61]}, 400, "invalid_request"),
        ({"tags": "x"}, 400, "invalid_request"),
        ({"time_limit": 0}, 400, "invalid_request"),
        ({"time_limit": True}, 400, "invalid_request"),
        ({"time_limit": "5"}, 400, "invalid_request"),
        ({"time_limit": 2**63 - 1}, 400, "invalid_request"),
        ({"prioritty": "high"}, 400, "invalid_request"),
        ({"max_cost": -1}, 400, "invalid_request"),
    ],
)
def test_a_bad_field_is_refused_and_nothing_is_kept(api, account, fields, status, code):
    body = problem(api.submit(**fields), status, code)
    if code == "invalid_request":
        assert body["errors"][0]["path"].startswith(next(iter(fields)))
    assert not Run.objects.exists()
    assert not Hold.objects.exists()


def test_missing_fields_are_named(api):
    body = problem(api.post(RUNS, {}), 400, "invalid_request")
    assert {error["path"] for error in body["errors"]} == {"agent", "input"}


def test_input_outside_the_schema_is_refused_with_its_path(api):
    body = problem(api.submit(agent="probe.sleep", input={"seconds": "x"}), 400, "invalid_input")
    assert body["errors"]


def test_scopes(account):
    reader = Api(builders.make_api_key(account, scopes=["read"])[1])
    run = builders.make_run(RunState.RUNNING, account=account)
    body = problem(reader.submit(), 403, "scope_missing")
    assert (body["needed"], body["scopes"]) == ("submit", ["read"])
    problem(reader.post(f"{RUNS}/{run.id}/cancel"), 403, "scope_missing")
    assert reader.get(RUNS).status_code == 200
    problem(Api(builders.make_api_key(account, scopes=["submit"])[1]).get(RUNS), 403, "scope_missing")


@pytest.mark.parametrize("key", ["", "x", "ao_x_y", "ao_\0_y", "ao_" + "9" * 500 + "_y", "ключ"])
def test_a_key_that_is_none_is_401(db, key):
    response = Client().get(RUNS, headers={"authorization": f"Bearer {key}"})
    problem(response, 401, "invalid_api_key")
    assert response["WWW-Authenticate"] == "Bearer"


def test_nobody_is_401(db):
    response = Client().get(RUNS)
    problem(response, 401, "not_authenticated")
    assert response["WWW-Authenticate"] == "Bearer"


def test_a_session_needs_the_csrf_token_to_write(member):
    client = Client(enforce_csrf_checks=True)
    client.force_login(member, backend="django.contrib.auth.backends.ModelBackend")
    body = {"agent": "probe.ret", "input": {}}
    assert client.get(RUNS).status_code == 200
    problem(client.post(RUNS, body, content_type="application/json"), 403, "csrf_failed")
    token = "t" * 32
    client.cookies["csrftoken"] = token
    response = client.post(RUNS, body, content_type="application/json", headers={"X-CSRFToken": token})
    assert response.status_code == 202
    assert Run.objects.get().submitted_by == "member"


def test_the_account_header_chooses_among_the_users_own(member, other_account, account):
    client = Client()
    client.force_login(member, backend="django.contrib.auth.backends.ModelBackend")
    assert client.get("/api/v1/quota", headers={"X-AgentOps-Account": account.name}).json()["account"] == account.name
    for name in (other_account.name, "no such", "x" * 300, "a\0b", "ÿ", "мой"):
        response = client.get("/api/v1/quota", headers={"X-AgentOps-Account": name})
        assert response.status_code in {403, 404}, name


def test_lists_are_paged_newest_first(api, account):
    made = [str(builders.make_run(account=account).id) for _ in range(5)]
    seen, after = [], ""
    for _ in range(3):
        page = api.get(f"{RUNS}?limit=2{after}").json()
        seen += [run["id"] for run in page["results"]]
        after = f"&after={page['next']}"
    assert seen == made[::-1]
    assert page["next"] is None
    assert "input" not in page["results"][0]
    assert "result" not in page["results"][0]


def test_a_list_costs_the_same_queries_whatever_its_length(api, account, django_assert_max_num_queries):
    for _ in range(8):
        builders.make_run(account=account)
    with django_assert_max_num_queries(4):  # key, its last use, runs
        api.get(RUNS)


def test_cancel_says_what_it_did(api, account):
    queued, running = builders.make_run(account=account), builders.make_run(RunState.RUNNING, account=account)
    done = builders.make_run(RunState.SUCCEEDED, account=account)

    first = api.post(f"{RUNS}/{queued.id}/cancel", {"reason": "not needed"})
    assert (first.status_code, first.json()["what"], first.json()["run"]["state"]) == (200, "cancelled", "cancelled")
    assert api.post(f"{RUNS}/{queued.id}/cancel").status_code == 200
    second = api.post(f"{RUNS}/{running.id}/cancel")
    assert (second.status_code, second.json()["what"]) == (202, "requested")
    assert second.json()["run"]["cancel_requested_at"]
    body = problem(api.post(f"{RUNS}/{done.id}/cancel"), 409, "run_ended")
    assert body["state"] == "succeeded"


def test_retry_makes_one_linked_run(api, account):
    old = builders.make_run(RunState.FAILED, account=account, input={"value": 5})

    first = api.post(f"{RUNS}/{old.id}/retry", {}, **{"idempotency-key": "r"})
    assert first.status_code == 202
    new = first.json()
    assert (new["retry_of"], new["input"], new["state"]) == (str(old.id), {"value": 5}, "queued")
    assert api.get(f"{RUNS}/{old.id}").json()["retried_by"] == new["id"]
    again = api.post(f"{RUNS}/{old.id}/retry", {}, **{"idempotency-key": "r"})
    assert (again.status_code, again.json()["id"]) == (200, new["id"])
    body = problem(api.post(f"{RUNS}/{old.id}/retry"), 409, "already_requeued")
    assert body["retried_by"] == new["id"]
    problem(api.post(f"{RUNS}/{new['id']}/retry"), 409, "not_ended")


def test_a_ticket_is_good_once_for_its_run(api, api_key, account):
    run = builders.make_run(account=account)
    response = api.post(f"{RUNS}/{run.id}/ticket")
    assert response.status_code == 201
    ticket = response.json()["ticket"]
    standing = Standing(account.pk, key_id=ApiKey.objects.get().pk)
    assert tickets.redeem(ticket) == tickets.Redeemed(run.id, account.pk, standing)
    assert tickets.redeem(ticket) is None
    assert tickets.redeem("") is None
    assert tickets.redeem("\ud800") is None
    staff = Standing(user_id=7, session_key="a session's own key, 32 long ....", permissions=("runs.view_run",))
    again = tickets.issue(run.id, account.pk, staff)
    assert again != ticket
    assert tickets.redeem(again) == tickets.Redeemed(run.id, account.pk, staff)


def test_a_ticket_without_redis_is_503(api, account, own_redis):
    run = builders.make_run(account=account)
    own_redis.kill()
    response = api.post(f"{RUNS}/{run.id}/ticket")
    problem(response, 503, "redis_unavailable")
    assert response["Retry-After"] == "1"


def test_a_submit_without_redis_is_accepted(api, own_redis):
    own_redis.kill()
    assert api.submit().status_code == 202


def test_agents_are_listed_with_their_schema(api):
    listed = api.get("/api/v1/agents").json()["results"]
    one = next(item for item in listed if item["name"] == "probe.ret")
    assert one["input_schema"]["type"] == "object"
    assert api.get("/api/v1/agents/probe.ret").json() == one
    assert {name: one[name] for name in ("policy", "max_attempts", "backoff", "on_drain", "isolation", "allow")} == {
        "policy": "interrupt",
        "max_attempts": 1,
        "backoff": {"base": 5.0, "cap": 300.0},
        "on_drain": "interrupt",
        "isolation": "loop",
        "allow": ["max_attempts", "on_lost", "time_limit"],
    }
    assert (one["wall_clock_seconds"], one["no_progress_seconds"]) == (1800.0, None)
    problem(api.get("/api/v1/agents/no/such"), 404, "no_such_agent")


def test_the_request_id_goes_in_and_out(api):
    assert api.get(RUNS, headers={"X-Request-ID": "a.B-1_2"})["X-Request-ID"] == "a.B-1_2"
    for bad in ("", "a b", "x" * 65, "ü", "a\nb"):
        made = api.get(RUNS, headers={"X-Request-ID": bad})["X-Request-ID"]
        assert made != bad
        UUID(made)
    run = Run.objects.get(pk=api.post(RUNS, {"agent": "probe.ret", "input": {}}, **{"x-request-id": "r1"}).json()["id"])
    assert run.request_id == "r1"


def test_traceparent_is_kept_when_it_is_one(api):
    good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    for given, kept in ((good, good), ("junk", "")):
        response = api.post(RUNS, {"agent": "probe.ret", "input": {}}, traceparent=given)
        assert Run.objects.get(pk=response.json()["id"]).traceparent == kept


def test_cors_is_for_the_named_origins_only(api, settings):
    preflight = {"access-control-request-method": "POST"}
    settings.AGENTOPS_ALLOWED_ORIGINS = ["https://app.example"]
    good = api.client.options(RUNS, headers={"origin": "https://app.example", **preflight})
    assert good.status_code == 204
    assert good["Access-Control-Allow-Origin"] == "https://app.example"
    assert "Idempotency-Key" in good["Access-Control-Allow-Headers"]
    bad = api.client.options(RUNS, headers={"origin": "https://evil.example", **preflight})
    assert "Access-Control-Allow-Origin" not in bad
    answer = api.get(RUNS, headers={"origin": "https://app.example"})
    assert answer["Access-Control-Allow-Origin"] == "https://app.example"
    assert "Origin" in answer["Vary"]
    assert "Access-Control-Allow-Credentials" not in answer
    settings.AGENTOPS_ALLOWED_ORIGINS = []
    assert "Access-Control-Allow-Origin" not in api.get(RUNS, headers={"origin": "https://app.example"})


def test_wrong_method_and_unknown_address_are_problems(api):
    response = api.client.delete(f"{RUNS}/{uuid4()}")
    problem(response, 405 if response.status_code == 405 else 403, response.json()["code"])
    problem(api.get("/api/v1/nothing"), 404, "not_found")
    problem(api.get("/api"), 404, "not_found")
    problem(Client(enforce_csrf_checks=True).post("/api/v1/nothing"), 404, "not_found")
    problem(api.client.get(RUNS, headers={"accept": "text/html"}), 406, "not_acceptable")


def test_everything_that_is_not_the_api_keeps_djangos_pages(client):
    assert client.get("/nothing")["Content-Type"].startswith("text/html")
    assert client.get("/")["Location"].startswith("/admin/")


def test_a_run_shows_its_attempts_and_the_result_that_a_cancel_overtook(api, account):
    run = builders.make_run("cancelled", account=account, started=True)
    Attempt.objects.filter(run=run).update(result_json='{"a":1}', progress={"done": 1, "total": 2, "message": "m"})

    shown = api.get(f"{RUNS}/{run.id}").json()

    (attempt,) = shown["attempts"]
    assert (attempt["number"], attempt["fence"], attempt["result"]) == (1, 2, {"a": 1})
    assert shown["progress"] == {"done": 1, "total": 2, "message": "m"}
