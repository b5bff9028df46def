"""The event log of a run: encoding, the append script and its four answers (protocol 3.2, 3.3).

An event on the wire is `{"id": "<fence>-<seq>", "run", "at", "kind", "data"}`; in the stream its body holds kind,
at and data, and the stream's own id is the event's id. `<fence>-1` is the lifecycle event of that change of state.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import orjson
import redis
from django.conf import settings

from runs import keys, scripts
from runs.text import clean_json

APPEND = scripts.load(Path(__file__).parent / "lua" / "append.lua")
CUT = "… (cut)"
ID_MAX = 2**64 - 1  # of each half of a stream id


class Event(TypedDict):
    """One event as readers get it. `id` is empty for a `gap`, which no cursor can name."""

    id: str
    run: str
    at: str
    kind: str
    data: dict[str, Any]


class Answer(StrEnum):
    OK = "OK"
    FENCED = "FENCED"
    GAP = "GAP"
    NOKEY = "NOKEY"


@dataclass(frozen=True, slots=True)
class Line:
    """An event before it is stored. `prev` is given where the owner numbered the events before it."""

    id: str
    body: bytes
    prev: str = ""


@dataclass(frozen=True, slots=True)
class Append:
    """One call of the append script: the lines of one run, by a caller of this fence."""

    run_id: UUID
    fence: int
    lines: Sequence[Line]
    opening: bool = False
    cap: int = 0
    wakes: Sequence[str] = field(default=())


def event_id(fence: int, seq: int) -> str:
    return f"{fence}-{seq}"


def split_id(value: str) -> tuple[int, int]:
    """Return (fence, seq) of an event id; (0, 0) for the empty cursor. Raises ValueError for anything else."""
    if not value:
        return (0, 0)
    fence, dash, seq = value.partition("-")
    if not (dash and fence.isascii() and fence.isdigit() and seq.isascii() and seq.isdigit()) or len(value) > 41:
        raise ValueError(value)
    parts = int(fence), int(seq)
    if max(parts) > ID_MAX:
        raise ValueError(value)
    return parts


def encode(kind: str, data: Mapping[str, Any], at: dt.datetime) -> bytes:
    """Serialise an event's body, at most EVENT_BYTES: long texts in `data` are cut and marked, not refused."""
    try:
        body = _dump(kind, data, at)
    except orjson.JSONEncodeError:  # half a surrogate pair, a number of more than 64 bits
        data = clean_json(data)
        body = _dump(kind, data, at)
    budget = settings.EVENT_BYTES
    while len(body) > settings.EVENT_BYTES and budget > 64:
        budget //= 2
        cut = {key: _cut(value, budget) for key, value in data.items()}
        body = _dump(kind, {**cut, "truncated": True}, at)
    return body if len(body) <= settings.EVENT_BYTES else _dump(kind, {"truncated": True}, at)


def _dump(kind: str, data: Mapping[str, Any], at: dt.datetime) -> bytes:
    stamp = at.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return orjson.dumps({"kind": kind, "at": stamp, "data": data}, option=orjson.OPT_NON_STR_KEYS, default=str)


def _cut(value: Any, budget: int) -> Any:
    if isinstance(value, str):
        return value if len(value.encode()) <= budget else value.encode()[:budget].decode("utf-8", "ignore") + CUT
    raw = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str)
    return value if len(raw) <= budget else raw[:budget].decode("utf-8", "ignore") + CUT


def decode(run_id: UUID, entry_id: str, body: bytes) -> Event:
    """Return a stored body as the event readers get."""
    stored = orjson.loads(body)
    return {"id": entry_id, "run": str(run_id), "at": stored["at"], "kind": stored["kind"], "data": stored["data"]}


def call(pipe: "redis.client.Pipeline", append: Append) -> None:
    """Queue the append on a pipeline made by `scripts.execute`."""
    args: list[Any] = [
        append.fence,
        int(append.opening),
        settings.EVENT_TTL_SECONDS * 1000,
        append.cap or settings.EVENT_CAP,
        "\n".join([keys.run_wake(append.run_id), *append.wakes]),
    ]
    for line in append.lines:
        args += [line.id, line.prev, line.body]
    APPEND.call(pipe, [keys.log(append.run_id)], args)


def answer_of(reply: Any) -> tuple[Answer, str]:
    """Return the script's answer and the log's last id. Raises the reply, if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return Answer(reply[0].decode()), reply[1].decode()


def append_all(client: "redis.Redis", appends: Sequence[Append]) -> list[tuple[Answer, str]]:
    """Append for many runs in one round trip. Returns the answers in the same order."""

    def fill(pipe: "redis.client.Pipeline") -> None:
        for append in appends:
            call(pipe, append)

    return [answer_of(reply) for reply in scripts.execute(client, fill)]


def follows(before: str, event: Event, prev: str) -> bool:
    """Whether the event is the very next one after the id `before`, so that nothing is missing between (3.3)."""
    old_fence, old_seq = split_id(before)
    fence, seq = split_id(event["id"])
    if fence == old_fence:
        return seq == old_seq + 1
    return fence == old_fence + 1 and seq == 1 and (not prev or prev == before)


def bodies(run_id: UUID, entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> list[tuple[Event, str]]:
    """Return the (event, prev) pairs of an XRANGE reply. A trimmed entry (no fields) is left out."""
    return [
        (decode(run_id, entry_id.decode(), fields[b"e"]), fields.get(b"p", b"").decode())
        for entry_id, fields in entries
        if fields
    ]
