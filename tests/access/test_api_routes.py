"""Every call of the API, tried by everybody who must not succeed, with the true ids of another account's rows."""

from collections.abc import Iterator

import pytest
from django.test import Client
from django.urls import get_resolver

from quotas.access import MEMBER_SCOPES
from runs.models import Run
from tests import builders
from tests.access.rules import API, CALLS, OTHERS, PUBLIC, Call, methods_of, routes
from tests.access.world import SCOPES, World, ask, ended_keys, key_of, signed_in, with_key

pytestmark = pytest.mark.django_db(transaction=True)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


@pytest.fixture
def world():
    return World()


def calls() -> Iterator[tuple[str, str, Call]]:
    """Yield (method, route, call) of every route that the resolver knows; the rules say how it is called."""
    for address, view in routes(get_resolver().url_patterns):
        if address.startswith(API) and address not in OTHERS:
            route = address.removeprefix(API)
            for method in sorted(methods_of(view)):
                yield method, route, CALLS[route][method]


def questions(world: World) -> Iterator[tuple[str, str, Call]]:
    """Yield (method, address, call), with each of the queries, about what account A has."""
    for method, route, call in calls():
        for address in world.addresses(route):
            for query in ("", *call.queries):
                yield method, address + world.filled(query), call


def others(world: World) -> dict[str, Client]:
    """Return the ways in which another account asks."""
    viewer = builders.make_user("viewer of b", account=world.b, role="viewer")
    root = builders.make_user("root", account=world.b, is_superuser=True)
    return {
        "key": with_key(world.stranger_key),
        "key that names A": with_key(world.stranger_key, **{"x-agentops-account": world.a.name}),
        "session of an owner": signed_in(world.stranger),
        "session of a viewer": signed_in(viewer),
        "session of a superuser who chose B": signed_in(root, **{"x-agentops-account": "other"}),
    }


def test_without_a_live_key_or_a_session_nobody_gets_an_answer(world):
    clients = [Client(), *(with_key(raw) for raw in ("", "nonsense", f"{world.raw}x", *ended_keys(world.a)))]
    gone = builders.make_user("gone", account=world.a, role="owner")
    clients.append(signed_in(gone))
    type(gone).objects.filter(pk=gone.pk).update(is_active=False)
    before, wrong = world.rows(), []

    for method, address, call in questions(world):
        for number, client in enumerate(clients):
            answer = ask(client, method, address, call)
            if answer.status_code != 401 or world.traces(answer, address):
                wrong.append((number, method, address, answer.status_code, world.traces(answer, address)))

    assert wrong == []
    assert world.rows() == before


def test_another_account_finds_and_changes_nothing(world):
    before, wrong = world.rows(), []

    for who, client in others(world).items():
        for method, address, call in questions(world):
            answer = ask(client, method, address, call)
            traces = world.traces(answer, address)
            allowed = {404, 403} if call.seen == "thing" else range(200, 500)
            if traces or answer.status_code not in allowed or (who == "key" and answer.status_code == 403):
                wrong.append((who, method, address, answer.status_code, traces))

    assert wrong == []
    assert world.rows() == before


def test_a_session_acts_for_no_account_it_does_not_belong_to(world):
    nobody = builders.make_user("nobody")
    refused = {404: signed_in(world.stranger, **{"x-agentops-account": world.a.name}), 403: signed_in(nobody)}
    before, wrong = world.rows(), []

    for status, client in refused.items():
        for method, address, call in questions(world):
            answer = ask(client, method, address, call)
            if answer.status_code != status or world.traces(answer, address, world.a.name):
                wrong.append((method, address, answer.status_code))

    assert wrong == []
    assert world.rows() == before


def test_a_key_needs_the_scope_of_the_call_and_no_other(world):
    keys = {scope: with_key(key_of(world.a, *(set(SCOPES) - {scope}))) for scope in SCOPES}
    before, wrong = world.rows(), []

    for method, address, call in questions(world):
        answer = ask(keys[call.scope], method, address, call)
        is_right = answer.status_code == 403 and answer.json()["needed"] == call.scope
        if not is_right or world.traces(answer, address):
            wrong.append((method, address, answer.status_code))

    assert wrong == []
    assert world.rows() == before


