"""Redis or Valkey: reachable, new enough, persistent, evicting nothing, with room."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from redis.exceptions import ResponseError

from agentops.diagnosis.finding import Finding, judged
from runs import broker

PART = "redis"
CLOCK_SECONDS = 2.0
MEMORY_SHARE = 0.8


def examine() -> Iterator[Finding]:
    try:
        facts = broker.client().info()
    except broker.RedisError as error:
        ours = settings.INSTANCE.get("redis_url") == settings.REDIS_URL and not settings.INSTANCE.get("running")
        advice = "Start it: ./run up." if ours else "Start the server, or correct REDIS_URL."
        yield Finding(PART, "fail", f"cannot connect: {error}", advice)
        return
    yield _version(facts)
    yield _autoclaim()
    yield from _persistence(facts)
    yield eviction(facts)
    yield _memory(facts)
    seconds, micro = broker.client().time()
    difference = seconds + micro / 1e6 - time.time()
    yield judged(
        "clock",
        f"Redis and this machine differ by {difference:+.3f} s",
        well=abs(difference) < CLOCK_SECONDS,
        advice="Let both follow the same time service (chrony, systemd-timesyncd).",
        otherwise="warn",
    )


def _version(facts: dict[str, Any]) -> Finding:
    # Valkey reports the Redis version it is compatible with, and its own beside it.
    name = str(facts.get("server_name", "redis")).capitalize()
    return Finding(PART, "ok", f"{name} {facts.get('valkey_version') or facts['redis_version']}")


def _autoclaim() -> Finding:
    """Probe the newest command the protocol needs; a version would be a guess."""
    try:
        broker.client().xautoclaim(f"{settings.AGENTOPS_PREFIX}:doctor", "none", "none", min_idle_time=0)
    except ResponseError as error:
        if "unknown command" in str(error).lower():
            return Finding(PART, "fail", "no XAUTOCLAIM", "Use Redis 6.2 or newer, or Valkey.")
    return Finding(PART, "ok", "XAUTOCLAIM is there")


def _persistence(facts: dict[str, Any]) -> Iterator[Finding]:
    yield judged(
        PART,
        f"append-only file {'on' if facts.get('aof_enabled') else 'off'}",
        well=bool(facts.get("aof_enabled")),
        advice="Set `appendonly yes`: without it a restart empties the streams. Runs come back from the database,"
        " live events do not.",
        otherwise="warn",
    )
    written = facts.get("aof_last_write_status", "ok")
    yield judged(PART, f"last append {written}", well=written == "ok", advice="Is the server's disk full?")


def eviction(facts: dict[str, Any]) -> Finding:
    policy = facts.get("maxmemory_policy", "unknown")
    return judged(
        PART,
        f"maxmemory-policy {policy}",
        well=policy in {"noeviction", "unknown"},
        advice="Set `maxmemory-policy noeviction`: any other policy may delete streams.",
    )


def _memory(facts: dict[str, Any]) -> Finding:
    used, limit = facts.get("used_memory", 0), facts.get("maxmemory", 0)
    fact = f"{used / 2**20:.1f} MiB used" + (f" of {limit / 2**20:.0f} MiB" if limit else "")
    if _may_refuse_to_fork():
        fact += "; vm.overcommit_memory is 0: a rewrite of the append-only file may fail when memory is short"
    return judged(
        PART,
        fact,
        well=not limit or used < MEMORY_SHARE * limit,
        advice="Raise maxmemory, or lower what runs keep (AGENTOPS_EVENT_CAP).",
        otherwise="warn",
    )


def _may_refuse_to_fork() -> bool:
    if not settings.REDIS_URL.startswith("unix://"):
        return False  # another machine's kernel
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() == "0"
    except OSError:
        return False
