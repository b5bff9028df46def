"""The load: runs of mixed probe agents over HTTP, as a client that never gives up, and viewers that resume."""

import json
import random
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentops.chaos.stack import Stack

RETRY_SECONDS = 0.5
REQUEST_SECONDS = 10.0
EXPECTED = frozenset({200, 202, 409})  # 409: to cancel what has ended
AWAY = 503  # busy, or a store is away: to be tried again
RERUN = {"on_lost": "rerun", "max_attempts": 50}
SESSIONS = 5
SPEND = {"amount": 1000, "times": 20, "estimate": 5000}  # extended again and again
Mix = tuple[int, str, Callable[[random.Random], dict[str, Any]], dict[str, Any]]

# weight, agent, its input, what else the submit says. No attempt may last: 500 runs have to pass.
MIX: list[Mix] = [
    (40, "probe.sleep", lambda dice: {"seconds": dice.uniform(5, 12)}, RERUN),
    (6, "probe.sleep", lambda dice: {"seconds": dice.uniform(5, 12)}, {}),
    (15, "probe.spend", lambda dice: SPEND | {"seconds": dice.uniform(4, 9)}, RERUN),
    (12, "probe.emit", lambda dice: {"count": 200, "bytes": 60, "seconds": dice.uniform(4, 9)}, RERUN),
    (8, "probe.boom", lambda _dice: {"fails": 1}, RERUN),
    (3, "probe.raise", lambda _dice: {"text": "raised on purpose"}, {}),
    (6, "probe.ret", lambda _dice: {"bytes": 1000}, RERUN),
    (3, "probe.stubborn", lambda _dice: {"seconds": 4}, {"time_limit": 2}),
    (3, "probe.block", lambda _dice: {"seconds": 1}, RERUN),
    (3, "probe.few", lambda dice: {"seconds": dice.uniform(1, 3)}, RERUN),
    (
        2,
        "probe.isolated",
        lambda dice: {"do": "spend", "amount": 500, "times": 4, "seconds": dice.uniform(1, 4)},
        RERUN,
    ),
    (1, "probe.suicide", lambda _dice: {"seconds": 1}, {"on_lost": "rerun", "max_attempts": 2}),
]


@dataclass(slots=True)
class Load:
    """What the clients saw: ids of accepted runs, answers by status, 5xx that may not be, what viewers missed."""

    accepted: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    broken_answers: list[str] = field(default_factory=list)
    viewer_problems: list[str] = field(default_factory=list)
    viewed: dict[str, str] = field(default_factory=dict)  # run id: the last event a viewer saw


