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


def test_a_first_and_a_later_start(start: Callable[..., Up]) -> None:
    first = start().wait_ready()

    assert set(first.ready) == KEYS
    assert first.ready["admin_user"] == "admin"
    assert len(first.ready["admin_password"]) >= 16
    assert first.ready["api_key"].startswith("ao_")
    assert {"up", "broker", "web", "worker-1"} == set(first.ready["pids"])
    assert all(map(is_alive, first.ready["pids"].values()))
    assert status_of(f"{first.ready['url']}/healthz") == 200
    assert status_of(f"{first.ready['url']}/readyz") == 200
    for name in ("secret_key", "instance.json"):
        assert stat.S_IMODE((first.folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(first.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((first.folder / "valkey.sock").stat().st_mode) == 0o700
    assert first.facts()["running"] is True
    secret = (first.folder / "secret_key").read_text()

    assert first.end() == 0
    assert first.rest() == ""
    assert not any(map(is_alive, first.ready["pids"].values()))
    assert first.facts() | {"running": False, "pids": {}} == first.facts()
    said = first.said()
    assert "AGENTOPS_DATA_DIR" in said
    assert first.ready["api_key"] not in said

    later = start().wait_ready()

    assert later.ready["admin_user"] == "admin"
    assert later.ready["admin_password"] is None
    assert later.ready["api_key"] is None
    assert "./run changepassword admin" in later.said()
    assert "./run create_api_key" in later.said()
    assert (later.folder / "secret_key").read_text() == secret
    assert later.end(signal.SIGINT) == 0


def test_a_second_start_on_the_folder_and_on_the_port(start: Callable[..., Up], tmp_path: Path) -> None:
    first = start().wait_ready()
    port = first.ready["url"].rpartition(":")[2]

    same_folder, same_port = start(), start("--port", port, folder=tmp_path / "other")

    assert same_folder.process.wait(timeout=SECONDS) == 3
    assert str(first.process.pid) in same_folder.said()
    assert same_folder.rest() == ""
    assert same_port.process.wait(timeout=SECONDS) == 2
    assert f"port {port}" in same_port.said()
    assert all(map(is_alive, first.ready["pids"].values()))


def test_a_crashed_worker_and_web_start_again(start: Callable[..., Up]) -> None:
    up = start("--workers", "2").wait_ready()
    before = up.ready["pids"]

    os.kill(before["worker-2"], signal.SIGKILL)
    os.kill(before["web"], signal.SIGSEGV)

    after = until(lambda: {"web", "worker-2"} <= set(_changed(before, up.facts()["pids"])), "new processes")
    assert after
    until(lambda: _answers(up.ready["url"]), "the web")
    assert up.facts()["pids"]["worker-1"] == before["worker-1"]
    assert "SIGKILL" in up.said()
    assert up.end() == 0


def _changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return [name for name, pid in after.items() if before[name] != pid]


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return status_of(f"{url}/healthz") == 200
    return False


def test_kill_leaves_nothing_and_the_folder_is_free_at_once(start: Callable[..., Up]) -> None:
    up = start().wait_ready()

    up.process.kill()
    up.process.wait(timeout=SECONDS)
    again = start()

    until(lambda: not any(map(is_alive, up.ready["pids"].values())), "the end of the children", 5)
    assert again.wait_ready().ready["admin_password"] is None


def test_a_long_folder_path_with_a_blank(start: Callable[..., Up], tmp_path: Path) -> None:
    folder = tmp_path / "a b%20#?"
    folder = folder / ("x" * (200 - len(str(folder)) - 1))
    assert len(str(folder)) == 200

    up = start(folder=folder).wait_ready()

    address = up.ready["redis_url"].removeprefix("unix://")
    assert len(address) <= 100
    assert stat.S_IMODE(Path(address).parent.stat().st_mode) == 0o700
    assert (folder / "agentops.sqlite3").exists()
    assert up.end() == 0
    assert not Path(address).parent.exists()


def test_a_broker_that_dies_twice_ends_everything(start: Callable[..., Up]) -> None:
    up = start().wait_ready()
    first = up.ready["pids"]["broker"]

    os.kill(first, signal.SIGKILL)
    second = until(lambda: (pid := up.facts()["pids"].get("broker", first)) != first and pid, "the second broker")
    os.kill(second, signal.SIGKILL)

    assert up.process.wait(timeout=SECONDS) == 1
    assert "the second time in a minute" in up.said()
    assert not any(map(is_alive, up.ready["pids"].values()))


def test_a_part_that_fails_is_named_and_nothing_is_left(start: Callable[..., Up]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        up = start(REDIS_URL=f"redis://127.0.0.1:{closed.getsockname()[1]}/0")

        assert up.process.wait(timeout=SECONDS) == 1

    assert "REDIS_URL names a server that does not answer" in up.said()
    assert up.rest() == ""
    assert up.facts()["running"] is False
