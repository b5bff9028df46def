"""The consuming side of the ready streams: wait holding nothing, take in one script, acknowledge in one."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import redis
from redis.exceptions import ResponseError

from runs import features, keys, ready, scripts
from runs.models import Run

LUA = Path(__file__).parent / "lua"
TAKE = scripts.load(LUA / "take.lua")
ACK = scripts.load(LUA / "ack.lua", ready.PARKING)
HAND_OVER = scripts.load(LUA / "hand_over.lua", ready.PARKING)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stream entry given to this worker. `place` is the local place it will run on, `slot` the global member."""

    queue: str
    stream: str
    id: str
    fields: dict[bytes, bytes]
    deliveries: int
    place: int = -1
    slot: str = ""


class Consumer:
    """One worker's view of the ready streams of its queues. Not thread-safe: used by the fetch loop alone."""

    def __init__(
        self,
        client: "redis.Redis",
        *,
        name: str,
        queues: Sequence[str],
        stale: float,
        beat: float,
        slot_seconds: float,
        slot_limit: int,
        extra_streams: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._name = name
        self._queues = queues
        self._stale_ms = round(stale * 1000)
        self._young_ms = round((beat + 1) * 1000)
        self._slot_ms = round(slot_seconds * 1000)
        self._slot_limit = slot_limit
        self._extra = extra_streams
        self._unsure = False
        self._cursors = {queue: ["0-0"] * len(keys.PRIORITIES) for queue in queues}

    def wait(self, blocking: "redis.Redis", seconds: float) -> bool:
        """Wait for a wake of any queue, outside the group, holding nothing. Returns whether there was one."""
        return blocking.blpop([keys.wake(queue) for queue in self._queues], timeout=seconds) is not None

    def take(self, places: Sequence[int], known: Collection[str] = (), paused: Collection[str] = ()) -> list[Entry]:
        """Return at most as many entries as there are places: one round trip a queue, in the order of the queues.

        Nothing of queues that are `paused`.

        After a failed take the server may have given entries that never arrived: they are adopted first, those that
        this process does not know. Only then, because reading one's history resets idle time and delivery count.
        """
        free = list(places)
        taken: list[Entry] = []
        if self._unsure:
            taken = self._adopt(free, known)
            free = free[len(taken) :]
        self._unsure = True  # until this take has succeeded
        taken += self._take_all(free, paused)
        self._unsure = False
        return taken

    def _adopt(self, places: Sequence[int], known: Collection[str]) -> list[Entry]:
        """Return the entries that are pending for this consumer and that it does not know (protocol 6.3)."""
        found: list[Entry] = []
        for queue in self._queues:
            for name in keys.ready_streams(queue):
                try:
                    reply: Any = self._client.xreadgroup(keys.GROUP, self._name, {name: "0"}, count=1000)
                except ResponseError as error:
                    if "NOGROUP" not in str(error):
                        raise
                    continue
                for entry_id, fields in reply[0][1] if reply else []:
                    if fields and entry_id.decode() not in known and len(found) < len(places):
                        place = places[len(found)]
                        slot = self.slot_member(place) if self._slot_limit else ""
                        found.append(Entry(queue, name, entry_id.decode(), fields, 1, place, slot))
        return found

    def _take_all(self, free: list[int], paused: Collection[str]) -> list[Entry]:
        taken: list[Entry] = []
        for queue in [name for name in self._queues if name not in paused]:
            if not free:
                break
            got = self._take_queue(queue, free)
            taken += got
            free = [place for place in free if place not in {entry.place for entry in got}]
        if self._extra and free:
            taken += self._take_extra(free)
        return taken

    def _take_queue(self, queue: str, places: Sequence[int]) -> list[Entry]:
        members = [self.slot_member(place) for place in places]
        streams = keys.ready_streams(queue)
        args: list[Any] = [
            keys.GROUP,
            self._name,
            self._slot_limit,
            self._slot_ms,
            self._stale_ms,
            self._young_ms,
            len(members),
            *members,
            *self._cursors[queue],
        ]
        call_keys = [keys.slots(queue), keys.epoch(queue), *streams]
        reply = scripts.execute(self._client, lambda pipe: TAKE.call(pipe, call_keys, args))[0]
        if isinstance(reply, Exception):
            raise reply
        granted, entries, cursors = reply
        self._cursors[queue] = [cursor.decode() for cursor in cursors]
        place_of = dict(zip([member.encode() for member in members], places, strict=True))
        return [
            Entry(
                queue=queue,
                stream=stream.decode(),
                id=entry_id.decode(),
                fields=dict(zip(fields[::2], fields[1::2], strict=True)),
                deliveries=int(deliveries),
                place=place_of[member],
                slot=member.decode() if self._slot_limit else "",
            )
            for member, (stream, entry_id, fields, deliveries) in zip(granted, entries, strict=True)
        ]

    def _take_extra(self, places: Sequence[int]) -> list[Entry]:
        """Read the extra streams by plain commands, last (protocol 5.1)."""
        taken: list[Entry] = []
        for stream in self._extra:
            left = len(places) - len(taken)
            if not left:
                break
            for entry_id, fields in self._read_extra(stream, left):
                place = places[len(taken)]
                taken.append(Entry(self._queues[0], stream, entry_id.decode(), fields, 1, place))
        return taken

    def _read_extra(self, stream: str, count: int) -> list[tuple[bytes, dict[bytes, bytes]]]:
        for last in (False, True):
            try:
                claimed: Any = self._client.xautoclaim(
                    stream, keys.GROUP, self._name, self._stale_ms, start_id="0-0", count=count
                )
                found = [entry for entry in claimed[1] if entry[0] is not None and entry[1]]
                if len(found) >= count:
                    return found
                left = count - len(found)
                new: Any = self._client.xreadgroup(keys.GROUP, self._name, {stream: ">"}, count=left) or []
                return found + [entry for _, entries in new for entry in entries]
            except ResponseError as error:
                if last or "NOGROUP" not in str(error):
                    raise
                self._client.xgroup_create(stream, keys.GROUP, id="0", mkstream=True)
        return []

    def free_slots(self, entries: Sequence[Entry]) -> None:
        """Release the slots of entries that started nothing."""
        if any(entry.slot for entry in entries):
            scripts.execute(self._client, scripts.each(free_slot, entries))

    def slot_member(self, place: int) -> str:
        """Return the name of a local place in the queue's slots."""
        return f"{self._name}/{place}"


def ack(pipe: "redis.client.Pipeline", entry: Entry, run_id: UUID | None) -> None:
    """Queue the acknowledgement of an entry, and the release of its slot, on a pipeline."""
    _ack(pipe, entry.queue, [str(run_id or ""), entry.stream, entry.id, entry.slot])


def ack_named(pipe: "redis.client.Pipeline", queue: str, run_id: UUID, *, fence: int | None = None) -> None:
    """Queue the acknowledgement of whatever the index says of a run: an entry, or that it is parked.

    With the fence of the caller's change: what was dispatched at it or after it is left alone.
    """
    _ack(pipe, queue, [str(run_id), "", "", ""], "" if fence is None else str(fence))


def _ack(pipe: "redis.client.Pipeline", queue: str, args: Sequence[str], fence: str = "") -> None:
    one_command = int(features.has(pipe, features.XACKDEL))
    ACK.call(pipe, [keys.index(queue), keys.slots(queue)], [keys.GROUP, *args, one_command, fence])


def hand_over(pipe: "redis.client.Pipeline", run: Run, slot: str = "") -> None:
    """Queue the exchange of a run's entry for a new one of its present fence."""
    HAND_OVER.call(
        pipe,
        [keys.index(run.queue), keys.wake(run.queue), keys.ready(run.queue, run.priority), keys.slots(run.queue)],
        [keys.GROUP, str(run.pk), run.fence, ready.MESSAGE_VERSION, run.traceparent, slot],
    )


def free_slot(pipe: "redis.client.Pipeline", entry: Entry) -> None:
    """Queue the release of an entry's slot alone, where the entry stays pending."""
    if entry.slot:
        pipe.zrem(keys.slots(entry.queue), entry.slot)
