"""A scripted OpenAI-compatible endpoint: what a provider can answer wrong. A real server on a loopback port."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[["Reply", dict[str, Any]], None]


class Reply(BaseHTTPRequestHandler):
    """One request; a script answers it through these methods."""

    server: "Endpoint"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, body))
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        self.server.script(self, body)

    def problem(self, status: int, message: str, **more: Any) -> None:
        self.answer({"error": {"message": message, **more}}, status)

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()

    def chunk(self, text: str | None = None, *, finish: str | None = None, usage: dict[str, Any] | None = None) -> None:
        choices = [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]
        frame = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
        if usage:
            frame |= {"choices": [], "usage": usage}
        self.frame(json.dumps(frame))

    def frame(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        pass


class Endpoint(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Reply)
        self.script = script
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients of these tests leave in the middle on purpose


@contextmanager
def endpoint(settings: Any, script: Script) -> Iterator[Endpoint]:
    """Serve the script and point the agents at it."""
    server = Endpoint(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    settings.OPENAI_BASE_URL, settings.OPENAI_API_KEY = server.url, "sk-secret-key-1234567890"
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
