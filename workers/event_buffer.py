"""The events an attempt has emitted and not yet stored, numbered without holes by their owner (protocol 3.2).

`tail` keeps what was stored last, so that a log that came back older than it was can be filled again.
"""

import datetime as dt
import threading
import time
from collections import deque
from typing import Any

from django.conf import settings
from django.utils import timezone

from runs import events
from runs.events import Line
from runs.text import clean_json, clean_text

TAIL = 500
DELTA_SECONDS = 0.1  # at most ten output.delta events a second
DELTA_LETTERS = 2048  # a letter may take six bytes in JSON; all of them fit an event


class EventBuffer:
    """Thread-safe: handlers may emit from threads while the writer takes. `<fence>-1` is not in here."""

    def __init__(self, fence: int, clock_offset: dt.timedelta) -> None:
        self.fence = fence
        self._clock_offset = clock_offset  # the database's clock minus ours: events carry database time
        self._next = 2
        self._lines: deque[Line] = deque()
        self._tail: deque[Line] = deque(maxlen=TAIL)
        self._delta: list[str] = []
        self._delta_since = 0.0
        self._bytes = 0
        self._count = 0
        self._lock = threading.RLock()
        self.closed = False
        self._spoke_at = time.monotonic()

    def silent_for(self) -> float:
        """Return the seconds since the handler's last event, or since it began."""
        with self._lock:
            return time.monotonic() - self._spoke_at

    @property
    def last_seq(self) -> int:
        """The number of the last event numbered so far; 1 when there was none."""
        with self._lock:
            return self._next - 1

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        """Number an event. After the attempt was stopped or fenced it is dropped."""
        with self._lock:
            if self.closed:
                return
            self._spoke_at = time.monotonic()
            self._flush_delta()
            self._number(kind, data)

    def delta(self, text: str) -> None:
        with self._lock:
            if self.closed or not text:
                return
            self._spoke_at = time.monotonic()
            if not self._delta:
                self._delta_since = time.monotonic()
            self._delta.append(text)
            if sum(map(len, self._delta)) > DELTA_LETTERS:
                self._flush_delta()

    def _flush_delta(self) -> None:
        if self._delta:
            text, self._delta = "".join(self._delta), []
            # A long text becomes several events: cut to the limit of one, it would be lost.
            for start in range(0, len(text), DELTA_LETTERS):
                self._number("output.delta", {"text": text[start : start + DELTA_LETTERS]})

    def _number(self, kind: str, data: dict[str, Any]) -> None:
        body = events.encode(clean_text(kind)[:60], clean_json(data), timezone.now() + self._clock_offset)
        self._lines.append(Line(events.event_id(self.fence, self._next), body))
        if len(self._lines) > settings.EVENT_CAP:
            self._lines.popleft()  # Redis is away: the log would not keep it either, and readers see the jump
        self._next += 1
        self._bytes += len(body)
        self._count += 1

    def take(self, *, everything: bool = False) -> list[Line]:
        """Return the lines to store next; they stay in the buffer until `stored`. Young deltas wait for company."""
        with self._lock:
            if self._delta and (everything or time.monotonic() - self._delta_since >= DELTA_SECONDS):
                self._flush_delta()
            return [self._lines[i] for i in range(min(len(self._lines), TAIL))]

    def stored(self, last_id: str) -> None:
        """Drop the lines up to the log's last id from the buffer."""
        with self._lock:
            done = events.split_id(last_id)
            while self._lines and events.split_id(self._lines[0].id) <= done:
                self._tail.append(self._lines.popleft())

    def after(self, last_id: str) -> list[Line]:
        """Return everything still known after an id: the tail, then what is not stored yet."""
        with self._lock:
            floor = events.split_id(last_id)
            return [line for line in (*self._tail, *self._lines) if events.split_id(line.id) > floor]

    @property
    def cap(self) -> int:
        """How many events the log may keep: EVENT_CAP, or fewer when they are large (EVENT_CAP_BYTES)."""
        with self._lock:
            mean = max(1, self._bytes // max(1, self._count))
            return max(100, min(settings.EVENT_CAP, settings.EVENT_CAP_BYTES // mean))

    def close(self) -> None:
        """Number nothing more: the attempt has ended or is not ours."""
        with self._lock:
            if not self.closed:
                self._flush_delta()
            self.closed = True
