"""A worker's side of the limits on runs at work at once: a place of each, or the waiting set (protocol 6.4).

Places are taken before the claim and kept by the beat; whatever ends a run's entry passes them on (stream.ack,
stream.hand_over). What nobody keeps expires with the lease.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
import structlog
from django.db import Error
from redis.exceptions import RedisError

from runs import features, keys, ready, running, scripts
from runs.models import Run
from runs.ready import Ticket
from runs.services.claims import Limited
from runs.states import RunState
from workers import metrics
from workers.config import WorkerConfig
from workers.stream import Entry

log = structlog.get_logger(__name__)
LUA = Path(__file__).parent / "lua"
PLACE = scripts.load(LUA / "place.lua", ready.PARKING)
UNPLACE = scripts.load(LUA / "unplace.lua", ready.PARKING)
KEEP = scripts.load(LUA / "keep_places.lua")


class Parking:
    """What becomes of the runs under limits of one batch of entries."""

    def __init__(self, config: WorkerConfig, client: "redis.Redis", tickets: Sequence[tuple[Entry, Ticket]]) -> None:
        self._config = config
        self._client = client
        self._tickets = tickets
        self._placed: dict[UUID, Entry] = {}
        self._gone: set[int] = set()

    def place(self, limited: Sequence[Limited]) -> set[UUID]:
        """Give each run its places, or park it: one round trip for all. Returns the runs that have their places."""
        waiting = [(entry, one) for one in limited if (entry := self._entry_of(one.run)) is not None]

        def fill(pipe: "redis.client.Pipeline") -> None:
            for entry, one in waiting:
                self._call(pipe, entry, one)

        try:
            replies = scripts.execute(self._client, fill)
        except RedisError as error:
            metrics.redis_errors.inc()
            log.warning("limits.not_asked", runs=len(waiting), error=str(error))
            return set()
        for (entry, one), reply in zip(waiting, replies, strict=True):
            self._note(entry, one.run, reply)
        return set(self._placed)

    def _entry_of(self, run: Run) -> Entry | None:
        """Return the entry a run is to be claimed by: the one of its fence."""
        return next((e for e, ticket in self._tickets if (ticket.run_id, ticket.fence) == (run.pk, run.fence)), None)

    def _call(self, pipe: "redis.client.Pipeline", entry: Entry, one: Limited) -> None:
        queue, config = one.run.queue, self._config
        pairs = [value for limit in one.limits for value in (limit.name, limit.most)]
        PLACE.call(
            pipe,
            [keys.index(queue), keys.slots(entry.queue), keys.epoch(queue)],
            [
                keys.GROUP,
                str(one.run.pk),
                one.run.fence,
                entry.stream,
                entry.id,
                entry.slot,
                int(features.has(pipe, features.XACKDEL)),
                round(config.lease * 1000),
                running.young_ms(config.lease),
                running.turn_of(one.run),
                *running.facts_of(one.run, ()),
                *pairs,
            ],
        )

    def _note(self, entry: Entry, run: Run, reply: Any) -> None:
        if isinstance(reply, Exception):
            log.warning("limits.not_asked", run_id=str(run.pk), error=str(reply))
            return
        what, limit = reply[0].decode(), reply[1].decode()
        if what == "placed":
            self._placed[run.pk] = entry
            return
        self._gone.add(id(entry))
        if what == "parked":
            metrics.parked.labels(limit.partition(":")[0]).inc()
            log.info("run.parked", run_id=str(run.pk), limit=limit)

    def is_gone(self, entry: Entry) -> bool:
        """Whether the entry was acknowledged here: its run is parked, or another entry is its own."""
        return id(entry) in self._gone

    def give_back(self, claimed: set[UUID]) -> None:
        """Pass on the places of runs that still wait, because their claim failed. Others' places go with their entries.

        Never raises: what is not passed on expires.
        """
        left = {run_id: entry for run_id, entry in self._placed.items() if run_id not in claimed}
        if not left:
            return
        try:
            rows = list(Run.objects.filter(pk__in=left, state=RunState.QUEUED).values_list("pk", "queue"))
            calls = [([keys.index(queue)], [str(pk), left[pk].stream, left[pk].id]) for pk, queue in rows]
            scripts.execute(self._client, scripts.each(lambda pipe, call: UNPLACE.call(pipe, *call), calls))
        except (Error, RedisError) as error:
            metrics.count_error(error)
            log.warning("limits.left_to_expire", runs=len(left), error=str(error))


def keep(pipe: "redis.client.Pipeline", run: Run, limits: tuple[str, ...], seconds: float) -> None:
    """Queue the renewal of a run's places by the server's own clock. By its text: a beat must not wait for a reload."""
    places = [keys.limit_places(run.queue, name) for name in limits]
    facts = "\n".join(map(str, running.facts_of(run, limits)))
    pipe.eval(KEEP.text, 1 + len(places), keys.limited(run.queue), *places, str(run.pk), round(seconds * 1000), facts)
