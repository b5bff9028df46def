"""`POST /runs?dry_run=1` and its like: what a submit would be answered now, and nothing is stored."""

import pytest
from django.utils import timezone

from quotas.models import Account, Hold
from runs import selectors
from runs.estimates import recent
from runs.models import Run
from runs.services import preview_run
from runs.services.estimating import forget_costs
from runs.services.sessions import slot_of
from tests import builders, working
from tests.api import RUNS, Api, problem

pytestmark = pytest.mark.django_db
ESTIMATE = 1000  # of probe.ret, micro-units


@pytest.fixture(autouse=True)
def fresh_backlog():
    selectors._backlog.clear()


@pytest.fixture
def api(api_key):
    return Api(api_key)


def limits(account, **fields):
    Account.objects.filter(pk=account.pk).update(**fields)


def dry(api, path=f"{RUNS}?dry_run=1", **fields):
    """Make a dry run and insist that no table has a row more, nor an account another figure. Returns the answer."""
    before, figures = working.rows(), list(Account.objects.order_by("pk").values())
    response = api.post(path, fields if "retry" in path else {"agent": "probe.ret", "input": {}} | fields)
    assert working.new_rows(before) == {}
    assert list(Account.objects.order_by("pk").values()) == figures
    return response


def answer(api, *path, **fields):
    response = dry(api, *path, **fields)
    assert response.status_code == 200, response.content
    return response.json()


def codes(body):
    assert body["allowed"] == (not body["limits_hit"])
    return [hit["code"] for hit in body["limits_hit"]]


def test_it_tells_estimate_figures_and_place_and_stores_nothing(api, account):
    limits(account, limit=5000, max_running=1)
    builders.make_run(account=account, estimate=700)
    builders.make_run(account=account, priority="low")

    body = answer(api)

    told = {name: body.pop(name) for name in ("estimate", "allowed", "limits_hit", "state", "queue_position")}
    assert told == {"estimate": 1000, "allowed": True, "limits_hit": [], "state": "queued", "queue_position": 2}
    figures = {name: body[name] for name in ("limit", "spent", "held", "available", "in_flight", "max_running")}
    assert figures == {"limit": 5000, "spent": 0, "held": 700, "available": 4300, "in_flight": 2, "max_running": 1}
    assert (body["dry_run"], body["agent"], body["queue"], body["priority"]) == (True, "probe.ret", "default", "normal")
    assert body["period_ends_at"] > timezone.now().isoformat()


def test_it_names_every_limit_that_is_hit_with_the_facts_of_the_refusal(api, account, settings):
    settings.BACKLOG_LIMIT = 1
    run = builders.make_run(account=account, estimate=600, session_slot=slot_of("s"))
    limits(account, limit=1500, max_in_flight=1)

    body = answer(api, session="s")

    assert codes(body) == ["backlog_full", "session_busy", "too_many_in_flight", "quota_exceeded"]
    backlog, busy, flight, quota = body["limits_hit"]
    assert (backlog["status"], backlog["backlog"], backlog["limit"], backlog["retry_after"]) == (429, 1, 1, 10)
    assert (busy["status"], busy["run"]) == (409, str(run.pk))
    assert (flight["status"], flight["in_flight"], flight["limit"]) == (429, 1, 1)
    assert (quota["status"], quota["available"], quota["needed"]) == (402, 900, 1000)
    assert (body["state"], body["queue_position"]) == (None, None)


def test_a_run_that_would_wait_has_no_place_in_the_queue(api, account):
    working.submit(account, session="s")

    for fields in ({"delay": 60}, {"session": "s", "on_busy": "enqueue"}):
        body = answer(api, **fields)
        assert (body["allowed"], body["state"], body["queue_position"]) == (True, "scheduled", None)


def test_what_it_would_replace_makes_room(api, account):
    limits(account, limit=1500, max_in_flight=1)
    working.submit(account, session="s")

    body = answer(api, session="s", on_busy="replace")

    assert (codes(body), body["held"], body["in_flight"], body["state"]) == ([], 0, 0, "queued")
    assert api.post(RUNS, {"agent": "probe.ret", "input": {}, "session": "s", "on_busy": "replace"}).status_code == 202


def test_a_running_run_that_it_would_replace_goes_on_counting(api, account):
    limits(account, limit=1500)
    working.claim(working.submit(account, session="s"))

    body = answer(api, session="s", on_busy="replace")

    assert (codes(body), body["held"]) == (["quota_exceeded"], 1000)


def test_lapsed_holds_and_a_past_period_do_not_count(api, account):
    limits(account, limit=1500, spent=1500, spent_period="2001-01")
    builders.make_run(account=account, estimate=1500)
    Hold.objects.update(expires_at=timezone.now() - timezone.timedelta(seconds=1))

    body = answer(api)

    assert (codes(body), body["spent"], body["held"]) == ([], 0, 0)


