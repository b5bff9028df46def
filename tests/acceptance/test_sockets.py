"""Who may open a socket, what a socket makes of bad frames, and with which code each ends."""

import json
from contextlib import ExitStack
from importlib import import_module

import httpx
import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from websockets.exceptions import InvalidStatus

from quotas.api_keys import revoke
from tests import builders
from tests.acceptance.viewers import close_code, frames, socket

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
def account(stack):
    return builders.make_account("viewed")


@pytest.fixture
def run(account):
    return builders.make_run(account=account)


@pytest.fixture
def path(run):
    return f"/ws/runs/{run.pk}/"


@pytest.fixture
def key(account):
    return builders.make_api_key(account)[1]


@pytest.fixture
def web(stack):
    return stack.web()


def cookie_of(user):
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return {"Cookie": f"{settings.SESSION_COOKIE_NAME}={store.session_key}"}


def code_of(web, path, key="", **options):
    with socket(web, path, key=key, **options) as connection:
        return close_code(connection, 5)


def is_open(connection):
    connection.send('{"type": "ping"}')
    return {"type": "pong"} in list(frames(connection, 1))


def test_who_may_open_a_socket(web, run, path, key, account):
    stranger = builders.make_api_key(builders.make_account())[1]
    without_read = builders.make_api_key(account, scopes=["submit"])[1]
    member = cookie_of(builders.make_user("member", account=account))
    outsider = cookie_of(builders.make_user("outsider", account=builders.make_account()))

    assert code_of(web, path) == 4401
    assert code_of(web, path, "ao_nonsense") == 4401
    assert code_of(web, path, without_read) == 4401
    assert code_of(web, path, stranger) == 4404
    assert code_of(web, "/ws/runs/00000000-0000-0000-0000-000000000000/", key) == 4404
    assert code_of(web, f"{path}?after=nonsense", key) == 4400
    assert code_of(web, path, additional_headers=member) == 4401  # no origin: not a browser of ours
    assert code_of(web, path, additional_headers=member, origin="https://evil.example") == 4401
    assert code_of(web, path, additional_headers=outsider, origin=web.url) == 4404
    assert code_of(web, f"{path}?key={key}") == 4401  # never a key in a URL
    for odd in ("/ws/", "/ws/runs/1/", "/ws/nothing/", "/elsewhere"):
        with pytest.raises(InvalidStatus), socket(web, odd, key=key):
            pass
    with socket(web, path, key=key) as connection:
        assert connection.subprotocol == "agentops"
        assert is_open(connection)
    with socket(web, path, additional_headers=member, origin=web.url) as connection:
        assert is_open(connection)


def test_a_ticket_opens_one_socket_of_its_run(web, run, path, key, account):
    headers = {"Authorization": f"Bearer {key}"}

    def ticket():
        return httpx.post(f"{web.url}/api/v1/runs/{run.pk}/ticket", headers=headers).json()["ticket"]

    other = builders.make_run(account=account)
    first = ticket()
    with socket(web, f"{path}?ticket={first}") as connection:
        assert is_open(connection)
        connection.send('{"type": "cancel"}')
        assert any(frame.get("code") == "scope_missing" for frame in frames(connection, 1))
    assert code_of(web, f"{path}?ticket={first}") == 4401
    assert code_of(web, f"/ws/runs/{other.pk}/?ticket={ticket()}") == 4401
    assert code_of(web, f"{path}?ticket={'x' * 5000}") == 4401


BAD = [
    ("not json", 1007),
    ("", 1007),
    ("[]", 1007),
    ("null", 1007),
    ('{"no": "type"}', 1007),
    (json.dumps({"type": "ack", "id": "x" * 1_000_000}), 1009),
    ("[" * 60_000, 1007),
    (b"\x00\xff", 1003),
]


def test_bad_frames_close_their_own_socket(web, path, key):
    with ExitStack() as open_sockets:
        neighbour = open_sockets.enter_context(socket(web, path, key=key))
        for frame, code in BAD:
            with socket(web, path, key=key) as connection:
                connection.send(frame)
                assert close_code(connection, 5) == code, frame[:40]
        for frame in ('{"type": 7}', '{"type": "signal"}', '{"type": "ack", "id": 5}', '{"type": ["x"]}'):
            neighbour.send(frame)
        for known in ('{"type": "ack", "id": "9-9"}', '{"type": "ack", "id": "\\u0000"}'):
            neighbour.send(known)
        answers = list(frames(neighbour, 2))
        assert [answer for answer in answers if answer.get("type") == "error"] == [
            {"type": "error", "code": "unknown_frame"}
        ] * 4
        assert is_open(neighbour)
    assert "Traceback" not in web.output()
    assert "socket.broke" not in web.output()


def test_a_revoked_key_and_a_shutdown_close_open_sockets(web, path, account):
    row, revoked = builders.make_api_key(account)
    kept = builders.make_api_key(account)[1]
    with socket(web, path, key=revoked) as gone, socket(web, path, key=kept) as stays:
        revoke(row, actor="test")
        assert close_code(gone, 8) == 4401
        assert is_open(stays)

        assert web.term() == 0

        assert close_code(stays, 2) == 1012
    assert "Traceback" not in web.output()
