"""What was taken away ends what is open with it: sockets, event streams and long polls, also while Redis is away.

The rounds look every two seconds; every wait here is for the end itself, and gives up after PATIENCE_SECONDS.
"""

import datetime as dt
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module

import httpx
import pytest
from django.conf import settings
from django.utils import timezone

from quotas.api_keys import revoke
from quotas.models import ApiKey, Membership
from tests import builders
from tests.acceptance.test_sockets import code_of, cookie_of, is_open
from tests.acceptance.viewers import close_code, frames, socket
from tests.probes import WebServer, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
PATIENCE_SECONDS = 10.0
ENDED = {"type": "error", "code": "access_ended", "status": 401}


@pytest.fixture
def account(stack):
    return builders.make_account("viewed")


@pytest.fixture
def run(account):
    return builders.make_run(account=account, session="talk")


@pytest.fixture
def path(run):
    return f"/ws/runs/{run.pk}/"


@pytest.fixture
def web(stack):
    return stack.web()


@pytest.fixture
def user(account):
    return builders.make_user("viewer", account=account, role="viewer")


@contextmanager
def stream(web: WebServer, path: str, **headers: str) -> Iterator[Iterator[str]]:
    """Open an event stream; yields its lines. A read that takes longer than the patience raises."""
    timeout = httpx.Timeout(PATIENCE_SECONDS)
    with httpx.stream("GET", f"{web.url}/api/v1{path}", headers=headers, timeout=timeout) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert next(lines).startswith("retry:")
        yield lines


def error_of(lines: Iterator[str]) -> dict[str, object]:
    """Read a stream to its end and return what its last event says."""
    said = [line for line in lines if line]
    assert said[-2] == "event: error", said
    return json.loads(said[-1].removeprefix("data: "))


def is_ended(told: dict[str, object]) -> bool:
    return ENDED.items() <= told.items() and "is let in no more" in str(told["detail"])


