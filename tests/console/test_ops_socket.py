"""`/ws/ops/`: staff only, numbers by permission, woken by a ping, closed when the rights are gone."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.auth import AuthMiddlewareStack
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY

from agentops.console import consumers, overview
from agentops.console.routing import websocket_urlpatterns
from runs import rounds
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)
APPLICATION = AuthMiddlewareStack(URLRouter(websocket_urlpatterns))


@sync_to_async
def session_of(user: Any) -> Any:
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return store


@asynccontextmanager
async def socket(session: Any = None) -> AsyncIterator[WebsocketCommunicator]:
    headers = []
    if session is not None:
        cookie = f"{settings.SESSION_COOKIE_NAME}={session.session_key}"
        headers = [(b"cookie", cookie.encode()), (b"origin", b"http://localhost"), (b"host", b"localhost")]
    communicator = WebsocketCommunicator(APPLICATION, "/ws/ops/", headers=headers)
    try:
        yield communicator
    finally:
        await communicator.disconnect()


async def test_staff_get_the_numbers_they_may_see() -> None:
    viewer = await sync_to_async(builders.make_operator)("viewer", permissions=["view_run"])

    async with socket(await session_of(viewer)) as ops:
        connected, _ = await ops.connect()
        frame = await ops.receive_json_from(timeout=5)

    assert connected
    of_runs = {"running", "queued", "queued_total", "oldest_wait", "held_back", "retrying", "failure_rate"}
    assert set(frame) == {"type", "at", "healthy", "sentence", "problems", *of_runs}


async def test_nobody_else_gets_in() -> None:
    user = await sync_to_async(builders.make_user)("user")
    gone = await sync_to_async(builders.make_user)("gone", is_staff=True, is_active=False)

    for session in (None, await session_of(user), await session_of(gone)):
        async with socket(session) as ops:
            connected, _ = await ops.connect()
            assert not connected


async def test_a_foreign_origin_is_refused() -> None:
    operator = await sync_to_async(builders.make_operator)("operator")
    session = await session_of(operator)
    headers = [
        (b"cookie", f"{settings.SESSION_COOKIE_NAME}={session.session_key}".encode()),
        (b"origin", b"http://evil.example"),
        (b"host", b"localhost"),
    ]
    ops = WebsocketCommunicator(APPLICATION, "/ws/ops/", headers=headers)

    connected, _ = await ops.connect()

    assert not connected
    await ops.disconnect()


async def test_a_ping_of_the_group_brings_the_next_frame_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "EVERY_SECONDS", 30.0)
    operator = await sync_to_async(builders.make_operator)("operator")

    async with socket(await session_of(operator)) as ops:
        await ops.connect()
        await ops.receive_json_from(timeout=5)
        began = time.monotonic()
        await get_channel_layer().group_send(consumers.GROUP, {"type": "ops.changed"})
        await ops.receive_json_from(timeout=10)

    assert time.monotonic() - began < 10


async def test_a_socket_outlives_no_logout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "SECONDS", 0.05)
    operator = await sync_to_async(builders.make_operator)("operator")
    session = await session_of(operator)

    async with socket(session) as ops:
        await ops.connect()
        await sync_to_async(session.flush)()
        closed = None
        while closed is None:
            message = await ops.receive_output(timeout=10)
            closed = message.get("code") if message["type"] == "websocket.close" else None

    assert closed == consumers.NOT_SIGNED_IN


async def test_what_a_client_sends_does_not_end_the_socket() -> None:
    operator = await sync_to_async(builders.make_operator)("operator")

    async with socket(await session_of(operator)) as ops:
        await ops.connect()
        for text in ("{", "[]", "7", '{"type": 3}', "\u0000"):
            await ops.send_to(text_data=text)
        await ops.send_json_to({"type": "ping"})
        kinds = set()
        while "pong" not in kinds:
            kinds.add((await ops.receive_json_from(timeout=10))["type"])

    assert "pong" in kinds


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (10_000, "10,000"), (10_001, "10,000+")])
def test_a_count_stops_at_its_bound(count: int, text: str) -> None:
    assert overview.shown(count) == text