@pytest.mark.parametrize(
    ("status", "code", "fields"),
    [
        (400, "invalid_request", {"agent": 7}),
        (400, "invalid_request", {"unknown": 1}),
        (400, "invalid_input", {"input": {"bytes": -1}}),
        (400, "invalid_request", {"delay": 60, "deadline_seconds": 30}),
        (403, "priority_too_high", {"priority": "critical"}),
        (422, "unknown_agent", {"agent": "no.such"}),
        (400, "invalid_request", {"on_busy": "steal"}),
    ],
)
def test_what_a_submit_would_never_take_is_refused_as_there(api, status, code, fields):
    problem(dry(api, **fields), status, code)


@pytest.mark.parametrize("value", ["", "true", "yes", "2", "01", "-1", "1&dry_run=1"])
def test_a_dry_run_that_is_not_understood_spends_nothing(api, value):
    problem(dry(api, f"{RUNS}?dry_run={value}"), 400, "invalid_parameter")


def test_zero_is_a_real_submit(api):
    assert api.post(f"{RUNS}?dry_run=0", {"agent": "probe.ret", "input": {}}).status_code == 202


def test_it_needs_the_scope_of_a_submit(account):
    reader = Api(builders.make_api_key(account, scopes=["read"])[1])

    problem(dry(reader), 403, "scope_missing")


def test_neither_a_key_nor_a_window_is_looked_at_or_taken(api, account):
    first = api.submit(key="k").json()
    with working.registered("test.once", dedupe_seconds=60.0):
        working.submit(account, agent="test.once")
        assert answer(api, agent="test.once")["allowed"]
        body = {"agent": "probe.ret", "input": {"value": 2}}
        response = api.post(f"{RUNS}?dry_run=1", body, **{"idempotency-key": "k"})
        assert response.json()["allowed"], "a submit would be a mismatch"
        api.post(f"{RUNS}?dry_run=1", body, **{"idempotency-key": "fresh"})

    assert api.submit(value=3, key="fresh").status_code == 202
    assert api.submit(key="k").json()["id"] == first["id"]
    problem(api.post(f"{RUNS}?dry_run=1", body, **{"idempotency-key": "x" * 201}), 400, "invalid_idempotency_key")


def test_a_requeue_can_be_tried_too(api, account):
    old = builders.make_run("failed", account=account)
    path = f"{RUNS}/{old.pk}/retry?dry_run=1"

    assert answer(api, path)["estimate"] == 1000
    limits(account, limit=999)
    assert codes(answer(api, path)) == ["quota_exceeded"]
    limits(account, limit=9999)

    assert api.post(f"{RUNS}/{old.pk}/retry").status_code == 202
    problem(dry(api, path), 409, "already_requeued")
    problem(dry(api, f"{RUNS}/{builders.make_run(account=account).pk}/retry?dry_run=1"), 409, "not_ended")
    problem(dry(api, f"{RUNS}/{builders.make_run('failed').pk}/retry?dry_run=1"), 404, "no_such_run")


def test_files_may_follow_a_preview(account):
    schema = {"type": "object", "properties": {"file": {"format": "file"}}}
    with working.registered("test.file", input_schema=schema, estimate=7):
        to_come = {"file": "00000000-0000-0000-0000-000000000000"}

        found = preview_run(account=account, agent="test.file", input=to_come, actor="tester", files_follow=True)

    assert (found.estimate, found.is_allowed, Run.objects.count()) == (7, True, 0)


# -- the answer of a real submit, and the list of agents -------------------------------------------------------------
def test_a_submit_answers_its_estimate_and_what_is_reserved(api):
    submitted = api.submit().json()

    assert (submitted["estimate"], submitted["budget"], submitted["hold"]) == (1000, 1000, 1000)
    assert api.get(f"{RUNS}/{submitted['id']}").json()["estimate"] == 1000
    listed = api.get(RUNS).json()["results"][0]
    assert listed["budget"] == 1000
    assert "estimate" not in listed


def test_the_list_of_agents_has_the_estimate_as_it_would_be_now(api, account):
    with working.registered("test.varied", estimate=recent(typical=500)):
        before = api.get("/api/v1/agents/test.varied").json()
        for _ in range(20):
            builders.make_run("succeeded", account=account, agent="test.varied", cost=80)
        forget_costs()
        after = api.get("/api/v1/agents/test.varied").json()
    by_name = {row["name"]: row for row in api.get("/api/v1/agents").json()["results"]}

    assert [(row["estimate"], row["estimate_kind"]) for row in (before, after)] == [(500, "recent"), (80, "recent")]
    fixed, function = by_name["probe.ret"], by_name["probe.spend"]
    assert (fixed["estimate"], fixed["estimate_kind"]) == (1000, "fixed")
    assert (function["estimate"], function["estimate_kind"]) == (3000, "function")
