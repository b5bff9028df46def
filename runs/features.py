"""Which newer commands the Redis server has, so that a faster path is taken where there is one (protocol 6.8).

The server is asked by `COMMAND INFO`, never judged by its version: Valkey reports the version of the Redis it is
compatible with, and gets commands in releases of its own. The question rides on a pipeline that is sent anyway, once
and then once a minute, because another server may be behind the address by then. What is known here may therefore be
out of date: every faster path has to be correct on a server without the command too.
"""

import time
from typing import Any

import redis

XACKDEL = "XACKDEL"
COMMANDS = (XACKDEL,)
ASK_AGAIN_SECONDS = 60.0

Address = tuple[str | None, str | None, int | None]
_known: dict[Address, tuple[float, frozenset[str]]] = {}


def has(client: "redis.Redis", command: str) -> bool:
    """Whether the server behind a client or pipeline had the command when it was last asked; False before that."""
    return command in _known.get(_address(client), (0.0, frozenset()))[1]


def is_due(client: "redis.Redis") -> bool:
    """Whether the server has not been asked, or too long ago."""
    found = _known.get(_address(client))
    return found is None or time.monotonic() - found[0] > ASK_AGAIN_SECONDS


def ask(pipe: "redis.client.Pipeline") -> None:
    """Queue the question on a pipeline; `learn` wants its reply."""
    pipe.execute_command("COMMAND INFO", *COMMANDS)  # type: ignore[no-untyped-call]


def learn(client: "redis.Redis", reply: Any) -> None:
    """Keep the reply to `ask`. A server that refuses the question is taken for one that has nothing new."""
    described = reply if isinstance(reply, list) else []
    found = frozenset(name for name, description in zip(COMMANDS, described, strict=False) if description)
    _known[_address(client)] = (time.monotonic(), found)


def _address(client: "redis.Redis") -> Address:
    options = client.connection_pool.connection_kwargs
    return options.get("path"), options.get("host"), options.get("port")