def test_with_the_scope_alone_the_call_is_answered_and_the_marks_would_be_seen(world):
    """The proof that the trials above can fail: the same questions, asked by whom they belong to."""
    keys = {scope: with_key(key_of(world.a, scope)) for scope in SCOPES}
    shown, wrong = set(), []

    for method, route, call in calls():
        asked = [a + world.filled(query) for a in world.addresses(route) for query in ("", *call.queries)]
        answers = [ask(keys[call.scope], method, address, call) for address in asked]
        codes = {answer.status_code for answer in answers}
        if not codes & {200, 201, 202, 409} or 403 in codes:  # 409: an earlier call here did it already
            wrong.append((method, route, codes))
        seen = {place for answer in answers for place in world.traces(answer)}
        if not seen and call.seen == "thing" and method == "GET":
            wrong.append((method, route, "shows no mark"))
        shown |= seen

    assert wrong == []
    assert {"account name", "input", "result", "error message", "metadata", "tag", "session", "model", "event"} <= shown
    assert "what recent runs cost" in shown
    assert {"artifact name", "artifact", "letter", "payload"} <= shown
    assert shown.isdisjoint({"key secret", "key digest", "claim token", "key name", "audit"})


@pytest.mark.parametrize("role", sorted(MEMBER_SCOPES))
def test_a_members_role_allows_what_it_says(world, role):
    client = signed_in(builders.make_user("someone", account=world.a, role=role))
    before, wrong = world.rows(), []

    for method, address, call in questions(world):
        is_allowed = call.scope in MEMBER_SCOPES[role]
        if not is_allowed or method == "GET":
            answer = ask(client, method, address, call)
            if (answer.status_code == 403) is is_allowed:
                wrong.append((method, address, answer.status_code))

    assert wrong == []
    assert world.rows() == before


def test_a_superuser_acts_for_the_account_they_name(world):
    root = builders.make_user("root", is_superuser=True)
    client = signed_in(root, **{"x-agentops-account": world.a.name})

    answers = {route: ask(client, "GET", f"/{API}{route}", CALLS[route]["GET"]) for route in ("quota", "dead-letters")}

    assert {route: answer.status_code for route, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert world.traces(answers["dead-letters"])


def test_no_method_is_served_that_no_rule_speaks_of(world):
    client, before, wrong = with_key(world.raw), world.rows(), []

    for address, view in routes(get_resolver().url_patterns):
        route = address.removeprefix(API)
        if not address.startswith(API) or address in OTHERS:
            continue
        served = methods_of(view) | ({"HEAD"} if "GET" in methods_of(view) else set())
        for path in world.addresses(route):
            for method in set(METHODS) - served:
                answer = ask(client, method, path, Call("read", "all"))
                if answer.status_code != 405 or world.traces(answer, path):
                    wrong.append((method, path, answer.status_code))

    assert wrong == []
    assert world.rows() == before


def test_what_is_public_shows_nothing_of_any_account(world):
    addresses = ["/api/v1/schema/", "/api/v1/docs/", "/metrics", "/healthz", "/readyz", "/", "/api/nothing"]

    assert {a: world.traces(ask(Client(), "GET", a, Call(PUBLIC, "all"))) for a in addresses} == {
        a: [] for a in addresses
    }


def test_what_a_body_names_is_looked_for_in_the_callers_account_only(world):
    client, before = with_key(world.stranger_key), world.rows()
    submit = Call("submit", "own")

    def post(**fields):
        body = {"agent": "probe.ret", "input": {"value": 1}} | fields
        return ask(client, "POST", f"/{API}runs", Call(submit.scope, submit.seen, body))

    used = world.marks["idempotency key"]
    client.defaults["HTTP_IDEMPOTENCY_KEY"] = used
    replayed = post()
    del client.defaults["HTTP_IDEMPOTENCY_KEY"]
    replaced = post(session=world.session, on_busy="replace")
    file = post(agent="document.digest", input={"file": str(world.file.pk)})

    assert (replayed.status_code, "Idempotent-Replayed" in replayed.headers) == (202, False)
    assert (replaced.status_code, Run.objects.get(pk=replaced.json()["id"]).account) == (202, world.b)
    assert (file.status_code, file.json()["code"]) == (422, "no_such_file")
    assert [world.traces(replayed, used), world.traces(replaced, world.session), world.traces(file)] == [[], [], []]
    assert world.rows() == before
