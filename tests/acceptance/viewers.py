"""Viewers of the event streams as their users write them: they reconnect and resume from a cursor."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.sync.client import ClientConnection, connect

from runs.states import TERMINAL_EVENTS
from tests.probes import WebServer

PROTOCOL = "agentops"
ACK_EVERY = 32
OPEN_SECONDS = 20.0
_never = threading.Event()


@contextmanager
def socket(web: WebServer, path: str, *, key: str = "", **options: Any) -> Iterator[ClientConnection]:
    """A socket with a key in its subprotocols. Read what comes with `frames` or `recv`."""
    offered = [PROTOCOL, f"key.{key}"] if key else None
    options = {"max_size": None, "open_timeout": OPEN_SECONDS, "close_timeout": 1, "compression": None} | options
    with connect(f"{web.ws_url}{path}", subprotocols=offered, **options) as connection:
        yield connection


def frames(connection: ClientConnection, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield frames until the time is over. Raises ConnectionClosed."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        try:
            yield json.loads(connection.recv(timeout=left))
        except TimeoutError:
            return


def close_code(connection: ClientConnection, seconds: float = 10.0) -> int | None:
    """Read on and return the code with which the server closes; None when it does not."""
    try:
        for _ in frames(connection, seconds):
            pass
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else 1006
    return None


class Viewer(threading.Thread):
    """Reads until `runs` terminal events came, hanging up every `stay` seconds and going on from its cursor."""

    def __init__(self, web: WebServer, path: str, key: str, *, stay: float, runs: int = 1) -> None:
        super().__init__(daemon=True)
        self.web, self.path, self.key, self.stay = web, path, key, stay
        self.events: list[dict[str, Any]] = []
        self.cursor = ""
        self.connections = 0
        self.closed_with: list[int] = []
        self._left = runs
        self._given_up = threading.Event()

    def run(self) -> None:
        while self._left and not self._given_up.is_set():
            try:
                self.look()
            except ConnectionClosed as closed:
                self.closed_with.append(closed.rcvd.code if closed.rcvd else 1006)
            except (OSError, EOFError, InvalidHandshake, InvalidMessage, httpx.TransportError, TimeoutError):
                _never.wait(0.1)  # the server is away

    def look(self) -> None:
        """Connect once and read for `stay` seconds."""
        raise NotImplementedError

    def got(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.cursor = event.get("cursor") or event["id"] or self.cursor
        self._left -= event["kind"] in TERMINAL_EVENTS

    def finish(self, timeout: float) -> list[dict[str, Any]]:
        """Wait for the last event and return all; raises AssertionError when it does not come."""
        self.join(timeout)
        self._given_up.set()
        last = self.events[-1] if self.events else None
        assert not self.is_alive(), f"{len(self.events)} events in {self.connections} connections, last {last}"
        return self.events


class WebSocketViewer(Viewer):
    def look(self) -> None:
        with socket(self.web, f"{self.path}?after={self.cursor}", key=self.key) as connection:
            self.connections += 1
            for number, frame in enumerate(frames(connection, self.stay), start=1):
                if "kind" in frame:
                    self.got(frame)
                if not self._left:
                    return
                if number % ACK_EVERY == 0:
                    with suppress(ConnectionClosed):  # the server may be through: what it sent is still to be read
                        connection.send(json.dumps({"type": "ack", "id": self.cursor}))


class SseViewer(Viewer):
    def look(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "text/event-stream"}
        if self.cursor:
            headers["Last-Event-ID"] = self.cursor
        until = time.monotonic() + self.stay
        with httpx.stream("GET", f"{self.web.url}{self.path}", headers=headers, timeout=OPEN_SECONDS) as answer:
            assert answer.status_code == 200
            self.connections += 1
            for line in answer.iter_lines():
                if line.startswith("data: ") and "kind" in (frame := json.loads(line[6:])):
                    self.got(frame)
                if not self._left or time.monotonic() > until:
                    return


def start(*viewers: Viewer) -> None:
    for viewer in viewers:
        viewer.start()


def pages(read: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all events of a run by its JSON pages: `read` gets a page after a cursor."""
    events: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = read(cursor)
        events += page["results"]
        cursor = page["next"]
        if page["ended"]:
            return events
