"""A worker's own port: `/metrics`, `/healthz`, `/readyz`. Red when it is deaf, so that a supervisor restarts it."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from workers.worker import Worker

DEAF_SECONDS = 60.0
LAG_SECONDS = 30.0


class _Quiet(WSGIRequestHandler):
    timeout = 5  # a peer that sends nothing must not keep a thread

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's word
        pass


class _Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Port:
    """The server, in a thread of its own; `number` is the port it listens on."""

    def __init__(self, host: str, number: int) -> None:
        self._worker: Worker | None = None
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app()
        self._server = make_server(host, number, self._answer, server_class=_Threaded, handler_class=_Quiet)
        self.number: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="port", daemon=True)

    def start(self, worker: Worker) -> None:
        self._worker = worker
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path not in {"/healthz", "/readyz"} or self._worker is None:
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"not found\n"]
        facts = health_of(self._worker)
        start_response("200 OK" if facts["ok"] else "503 Service Unavailable", [("Content-Type", "application/json")])
        return [json.dumps(facts).encode()]


def health_of(worker: Worker) -> dict[str, Any]:
    """Return {ok, read_age, beat_age, loop_age, running, draining}: ages in seconds; not ok when one is too old."""
    now = time.monotonic()
    read_age, beat_age = now - worker.last_good_read, now - worker.keeper.last_beat
    loop_age = now - worker.last_tick
    beats = beat_age < max(LAG_SECONDS, worker.config.lease * 2)
    return {
        "ok": read_age < DEAF_SECONDS and loop_age < DEAF_SECONDS and beats,
        "read_age": round(read_age, 3),
        "beat_age": round(beat_age, 3),
        "loop_age": round(loop_age, 3),
        "running": worker.places.in_use,
        "draining": worker.shutdown.draining.is_set(),
    }
