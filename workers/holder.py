"""The lease of the one process that sweeps. A holder that died is replaced when its seconds are over (protocol 10)."""

from dataclasses import dataclass
from pathlib import Path

import redis

from runs import keys, scripts

HOLD = scripts.load(Path(__file__).parent / "lua" / "hold.lua")
LET_GO = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"
HOLD_MS = 6000


@dataclass(frozen=True, slots=True)
class Held:
    """Who holds the lease, and for how many milliseconds more if it is not renewed."""

    mine: bool
    holder: str
    left_ms: int


def hold(client: "redis.Redis", name: str) -> Held:
    """Take or renew the lease for `name`, unless somebody else has it. Raises RedisError."""
    reply = scripts.execute(client, lambda pipe: HOLD.call(pipe, [keys.sweeper()], [name, HOLD_MS]))[0]
    if isinstance(reply, Exception):
        raise reply
    mine, holder, left = reply
    return Held(bool(mine), holder.decode("utf-8", "replace"), int(left))


def let_go(client: "redis.Redis", name: str) -> None:
    """Give the lease back, if `name` has it: whoever sweeps next need not wait for its end. Raises RedisError."""
    client.eval(LET_GO, 1, keys.sweeper(), name)
