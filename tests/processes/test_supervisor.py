"""The supervisor alone, over small shell programs: order of the stop, patience, back-off, a second signal."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings

pytestmark = pytest.mark.process

# It handles signals, so it lives in a process of its own.
DRIVER = """
import os, sys
from pathlib import Path
from workers.supervisor import ChildFailed, ChildSpec, Interrupted, Supervisor

folder = Path(sys.argv[1])
log = open(folder / "said", "a", buffering=1)
supervisor = Supervisor(folder, cwd=folder, say=lambda sentence: print(sentence, file=log))

def child(name, script, rank, **more):
    supervisor.spawn(ChildSpec(name, ["sh", "-c", script], dict(os.environ), rank, **more))

{body}
print("ready", flush=True)
try:
    supervisor.watch()
except ChildFailed as error:
    print(error, file=log)
supervisor.stop()
print("stopped", flush=True)
"""
POLITE = "trap 'echo {name} >> order; exit 0' TERM; echo up >> {name}.up; while :; do sleep 0.05; done"
DEAF = "trap '' TERM; echo up >> {name}.up; while :; do sleep 0.05; done"


class Driver:
    def __init__(self, folder: Path, body: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER.format(body=textwrap.dedent(body)), str(folder)],
            cwd=settings.BASE_DIR,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(settings.BASE_DIR)},
        )
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def read(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"still waiting for {what}; said {self.read('said')}"
            threading.Event().wait(0.02)

    def end(self) -> None:
        assert self.line() == "stopped"
        assert self.process.wait(timeout=30) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_children_stop_by_rank(tmp_path: Path) -> None:
    names = {"broker": 40, "web": 10, "worker": 20}
    body = "\n".join(f"child({name!r}, {POLITE.format(name=name)!r}, {rank})" for name, rank in names.items())
    driver = Driver(tmp_path, body)
    driver.until(lambda: all(driver.read(f"{name}.up") for name in names), "the children")

    driver.process.send_signal(signal.SIGTERM)

    driver.end()
    assert driver.read("order") == ["web", "worker", "broker"]


def test_a_deaf_child_is_killed_after_its_time(tmp_path: Path) -> None:
    driver = Driver(tmp_path, f"child('deaf', {DEAF.format(name='deaf')!r}, 1, stop_seconds=0.3)")
    driver.until(lambda: driver.read("deaf.up"), "the child")

    driver.process.send_signal(signal.SIGINT)

    driver.end()
    assert driver.read("said") == ["deaf did not end in time and was killed."]


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    driver = Driver(tmp_path, f"child('deaf', {DEAF.format(name='deaf')!r}, 1, stop_seconds=600)")
    driver.until(lambda: driver.read("deaf.up"), "the child")

    driver.process.send_signal(signal.SIGTERM)
    driver.process.send_signal(signal.SIGINT)

    driver.end()


def test_restarts_back_off(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "child('short', 'date +%s.%N >> short.up; exit 3', 1)")

    driver.until(lambda: len(driver.read("short.up")) == 3, "three starts")

    driver.process.send_signal(signal.SIGTERM)
    driver.end()
    first, second, third = map(float, driver.read("short.up"))
    assert second - first >= 0.9
    assert third - second >= 1.9
    assert "exit code 3; it starts again in 1 s" in driver.read("said")[0]


def test_a_child_that_fails_for_days_is_still_started_again(tmp_path: Path) -> None:
    body = "child('short', 'exit 3', 1)\nsupervisor.children['short'].failures = 5000"
    driver = Driver(tmp_path, body)

    driver.until(lambda: driver.read("said"), "its end")

    assert "it starts again in 30 s" in driver.read("said")[0]
    driver.process.send_signal(signal.SIGTERM)
    driver.end()


def test_an_end_that_was_asked_for_is_left_at_that(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "child('done', 'echo up >> done.up', 1, may_end=True)")

    driver.end()  # none is left to be kept alive

    assert driver.read("done.up") == ["up"]
    assert "it was asked to, and stays away" in driver.read("said")[0]


def test_an_errand_is_run_for_an_end_and_again_for_the_next(tmp_path: Path) -> None:
    body = """
    errand = ChildSpec("errand", ["sh", "-c", "echo ran >> errand.up"], dict(os.environ), 0)
    supervisor._reaped = lambda _child: supervisor.send(errand)
    child("short", "exit 3", 1)
    """
    driver = Driver(tmp_path, body)

    driver.until(lambda: len(driver.read("errand.up")) == 2, "two errands")

    driver.process.send_signal(signal.SIGTERM)
    driver.end()


def test_a_killed_supervisor_takes_its_children_along(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "child('deaf', 'echo $$ > deaf.up; trap \"\" TERM; while :; do sleep 0.05; done', 1)")
    driver.until(lambda: driver.read("deaf.up"), "the child")
    pid = int(driver.read("deaf.up")[0])

    driver.process.kill()
    driver.process.wait(timeout=30)

    driver.until(lambda: not Path(f"/proc/{pid}").exists(), "the child's end")
    assert driver.process.stdout is not None
    driver.process.stdout.close()


def test_a_large_log_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "chatty.log").write_bytes(b"x" * (10 * 1024 * 1024 + 1))

    driver = Driver(tmp_path, f"child('chatty', {POLITE.format(name='chatty')!r}, 1)")

    assert (tmp_path / "chatty.log").stat().st_size < 1024
    assert (tmp_path / "chatty.log.1").stat().st_size > 10 * 1024 * 1024
    driver.process.send_signal(signal.SIGTERM)
    driver.end()
