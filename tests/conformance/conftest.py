"""What the tests about the differences between servers share."""

import secrets

import pytest
from redis.exceptions import ResponseError

from runs import keys
from tests import servers
from tests.plugin import SESSION


@pytest.fixture
def kinds(request) -> dict[str, str]:
    """What this cell is about: {"database": name, "redis": kind}."""
    return request.config.stash[SESSION].names


@pytest.fixture
def other_kind(kinds) -> str:
    """A kind of Redis server that is not this cell's: the one with other commands, if it is here."""
    wanted = "valkey9" if kinds["redis"] == "redis8" else "redis8"
    others = [kind for kind in servers.REDIS_KINDS if kind != kinds["redis"]]
    return next(kind for kind in [wanted, *others] if kind in others and servers.REDIS_KINDS[kind].is_here())


def knows_xackdel(redis) -> bool:
    """Whether the server has the command: by calling it, where the product asks for its description."""
    try:
        return redis.execute_command("XACKDEL", "no such stream", "g", "IDS", 1, "1-1") == [-1]
    except ResponseError:
        return False


@pytest.fixture
def has_xackdel(redis) -> bool:
    return knows_xackdel(redis)


@pytest.fixture
def stream(redis) -> str:
    """The ready stream of priority normal, with its group."""
    name = keys.ready("default", "normal")
    redis.xgroup_create(name, keys.GROUP, id="0", mkstream=True)
    return name


@pytest.fixture
def add(redis, stream):
    """Add entries to the stream; returns their ids. Names what nobody has submitted."""

    def entries(count: int = 1) -> list[str]:
        return [redis.xadd(stream, {"run_id": secrets.token_hex(4), "fence": "1"}).decode() for _ in range(count)]

    return entries


@pytest.fixture
def abandon(redis, stream):
    """Have a consumer that is gone take what waits, long ago. Returns the entries' ids."""

    def taken(count: int) -> list[str]:
        reply = redis.xreadgroup(keys.GROUP, "gone", {stream: ">"}, count=count)
        ids = [entry_id.decode() for entry_id, _ in reply[0][1]]
        redis.xclaim(stream, keys.GROUP, "gone", 0, ids, idle=10_000_000, justid=True)
        return ids

    return taken