class Clients:
    """Threads that submit at a pace, cancel now and then, and watch. `wait` ends when all was submitted."""

    def __init__(self, stack: Stack, *, runs: int, seconds: float, dice: random.Random, viewers: int = 4) -> None:
        self.load = Load()
        self._stack = stack
        self._runs = runs
        self._pace = seconds / runs
        self._dice = dice
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._watched: set[str] = set()
        self._submitter = threading.Thread(target=self._submit_all, name="submitter", daemon=True)
        self._viewers = [threading.Thread(target=self._view, name=f"viewer {n}", daemon=True) for n in range(viewers)]

    def start(self) -> None:
        for thread in (self._submitter, *self._viewers):
            thread.start()

    @property
    def done(self) -> bool:
        return not self._submitter.is_alive()

    def stop(self) -> None:
        """Let the viewers come to the end of what they read."""
        self._stop.set()
        for thread in self._viewers:
            thread.join(30)

    def _submit_all(self) -> None:
        began = time.monotonic()
        for number in range(self._runs):
            self._stop.wait(max(0.0, began + number * self._pace - time.monotonic()))
            run_id = self._insist("POST", "/api/v1/runs", self._request(number), key=f"chaos-{number}").get("id")
            if run_id is None:
                continue  # refused, and told as a broken answer
            with self._lock:
                self.load.accepted.append(run_id)
            if self._dice.random() < 0.05:
                self._insist("POST", f"/api/v1/runs/{self._dice.choice(self.load.accepted)}/cancel", {})

    def _request(self, number: int) -> dict[str, Any]:
        _, agent, make_input, more = self._dice.choices(MIX, [weight for weight, *_ in MIX])[0]
        body = {"agent": agent, "input": make_input(self._dice), "tags": ["chaos"], **more}
        if self._dice.random() < 0.1 and agent == "probe.sleep":
            on_busy = self._dice.choice(["enqueue", "enqueue", "replace"])
            body |= {"session": f"s{number % SESSIONS}", "on_busy": on_busy}
        if self._dice.random() < 0.05:
            body |= {"delay": round(self._dice.uniform(1, 5), 2)}
        return body

    def _insist(self, method: str, path: str, body: Any, key: str = "") -> dict[str, Any]:
        """Send a request until it is answered, as a client does that may not lose it: the same key each time."""
        while True:
            try:
                status, answer = self._send(method, path, body, key)
            except (OSError, ValueError, urllib.error.URLError):
                self.load.statuses[0] += 1  # no answer
            else:
                self.load.statuses[status] += 1
                if status in EXPECTED:
                    return answer
                if status != AWAY:
                    self.load.broken_answers.append(f"{method} {path}: {status} {str(answer)[:300]}")
                if status < 500:
                    return answer
            self._stop.wait(RETRY_SECONDS)

    def _send(self, method: str, path: str, body: Any, key: str) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(  # noqa: S310  our own address
            self._stack.url + path, method=method, data=json.dumps(body).encode(), headers=self._headers(key)
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"{}")

    def _headers(self, key: str = "") -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._stack.api_key}", "Content-Type": "application/json"}
        return headers | ({"Idempotency-Key": key} if key else {})

    # -- viewers ---------------------------------------------------------------------------------------------------
    def _view(self) -> None:
        while not self._stop.wait(0.2):
            with self._lock:
                fresh = [run_id for run_id in self.load.accepted[-20:] if run_id not in self._watched]
                if not fresh:
                    continue
                run_id = fresh[-1]
                self._watched.add(run_id)
            self._follow(run_id)

    def _follow(self, run_id: str) -> None:
        """Read a run's events to their end over as many connections as it takes."""
        last, ended = "", False
        while not ended:
            try:
                last, ended = self._read(run_id, last)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != AWAY:
                        self.load.viewer_problems.append(f"{run_id}: its events answered {error.code}")
                if self._stop.wait(RETRY_SECONDS):
                    return
            except (OSError, ValueError, urllib.error.URLError):
                if self._stop.wait(RETRY_SECONDS):
                    return  # the stack is about to stop: what is not read to its end is not judged
        with self._lock:
            self.load.viewed[run_id] = last

    def _read(self, run_id: str, last: str) -> tuple[str, bool]:
        headers = self._headers() | {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        request = urllib.request.Request(f"{self._stack.url}/api/v1/runs/{run_id}/events", headers=headers)  # noqa: S310
        gap = last_was_id = False
        with urllib.request.urlopen(request, timeout=30) as stream:  # noqa: S310
            for raw in stream:
                line = raw.decode().rstrip("\n")
                if line.startswith("id:"):
                    event_id = line[3:].strip()
                    if not gap and not _follows(last, event_id):
                        self.load.viewer_problems.append(f"{run_id}: {event_id} came after {last or 'nothing'}")
                    last, gap = event_id, False
                elif line.startswith("data:") and not last_was_id:
                    gap = gap or '"kind":"gap"' in line.replace(" ", "")
                last_was_id = line.startswith("id:")
                if line.startswith("event: end"):
                    return last, True
        return last, False


def _follows(last: str, event_id: str) -> bool:
    """Whether an event is the next one that there can be: the next of its fence, or the first of a later change."""
    if not last:
        return _place(event_id) == (1, 1)
    (old_fence, old_number), (fence, number) = _place(last), _place(event_id)
    return number == old_number + 1 if fence == old_fence else (fence == old_fence + 1 and number == 1)


def _place(event_id: str) -> tuple[int, int]:
    fence, _, number = event_id.partition("-")
    return int(fence), int(number)
