"""Keeping an outage from filling the log: a warning that repeats is written once in ten seconds, with a count."""

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

EVERY_SECONDS = 10.0
KINDS_MAX = 1000  # remembered at once; what is forgotten is written again
ERROR_LETTERS = 40  # of an error's text: what comes after names ports, ids, and times


class Repeats:
    """A structlog processor. It drops warnings with an `error` of which one of the same kind was just written.

    Two are of one kind when event and the beginning of the error agree. The next one that is written says in `repeats`
    how many were not.
    """

    def __init__(self, every: float = EVERY_SECONDS) -> None:
        self._every = every
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, _logger: Any, level: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if level not in {"warning", "error"} or "error" not in event:
            return event
        kind = (str(event.get("event")), str(event["error"])[:ERROR_LETTERS])
        now = time.monotonic()
        with self._lock:
            at, missed = self._seen.get(kind, (None, 0))
            if at is not None and now - at < self._every:
                self._seen[kind] = (at, missed + 1)
                raise structlog.DropEvent
            self._seen[kind] = (now, 0)
            self._seen.move_to_end(kind)
            if len(self._seen) > KINDS_MAX:
                self._seen.popitem(last=False)
        if missed:
            event["repeats"] = missed
        return event
