"""`up` as its users start it: a real process tree in a temporary folder, ended in every way it can end."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

KEYS = {"url", "admin_user", "admin_password", "api_key", "redis_url", "database_url", "data_dir", "pids"}
OURS = ("AGENTOPS_", "OPENAI_", "DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS")
SECONDS = 60.0


def until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Poll until the condition is true and return its value."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still waiting for {what}"
        pause.wait(0.05)
    return value


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not merely waiting to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@dataclass
class Up:
    """One `up` process and what it printed."""

    folder: Path
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] = field(init=False)
    ready: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        command = [sys.executable, "manage.py", "up", "--no-model", "--json", "--data-dir", str(self.folder)]
        if "--port" not in self.arguments:
            command += ["--port", "0"]
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.errors = self.folder.parent / f"{time.monotonic_ns()}.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *self.arguments],
                cwd=settings.BASE_DIR,
                env={**kept, **self.environment},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_ready(self) -> "Up":
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said()
        self.ready = json.loads(line)
        return self

    def said(self) -> str:
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def facts(self) -> dict[str, Any]:
        """Return what `instance.json` says now."""
        return json.loads((self.folder / "instance.json").read_text(encoding="utf-8"))

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout=SECONDS)

    def rest(self) -> str:
        """Return what came on stdout after the ready line. Call it when the process is gone."""
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A first start with two workers, in a folder whose path is 200 characters and not plain."""
    folder = tmp_path_factory.mktemp("up") / "a b%20#?"
    folder = folder / ("x" * (200 - len(str(folder)) - 1))
    up = Up(folder, ["--workers", "2"])
    yield up.wait_ready()
    assert up.end() == 0
    assert up.rest() == ""
    assert not Path(up.ready["redis_url"].removeprefix("unix://")).parent.exists()
    up.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def begin(*arguments: str, folder: Path = tmp_path / "d", **environment: str) -> Up:
        started.append(Up(folder, list(arguments), environment))
        return started[-1]

    yield begin
    for up in started:
        up.close()


def status_of(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return int(answer.status)


def is_answering(url: str) -> bool:
    with contextlib.suppress(OSError):
        return status_of(f"{url}/healthz") == 200
    return False


def test_the_ready_line(running: Up) -> None:
    ready = running.ready

    assert set(ready) == KEYS
    assert ready["admin_user"] == "admin"
    assert len(ready["admin_password"]) >= 16
    assert ready["api_key"].startswith("ao_")
    assert {"up", "broker", "web", "worker-1", "worker-2"} == set(ready["pids"])
    assert ready["data_dir"] == str(running.folder)
    assert status_of(f"{ready['url']}/readyz") == 200
    said = running.said()
    assert f"export AGENTOPS_DATA_DIR='{running.folder}'" in said
    assert ready["api_key"] not in said
    assert "Other machines are refused" not in said


def test_only_the_owner_can_look_into_the_folder(running: Up) -> None:
    address = Path(running.ready["redis_url"].removeprefix("unix://"))

    assert len(str(running.folder)) == 200
    assert len(str(address)) <= 100
    for name in ("secret_key", "instance.json", "agentops.sqlite3"):
        assert stat.S_IMODE((running.folder / name).stat().st_mode) == 0o600
    for folder in (running.folder, address.parent, address):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_second_start_on_the_folder_and_one_on_the_port(
    running: Up, start: Callable[..., Up], tmp_path: Path
) -> None:
    port = running.ready["url"].rpartition(":")[2]

    same_folder, same_port = start(folder=running.folder), start("--port", port)

    assert same_folder.process.wait(timeout=SECONDS) == 3
    assert str(running.process.pid) in same_folder.said()
    assert same_folder.rest() == ""
    assert same_port.process.wait(timeout=SECONDS) == 2
    assert f"port {port}" in same_port.said()
    assert running.facts()["running"] is True


def test_a_crashed_worker_and_web_start_again(running: Up) -> None:
    before = running.facts()["pids"]

    os.kill(before["worker-2"], signal.SIGKILL)
    os.kill(before["web"], signal.SIGSEGV)

    until(lambda: {"web", "worker-2"} <= changed(before, running.facts()["pids"]), "new processes")
    until(lambda: is_answering(running.ready["url"]), "the web")
    assert changed(before, running.facts()["pids"]) == {"web", "worker-2"}
    assert f"worker-2 (pid {before['worker-2']}) ended with SIGKILL" in running.said()


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {name for name, pid in after.items() if before.get(name) != pid}


def test_the_ends_of_an_instance(start: Callable[..., Up]) -> None:
    """One folder through an ordered stop, a later start, a kill -9, and a broker that cannot live."""
    first = start().wait_ready()
    secret = (first.folder / "secret_key").read_text()

    assert first.end() == 0
    assert not any(map(is_alive, first.ready["pids"].values()))
    assert first.facts() == first.facts() | {"running": False, "pids": {}}

    later = start().wait_ready()
    assert later.ready["admin_user"] == "admin"
    assert later.ready["admin_password"] is None
    assert later.ready["api_key"] is None
    assert "./run changepassword admin, ./run create_api_key" in later.said()
    assert (later.folder / "secret_key").read_text() == secret

    later.process.kill()
    later.process.wait(timeout=SECONDS)
    last = start()  # at once: the lock is free when the old broker is gone
    until(lambda: not any(map(is_alive, later.ready["pids"].values())), "the end of the children", 5)

    pids = last.wait_ready().ready["pids"]
    os.kill(pids["broker"], signal.SIGKILL)
    second = until(lambda: changed(pids, last.facts()["pids"]) and last.facts()["pids"]["broker"], "a new broker")
    os.kill(second, signal.SIGKILL)

    assert last.process.wait(timeout=SECONDS) == 1
    assert "the second time in a minute" in last.said()
    assert not any(map(is_alive, pids.values()))


def test_a_part_that_fails_is_named_and_nothing_is_left(start: Callable[..., Up]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        up = start(REDIS_URL=f"redis://127.0.0.1:{closed.getsockname()[1]}/0")

        assert up.process.wait(timeout=SECONDS) == 1

    assert "REDIS_URL names a server that does not answer" in up.said()
    assert up.rest() == ""
    assert up.facts()["running"] is False
