"""A proxy in front of PostgreSQL that loses answers: a COMMIT is done, and its client never hears of it (protocol 1.8).

Speaks only as much of the wire protocol as it takes to see a client's COMMIT, alone or as part of a pipeline.
"""

import contextlib
import select
import shutil
import socket
import struct
import threading
from enum import Enum
from pathlib import Path

from tests.servers import short_folder

SOCKET = ".s.PGSQL.5432"
IDLE = b"Z\x00\x00\x00\x05I"  # ReadyForQuery outside a transaction: everything asked for is answered
PLAIN, EXTENDED = b"Q", b"P"
CHUNK = 65536
WAIT_SECONDS = 30.0


class Fate(Enum):
    """What becomes of the next COMMIT whose answer is lost."""

    LOST = "it is done, then both sides are closed"
    LOST_AND_DOWN = "the same, and nobody gets through until `accept`"
    LATE = "the client's side is closed first, and it is done only when the test says so"


class LyingProxy:
    """Listens on a Unix socket in `folder` and passes every connection on to the server's socket, both ways.

    `lost` counts the commits that were done without an answer.
    """

    def __init__(self, server_folder: str) -> None:
        self.folder = short_folder("lie")
        self.lost = 0
        self._upstream = str(Path(server_folder) / SOCKET)
        self._lock = threading.Lock()
        self._fate: Fate | None = None
        self._honest = 0
        self._down = False
        self._late = threading.Event()
        self._talks: set[_Talk] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / SOCKET))
        self._listener.listen(64)
        self._door = threading.Thread(target=self._welcome, name="lying-door")

    def __enter__(self) -> "LyingProxy":
        self._door.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._late.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._door.join(WAIT_SECONDS)
        self._listener.close()
        talks = self._cut()
        for talk in talks:
            talk.join(WAIT_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)

    def lose_next_commit(self, fate: Fate = Fate.LOST, *, honest: int = 0) -> None:
        """Lose the answer to the next COMMIT that any client sends, after so many honest ones."""
        self._late.clear()
        with self._lock:
            self._fate, self._honest = fate, honest

    def deliver(self) -> None:
        """Pass on the COMMIT that is late."""
        self._late.set()

    def refuse(self) -> None:
        """Be down: every connection is cut, every new one is closed at once."""
        self._down = True
        self._cut()

    def accept(self) -> None:
        """Be there again."""
        self._down = False

    def _welcome(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._down:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._upstream)
            talk = _Talk(self, client, server)
            with self._lock:
                self._talks.add(talk)
            talk.start()

    def _cut(self) -> "list[_Talk]":
        with self._lock:
            talks = list(self._talks)
        for talk in talks:
            talk.cut()
        return talks

    # -- for the conversations -----------------------------------------------------------------------------------------
    def take_fate(self) -> Fate | None:
        """Return what is to become of the COMMIT that was just seen; the next one is an honest one again."""
        with self._lock:
            if self._fate is not None and self._honest:
                self._honest -= 1
                return None
            fate, self._fate = self._fate, None
        return fate

    def wait_late(self) -> None:
        self._late.wait(WAIT_SECONDS)

    def was_lost(self, fate: Fate) -> None:
        self.lost += 1
        if fate is Fate.LOST_AND_DOWN:
            self.refuse()

    def forget(self, talk: "_Talk") -> None:
        with self._lock:
            self._talks.discard(talk)


class _Talk(threading.Thread):
    """One client's connection and its connection to the server."""

    def __init__(self, proxy: LyingProxy, client: socket.socket, server: socket.socket) -> None:
        super().__init__(name="lying-talk")
        self._proxy = proxy
        self._client, self._server = client, server
        self._greeted = False
        self._said = b""  # by the client, not yet a whole message
        self._fate: Fate | None = None
        self._answer = b""  # to the COMMIT that is being lost

    def cut(self) -> None:
        for side in (self._client, self._server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        with self._client, self._server, contextlib.suppress(OSError):
            while self._step():
                pass
        self._proxy.forget(self)

    def _step(self) -> bool:
        """Pass on what is there. False: it is over."""
        sides = [self._server] if self._fate is Fate.LATE else [self._client, self._server]
        ready, _, _ = select.select(sides, [], [])
        if self._client in ready:
            data = self._client.recv(CHUNK)
            if not data:
                return False
            self._said += data
            for message in self._messages():
                self._pass_on(message)
        if self._server in ready:
            data = self._server.recv(CHUNK)
            return bool(data) and self._answered(data)
        return True

    def _pass_on(self, message: bytes) -> None:
        if self._fate is None and self._greeted and _is_commit(message):
            self._fate = self._proxy.take_fate()
            if self._fate is Fate.LATE:
                self._client.shutdown(socket.SHUT_RDWR)
                self._proxy.wait_late()
        self._server.sendall(message)

    def _answered(self, data: bytes) -> bool:
        if self._fate is None:
            self._client.sendall(data)
            return True
        self._answer += data
        if not self._answer.endswith(IDLE):
            return True
        self._proxy.was_lost(self._fate)
        return False

    def _messages(self) -> list[bytes]:
        """Take the whole messages off what the client said. The first ones, of the greeting, have no type byte."""
        found = []
        while True:
            head = 1 if self._greeted else 0
            if len(self._said) < head + 4:
                return found
            end = head + struct.unpack_from("!I", self._said, head)[0]
            if len(self._said) < end:
                return found
            message, self._said = self._said[:end], self._said[end:]
            # Protocol 3.x is the greeting itself; other codes ask for encryption and are answered first.
            self._greeted = self._greeted or message[4:6] == b"\x00\x03"
            found.append(message)


def _is_commit(message: bytes) -> bool:
    kind, body = message[:1], message[5:]
    if kind not in (PLAIN, EXTENDED):
        return False
    statement = body.split(b"\0")[0 if kind == PLAIN else 1]
    return statement.strip(b" ;\n").upper() == b"COMMIT"
