"""The sweeper's duty on waiting sets: free places find their runs, and nobody waits who has nothing to wait for (10).

Whatever frees a place passes it on by itself. Left to this duty are places that expired with their owner, limits that
were raised or lifted, and what a loss of Redis or a crash left half.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
import structlog

from quotas.models import Account
from runs import keys, ready, running, scripts
from runs.agents import find_agent
from runs.models import Run
from runs.states import TERMINAL, RunState
from workers import stream

log = structlog.get_logger(__name__)
LUA = Path(__file__).parent / "lua"
UNPARK = scripts.load(LUA / "unpark.lua", ready.PARKING)
DROP = scripts.load(LUA / "drop_parked.lua", ready.PARKING)
PAGE = 200


class WaitingSets:
    """One sweeper's walk along the waiting sets of its queues; bounded a pass, safe to run twice."""

    def __init__(self, client: "redis.Redis", *, queues: Sequence[str], lease: float) -> None:
        self._client = client
        self._queues = queues
        self._young_ms = running.young_ms(lease)
        self._member_at: dict[tuple[str, str], int] = {}
        self._limited_at: dict[str, int] = {}

    def run_once(self) -> int:
        """Bring back what has a place, drop what waits no more. Returns how many were brought back."""
        known = {queue: running.known_limits(self._client, queue) for queue in self._queues}
        most = _in_force(known)
        moved = 0
        for queue, limits in known.items():
            for limit in limits:
                self._drop_strangers(queue, limit)
                moved += self._bring_back(queue, limit, most[queue, limit])
            self._forget_ended(queue)
        if moved:
            log.info("sweep.unparked", runs=moved)
        return moved

    def _bring_back(self, queue: str, limit: str, most: int | None) -> int:
        args = [limit, "" if most is None else most, self._young_ms, PAGE]
        call_keys = [keys.index(queue), keys.epoch(queue)]
        return int(scripts.checked(scripts.execute(self._client, lambda pipe: UNPARK.call(pipe, call_keys, args)))[0])

    def _drop_strangers(self, queue: str, limit: str) -> None:
        """Drop members whose run is not queued at the fence at which it was parked: a page a pass."""
        start = self._member_at.get((queue, limit), 0)
        members: list[Any] = self._client.zrange(keys.parked(queue, limit), start, start + PAGE - 1)
        self._member_at[queue, limit] = start + PAGE if len(members) == PAGE else 0
        if not members:
            return
        named: list[Any] = self._client.hmget(keys.index(queue), members)
        ids = {member: run_id for member in members if (run_id := _run_id(member)) is not None}
        queued = Run.objects.filter(pk__in=list(ids.values()), state=RunState.QUEUED)
        fences = dict(queued.values_list("pk", "fence"))
        strangers = [
            (member, name or b"")
            for member, name in zip(members, named, strict=True)
            if member not in ids or name != f"{fences.get(ids[member])}|{ready.PARKED}{limit}".encode()
        ]

        def fill(pipe: "redis.client.Pipeline") -> None:
            for member, name in strangers:
                DROP.call(pipe, [keys.index(queue)], [limit, member, name])

        dropped = sum(map(int, scripts.checked(scripts.execute(self._client, fill))))
        if dropped:
            log.info("sweep.parked_dropped", queue=queue, limit=limit, runs=dropped)

    def _forget_ended(self, queue: str) -> None:
        """Free what an ended run still has of its limits: a beat that came after its end put it in again."""
        cursor, facts = self._client.hscan(keys.limited(queue), self._limited_at.get(queue, 0), count=PAGE)
        self._limited_at[queue] = int(cursor)
        ids = [run_id for name in list[Any](facts) if (run_id := _run_id(name)) is not None]
        if not ids:
            return
        ended = [str(state) for state in TERMINAL]
        alive = set(Run.objects.filter(pk__in=ids).exclude(state__in=ended).values_list("pk", flat=True))
        over = [run_id for run_id in ids if run_id not in alive]
        scripts.execute(self._client, scripts.each(lambda pipe, pk: stream.ack_named(pipe, queue, pk), over))


def _in_force(known: dict[str, dict[str, int]]) -> dict[tuple[str, str], int | None]:
    """Return {(queue, limit): how many it lets be at work now}; None where it does not limit any more.

    An agent this process does not know keeps the number that was in force when its run was parked.
    """
    names = {limit for limits in known.values() for limit in limits}
    ids = [int(name.removeprefix(running.ACCOUNT)) for name in names if name.startswith(running.ACCOUNT)]
    accounts = dict(Account.objects.filter(pk__in=ids).values_list("pk", "max_running")) if ids else {}

    def now(name: str, then: int) -> int | None:
        if name.startswith(running.ACCOUNT):
            return accounts.get(int(name.removeprefix(running.ACCOUNT)))
        spec = find_agent(name.removeprefix(running.AGENT))
        return then if spec is None else spec.max_running

    return {(queue, limit): now(limit, then) for queue, limits in known.items() for limit, then in limits.items()}


def _run_id(name: bytes) -> UUID | None:
    try:
        return UUID(name.decode("ascii"))
    except ValueError:
        return None
