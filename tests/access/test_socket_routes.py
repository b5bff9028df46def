"""Every socket, tried by everybody who must not see what it shows, and by who may look but not act."""

import json
import re
from contextlib import suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentops.asgi import socket_routes
from quotas.models import Membership
from runs.models import Run
from tests import builders
from tests.acceptance.test_sockets import cookie_of
from tests.acceptance.viewers import close_code, frames, socket
from tests.access.rules import SOCKETS
from tests.access.world import World, ended_keys, key_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
UNKNOWN = {"type": "error", "code": "unknown_frame"}
NOT_ALLOWED = {"type": "error", "code": "scope_missing"}


@pytest.fixture
def world(stack):
    return World()


@pytest.fixture
def web(world, stack):
    return stack.web()


def addresses(world, route):
    """Return the socket's addresses with what account A has."""
    if "run_id" in route:
        return [f"/{re.sub('<.*>', str(run.pk), route)}" for run in world.runs]
    return [f"/{re.sub('<.*>', world.session, route)}"]


def opened(web, path, **options):
    """Open a socket, say everything a client may say; return (how it ended, all that came)."""
    try:
        with socket(web, path, **options) as connection:
            with suppress(ConnectionClosed):
                for kind in ("cancel", "signal", "ping"):
                    connection.send(json.dumps({"type": kind}))
            shown = []
            try:
                for frame in frames(connection, 1.0):
                    shown.append(frame)
                    if frame == {"type": "pong"}:
                        return "open", shown
            except ConnectionClosed as closed:
                return (closed.rcvd.code if closed.rcvd else 1006), shown
            return "open", shown
    except InvalidStatus as refused:
        return refused.response.status_code, [refused.response.body.decode()]


def ticket(web, run, key):
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{web.url}/api/v1/runs/{run.pk}/ticket", headers=headers).json()["ticket"]


def strangers(world, web, gone, ended):
    """Return {who: how they open it} of all who must find nothing on any socket."""
    their_run = builders.make_run(account=world.b)
    cookie = {"additional_headers": cookie_of(world.stranger)}
    member = {"additional_headers": cookie_of(world.owner)}
    return {
        "nobody": {},
        "nonsense": {"key": "ao_nonsense"},
        "revoked": {"key": ended[0]},
        "expired": {"key": ended[1]},
        "without read": {"key": key_of(world.a, "submit", "cancel", "admin")},
        "another key": {"key": world.stranger_key},
        "another's session": cookie | {"origin": web.url},
        "another's session that names A": cookie | {"origin": web.url, "query": f"account={world.a.name}"},
        "a session from another page": member | {"origin": "https://evil.example"},
        "a session from no page": member,
        "who is not active": {"additional_headers": gone, "origin": web.url},
        "a ticket of another run": {"query": f"ticket={ticket(web, their_run, world.stranger_key)}"},
        "a key in the address": {"query": f"key={world.raw}"},
    }


def test_nobody_else_sees_or_does_anything_on_a_socket(world, web):
    before, wrong = world.rows(), []
    of_b = {"another key", "another's session"}  # they see their own session of that name, in which nothing is
    gone = cookie_of(builders.make_user("gone", account=world.b, is_active=False))
    ended = ended_keys(world.a)

    for route in (str(entry.pattern) for entry in socket_routes):
        for who, options in strangers(world, web, gone, ended).items():
            query = options.pop("query", "")
            for path in addresses(world, route):
                how, shown = opened(web, f"{path}?{query}", **options)
                traces = [place for place, mark in world.marks.items() if mark in json.dumps(shown)]
                is_own = who in of_b and "sessions" in route
                is_right = (how, shown) == ("open", [UNKNOWN, UNKNOWN, {"type": "pong"}]) if is_own else how in {
                    403, 4401, 4404,
                }  # fmt: skip
                if not is_right or traces or (SOCKETS[route] is None and how != 403):
                    wrong.append((route, who, how, traces))

    assert wrong == []
    assert world.rows() == before
    assert "Traceback" not in web.output()
    assert not [secret for secret in (world.raw, world.stranger_key) if secret.split("_", 2)[2] in web.output()]


def test_who_it_belongs_to_sees_it(world, web):
    """The proof that the trial above can fail."""
    key = key_of(world.a, "read")

    for route in (route for route, scope in SOCKETS.items() if scope):
        shown = [opened(web, path, key=key) for path in addresses(world, route)]
        assert [how for how, _ in shown] == [1000 if how == 1000 else "open" for how, _ in shown]
        assert world.marks["event"] in json.dumps(shown) or "sessions" in route
    assert {"type": "hello", "run": str(world.queued.pk), "state": "queued"} in opened(
        web, f"/ws/runs/{world.queued.pk}/", key=key
    )[1]


def test_staff_alone_get_the_numbers(world, web):
    operator = {"additional_headers": cookie_of(builders.make_operator("operator")), "origin": web.url}
    owner = {"additional_headers": cookie_of(world.owner), "origin": web.url}

    assert opened(web, "/ws/ops/", **operator)[0] == "open"
    assert [opened(web, "/ws/ops/", **options)[0] for options in (owner, {"key": world.raw})] == [403, 403]


def test_who_may_only_look_cancels_nothing(world, web):
    path = f"/ws/runs/{world.queued.pk}/"
    viewer = cookie_of(builders.make_user("viewer", account=world.a, role="viewer"))
    before = world.rows()
    ways = [
        (path, {"key": key_of(world.a, "read")}),
        (path, {"additional_headers": viewer, "origin": web.url}),
        (f"{path}?ticket={ticket(web, world.queued, world.raw)}", {}),
    ]

    for address, options in ways:
        assert NOT_ALLOWED in opened(web, address, **options)[1], options
    assert world.rows() == before


def test_a_role_that_was_lowered_counts_at_once(world, web):
    member = builders.make_user("member", account=world.a, role="member")
    path = f"/ws/runs/{world.queued.pk}/"
    with socket(web, path, additional_headers=cookie_of(member), origin=web.url) as connection:
        assert next(frames(connection, 5))["type"] == "hello"
        Membership.objects.filter(user=member).update(role="viewer")

        connection.send('{"type": "cancel"}')

        assert next(frame for frame in frames(connection, 10) if frame.get("type") == "error") == NOT_ALLOWED
        connection.send('{"type": "ping"}')
        assert next(frame for frame in frames(connection, 10) if frame.get("type") == "pong")
        Membership.objects.filter(user=member).delete()
        assert close_code(connection, 10) == 4401
    assert Run.objects.get(pk=world.queued.pk).state == "queued"
