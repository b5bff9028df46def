"""The one place where Redis clients are made: three defaults of redis-py 8 would break us.

Its 5 s socket time-out ends blocking reads, its retry resends commands that are not idempotent, and its pool raises
at connection 101. So: explicit time-outs, no retries, a pool that waits. Replies keep their default shape.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from django.conf import settings
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

__all__ = [
    "RedisError",
    "blocking_client",
    "brief_client",
    "client",
    "eviction_policy",
    "hub_client",
    "impatient_client",
    "reset",
]

COMMAND_TIMEOUT = 5.0
CONNECT_TIMEOUT = 2.0
_made: dict[Any, Any] = {}


def _options(socket_timeout: float, connect_timeout: float = CONNECT_TIMEOUT) -> dict[str, Any]:
    return {
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": connect_timeout,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }


def _once(key: Any, make: Callable[[], Any]) -> Any:
    # The pid is part of the key: a forked child must not share its parent's sockets.
    full = (os.getpid(), settings.REDIS_URL, key)
    if full not in _made:
        _made[full] = make()
    return _made[full]


def client() -> "redis.Redis":
    """Return the process's client for commands: thread-safe, at most 32 connections, waits for a free one."""
    made: redis.Redis = _once(
        "commands",
        lambda: redis.Redis(
            connection_pool=redis.BlockingConnectionPool.from_url(
                settings.REDIS_URL, max_connections=32, timeout=5, **_options(COMMAND_TIMEOUT)
            )
        ),
    )
    return made


def blocking_client(block_seconds: float) -> "redis.Redis":
    """Return a new client with one connection for blocking reads of up to `block_seconds`, or for subscriptions."""
    pool = redis.BlockingConnectionPool.from_url(
        settings.REDIS_URL, max_connections=1, timeout=1, **_options(block_seconds + 8)
    )
    return redis.Redis(connection_pool=pool)


def impatient_client(seconds: float) -> "redis.Redis":
    """Return a new client with one connection, for a thread that has better to do than to wait for Redis."""
    options = _options(seconds, seconds)
    pool = redis.BlockingConnectionPool.from_url(settings.REDIS_URL, max_connections=1, timeout=1, **options)
    return redis.Redis(connection_pool=pool)


def brief_client() -> "redis.Redis":
    """Return the process's client for looks that are worth a second at most: thread-safe, at most 8 connections."""
    made: redis.Redis = _once(
        "brief",
        lambda: redis.Redis(
            connection_pool=redis.BlockingConnectionPool.from_url(
                settings.REDIS_URL, max_connections=8, timeout=1, **_options(1.0, 1.0)
            )
        ),
    )
    return made


def hub_client() -> "redis.asyncio.Redis":
    """Return the running event loop's client: used by the hub alone, whose reads nobody cancels."""
    loop = asyncio.get_running_loop()
    made: redis.asyncio.Redis = _once(
        ("hub", id(loop)),
        lambda: redis.asyncio.Redis(
            connection_pool=redis.asyncio.BlockingConnectionPool.from_url(
                settings.REDIS_URL,
                max_connections=8,
                timeout=5,
                socket_timeout=30,
                socket_connect_timeout=CONNECT_TIMEOUT,
                retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
            )
        ),
    )
    return made


def eviction_policy() -> str:
    """Return the server's `maxmemory-policy`; "" where it does not say, or is away."""
    try:
        return str(client().info("memory").get("maxmemory_policy", ""))
    except RedisError:
        return ""


def reset() -> None:
    """Forget the clients of this process: the next call makes new ones (tests move between servers)."""
    for made in _made.values():
        if isinstance(made, redis.Redis):
            made.close()
    _made.clear()
