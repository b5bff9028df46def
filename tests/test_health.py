"""`/healthz` and `/readyz`: what a load balancer sees while a server is away."""

import asyncio
from typing import Any

import pytest
from django.test import AsyncClient

from agentops import health
from tests import servers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_cached_answer() -> None:
    health._cached = None


async def test_a_live_process_needs_no_server(settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere.sock"

    answer = await AsyncClient().get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_ready(async_client: AsyncClient) -> None:
    answer = await async_client.get("/readyz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


async def test_a_server_that_is_away_is_named(async_client: AsyncClient, own_redis: servers.Server) -> None:
    own_redis.kill()

    answer = await async_client.get("/readyz")

    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "failing": {"redis": "ConnectionError"}}


async def test_a_server_that_hangs_is_named_in_time(async_client: AsyncClient, own_redis: servers.Server) -> None:
    own_redis.pause()
    try:
        async with asyncio.timeout(health.PROBE_SECONDS + 3):
            answer = await async_client.get("/readyz")
    finally:
        own_redis.resume()

    assert answer.status_code == 503
    assert list(answer.json()["failing"]) == ["redis"]


async def test_the_answer_is_kept_for_a_moment(async_client: AsyncClient, own_redis: servers.Server) -> None:
    assert (await async_client.get("/readyz")).status_code == 200
    own_redis.kill()

    assert (await async_client.get("/readyz")).status_code == 200
