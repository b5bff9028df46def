"""Waiting for conditions, and real processes under test: `runworker_streams`, daphne, any command of manage.py."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist
from django.db import connection, connections

from tests.servers import spawn
from workers.models import WorkerProcess

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 60.0
SCHEMES = {"sqlite": "sqlite", "postgresql": "postgres", "mysql": "mysql"}
_never = threading.Event()


def eventually(assertion: Callable[[], T], *, timeout: float = 10.0, interval: float = 0.02) -> T:
    """Call `assertion` until it passes, and return its value. Failing is an AssertionError, a missing row, or False."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            value = assertion()
        except (AssertionError, ObjectDoesNotExist):
            if time.monotonic() > deadline:
                raise
        else:
            if value is not False:
                return value
            assert time.monotonic() <= deadline, f"still False after {timeout} s"
        _never.wait(interval)


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Call `work` in a thread, and close the database connection it opened there: the thread may end with the test."""

    def closing() -> T:
        try:
            return work(*args)
        finally:
            connections.close_all()

    return await asyncio.to_thread(closing)


async def aeventually(assertion: Callable[[], T], *, timeout: float = 10.0) -> T:
    """`eventually` for async tests: polls in a thread of its own, with a connection of its own."""

    def poll() -> T:
        try:
            return eventually(assertion, timeout=timeout)
        finally:
            connections.close_all()

    return await sync_to_async(poll, thread_sensitive=False)()


def database_url() -> str:
    """Return the DATABASE_URL of the database this test uses."""
    entry = connection.settings_dict
    scheme = SCHEMES[connection.vendor]
    if scheme == "sqlite":
        return f"sqlite:///{entry['NAME']}"
    login = entry["USER"] + (f":{quote(entry['PASSWORD'])}" if entry["PASSWORD"] else "")
    port = f":{entry['PORT']}" if entry["PORT"] else ""
    if entry["HOST"].startswith("/"):
        return f"{scheme}://{login}@localhost/{entry['NAME']}?host={quote(entry['HOST'], safe='/')}"
    return f"{scheme}://{login}@{entry['HOST']}{port}/{entry['NAME']}"


def child_env(**extra: str) -> dict[str, str]:
    """Return the environment of a process that works on this test's database, Redis, prefix and probe log."""
    return os.environ | {
        "DATABASE_URL": database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "AGENTOPS_PREFIX": settings.AGENTOPS_PREFIX,
        "AGENTOPS_PROBE_LOG": settings.AGENTOPS_PROBE_LOG,
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


def manage(*arguments: str, timeout: float = 60.0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a manage.py command to its end and return its exit code, stdout and stderr."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=child_env(**env), capture_output=True, text=True, timeout=timeout, check=False
    )


class Child:
    """A real process of ours. Its output is kept and shown when the test fails."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.command = command
        self.env = env
        handle, name = tempfile.mkstemp(suffix=".log", dir=settings.DATA_DIR)
        os.close(handle)
        self.log = Path(name)
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self, pass_fds: tuple[int, ...] = ()) -> None:
        self.process = spawn(self.command, log=self.log, env=self.env, cwd=ROOT, pass_fds=pass_fds)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def begin(self) -> None:
        """Launch it without waiting; `await_ready` waits."""
        self.launch()

    def is_ready(self) -> bool:
        raise NotImplementedError

    def await_ready(self) -> None:
        """Poll `is_ready`; an early end of the process fails at once, with its output."""

        def ready() -> bool:
            if not self.alive:
                raise RuntimeError(f"{self.command} ended early:\n{self.output()[-4000:]}")
            return self.is_ready()

        try:
            eventually(ready, timeout=READY_SECONDS)
        except AssertionError as error:
            raise RuntimeError(f"{self.command} is not ready:\n{self.output()[-4000:]}") from error

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 20.0) -> int:
        """Return the exit code; raises TimeoutExpired."""
        assert self.process is not None
        return self.process.wait(timeout)

    def term(self, timeout: float = 20.0) -> int:
        """Ask it to end and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill(self) -> None:
        """End it without a chance to clean up."""
        if self.alive:
            self.signal(signal.SIGKILL)
            self.wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


class WorkerProbe(Child):
    """A `manage.py runworker_streams` process. `start()` returns when its row says that it is there."""

    def __init__(self, *arguments: str, concurrency: int = 4, **env: str) -> None:
        command = [sys.executable, "manage.py", "runworker_streams", "--concurrency", str(concurrency), *arguments]
        super().__init__(command, child_env(**env))

    def start(self) -> "WorkerProbe":
        self.begin()
        self.await_ready()
        return self

    def is_ready(self) -> bool:
        return bool(self.rows().exists())

    def rows(self) -> Any:
        return WorkerProcess.objects.filter(pid=self.pid, stopped_at=None)

    @property
    def row(self) -> WorkerProcess:
        return WorkerProcess.objects.filter(pid=self.pid).latest("started_at")


class WebServer(Child):
    """A daphne process of the application on a free loopback port, which a restart keeps."""

    def __init__(self, **env: str) -> None:
        self.port = 0
        super().__init__([], child_env(**env))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def start(self) -> "WebServer":
        self.begin()
        self.await_ready()
        return self

    def begin(self) -> None:
        # Bound here and handed over: a port that was free a moment ago may not be any more.
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", self.port))
            listener.listen(128)
            self.port = listener.getsockname()[1]
            daphne = [sys.executable, "-m", "daphne", "--fd", str(listener.fileno()), "-v", "0"]
            self.command = [*daphne, "agentops.asgi:application"]
            self.launch((listener.fileno(),))

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def restart(self) -> None:
        """End it in its orderly way and start it again on the same port."""
        self.term()
        self.start()


class Stack:
    """The processes of one test. Leaving it kills what is left and prints every output for a failing test's report."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.kill()
            code = child.process.returncode if child.process else None
            print(f"--- output of {child.command[1:4]} (exit {code})\n{child.output()}", file=sys.stderr)

    def together(self, *children: Child) -> None:
        """Start several at once: they spend their start-up time in parallel."""
        self.children += children
        for child in children:
            child.begin()
        for child in children:
            child.await_ready()

    def worker(self, *arguments: str, concurrency: int = 4, **env: str) -> WorkerProbe:
        """Start a worker and wait until it is ready; `env` are settings of this process alone."""
        probe = WorkerProbe(*arguments, concurrency=concurrency, **env)
        self.children.append(probe)
        return probe.start()

    def web(self, **env: str) -> WebServer:
        """Start a web process and wait until it answers."""
        server = WebServer(**env)
        self.children.append(server)
        return server.start()


def probe_log(run_id: object = None) -> list[dict[str, Any]]:
    """Return the lines the probe agents wrote in this test, in order; of one run if it is named."""
    path = Path(settings.AGENTOPS_PROBE_LOG)
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if run_id is None or line["run"] == str(run_id)]