def bearer(raw: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {raw}"}


def poll(web: WebServer, path: str, **headers: str) -> httpx.Response:
    timeout = httpx.Timeout(30)
    return httpx.get(f"{web.url}/api/v1{path}", headers={"Accept": "application/json", **headers}, timeout=timeout)


def test_a_revoked_key_ends_all_that_is_open_with_it(web, run, path, account):
    row, raw = builders.make_api_key(account)
    kept = builders.make_api_key(account)[1]
    for_ticket, issuer = builders.make_api_key(account)
    tickets = [
        httpx.post(f"{web.url}/api/v1/runs/{run.pk}/ticket", headers=bearer(issuer)).json()["ticket"] for _ in range(2)
    ]
    with ExitStack() as opened, ThreadPoolExecutor() as pool:
        sockets = [opened.enter_context(socket(web, at, key=raw)) for at in (path, "/ws/sessions/talk/")]
        sockets.append(opened.enter_context(socket(web, f"{path}?ticket={tickets[0]}")))
        streams = [
            opened.enter_context(stream(web, at, **bearer(raw)))
            for at in (f"/runs/{run.pk}/events", "/sessions/talk/events")
        ]
        stays = opened.enter_context(socket(web, path, key=kept))
        ApiKey.objects.filter(pk=row.pk).update(last_used_at=None)
        waiting = pool.submit(poll, web, f"/runs/{run.pk}/events?after=1-1&wait=30", **bearer(raw))
        eventually(lambda: ApiKey.objects.get(pk=row.pk).last_used_at is not None)

        for key in (row, for_ticket):
            revoke(key, actor="test")

        assert httpx.get(f"{web.url}/api/v1/quota", headers=bearer(raw)).json()["code"] == "invalid_api_key"
        assert code_of(web, f"{path}?ticket={tickets[1]}") == 4401
        assert [close_code(one, PATIENCE_SECONDS) for one in sockets] == [4401] * 3
        assert all(is_ended(error_of(lines)) for lines in streams)
        refused = waiting.result(PATIENCE_SECONDS)
        assert (refused.status_code, refused.json()["code"]) == (401, "access_ended")
        assert is_open(stays)
    assert "Traceback" not in web.output()


def test_a_key_that_expires_ends_what_is_open(web, path, run, account):
    raw = builders.make_api_key(account, expires_at=timezone.now() + dt.timedelta(seconds=3))[1]

    with socket(web, path, key=raw) as gone, stream(web, f"/runs/{run.pk}/events", **bearer(raw)) as lines:
        assert is_open(gone)
        assert close_code(gone, PATIENCE_SECONDS) == 4401
        assert is_ended(error_of(lines))


def log_out(user, cookie):
    key = cookie["Cookie"].partition("=")[2]
    import_module(settings.SESSION_ENGINE).SessionStore(key).flush()


def deactivate(user, cookie):
    type(user).objects.filter(pk=user.pk).update(is_active=False)


def change_password(user, cookie):
    user.set_password("another one")
    user.save(update_fields=["password"])


def leave(user, cookie):
    Membership.objects.filter(user=user).delete()


@pytest.mark.parametrize("take_away", [log_out, deactivate, change_password, leave])
def test_a_session_ends_with_its_sign_in_and_its_membership(web, run, path, user, take_away):
    cookie = cookie_of(user)
    token = "t" * 32
    headers = {"Cookie": f"{cookie['Cookie']}; {settings.CSRF_COOKIE_NAME}={token}", "X-CSRFToken": token}
    issued = httpx.post(f"{web.url}/api/v1/runs/{run.pk}/ticket", headers=headers)
    with (
        socket(web, path, additional_headers=cookie, origin=web.url) as gone,
        socket(web, f"{path}?ticket={issued.json()['ticket']}") as by_ticket,
        stream(web, f"/runs/{run.pk}/events", **cookie) as lines,
    ):
        assert next(frames(gone, 5))["type"] == "hello"

        take_away(user, cookie)

        assert close_code(gone, PATIENCE_SECONDS) == 4401
        assert close_code(by_ticket, PATIENCE_SECONDS) == 4401
        assert is_ended(error_of(lines))
    assert "Traceback" not in web.output()


@pytest.mark.parametrize("take_away", [log_out, deactivate, "staff", "permission"])
def test_an_operators_sockets_end_with_their_rights(web, run, path, take_away):
    operator = builders.make_operator("operator")
    cookie = cookie_of(operator)
    token = "t" * 32
    headers = {"Cookie": f"{cookie['Cookie']}; {settings.CSRF_COOKIE_NAME}={token}", "X-CSRFToken": token}
    issued = httpx.post(f"{web.url}/admin/runs/run/{run.pk}/ticket/", headers=headers).json()["ticket"]
    with (
        socket(web, "/ws/ops/", additional_headers=cookie, origin=web.url) as ops,
        socket(web, f"{path}?ticket={issued}") as of_run,
    ):
        assert "running" in next(frames(ops, 5))
        assert next(frames(of_run, 5))["type"] == "hello"

        if take_away == "permission":
            operator.user_permissions.clear()
        elif take_away == "staff":
            type(operator).objects.filter(pk=operator.pk).update(is_staff=False)
        else:
            take_away(operator, cookie)

        assert close_code(of_run, PATIENCE_SECONDS) == 4401
        if take_away == "permission":
            assert any("running" not in frame for frame in frames(ops, PATIENCE_SECONDS) if frame.get("type"))
        else:
            assert close_code(ops, PATIENCE_SECONDS) == 4401


def test_it_ends_also_while_redis_is_away(own_redis, stack):
    account = builders.make_account("viewed")
    run = builders.make_run(account=account)
    row, raw = builders.make_api_key(account)
    web = stack.web()
    with (
        socket(web, f"/ws/runs/{run.pk}/", key=raw) as gone,
        stream(web, f"/runs/{run.pk}/events", **bearer(raw)) as lines,
    ):
        assert is_open(gone)
        own_redis.pause()

        revoke(row, actor="test")

        assert close_code(gone, PATIENCE_SECONDS) == 4401
        assert is_ended(error_of(lines))
        own_redis.resume()
