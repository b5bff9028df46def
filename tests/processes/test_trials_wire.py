"""Bad wires to Redis: late answers under clients that give up, and a reader that hears nothing (docs/faults.md)."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import httpx
import pytest
from websockets.exceptions import WebSocketException

from tests import builders, invariants
from tests.acceptance.viewers import socket
from tests.probes import WebServer, WorkerProbe, eventually
from tests.processes.trials import submit, until
from tests.servers import Server
from tests.wire import Wire
from workers.stream import TAKE

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
PATIENCE = 90.0
RUNS = 60  # of each of two accounts
GIVEN_UP = 500
LATE = 0.05  # seconds


@pytest.fixture
def wire(own_redis: Server) -> Iterator[Wire]:
    with Wire(own_redis) as made:
        yield made


def in_threads(calls: Iterable[Callable[[], object]], threads: int = 16) -> list[object]:
    with ThreadPoolExecutor(threads) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


class Client:
    """A caller with a key who may lose patience."""

    def __init__(self, web: WebServer, key: str) -> None:
        self.web = web
        self.key = key
        self.headers = {"Authorization": f"Bearer {key}"}

    def give_up(self, run_id: str, how: str, seconds: float) -> None:
        """Ask for a run's events and hang up after `seconds`, wherever the answer is by then."""
        path = f"/api/v1/runs/{run_id}/events"
        with suppress(httpx.TransportError, WebSocketException, OSError, TimeoutError):
            if how == "socket":
                with socket(self.web, f"/ws/runs/{run_id}/", key=self.key, open_timeout=seconds):
                    return
            accept = "text/event-stream" if how == "stream" else "application/json"
            httpx.get(f"{self.web.url}{path}", headers=self.headers | {"Accept": accept}, timeout=seconds)

    def events(self, run_id: str) -> list[dict]:
        headers = self.headers | {"Accept": "application/json"}
        answer = httpx.get(f"{self.web.url}/api/v1/runs/{run_id}/events", headers=headers, timeout=PATIENCE)
        assert answer.status_code == 200
        return answer.json()["results"]


def test_f33_no_answer_crosses_to_another_run_when_clients_give_up_halfway(own_redis, stack, redis, wire):
    accounts = [builders.make_account(max_in_flight=RUNS) for _ in range(2)]
    web = stack.web(REDIS_URL=wire.url)
    callers = [Client(web, builders.make_api_key(account)[1]) for account in accounts]
    watched = [
        (caller, str(submit(account, "probe.ret", value=number).pk))
        for account, caller in zip(accounts, callers, strict=True)
        for number in range(RUNS)
    ]
    dice = random.Random(33)
    wire.delay = LATE

    in_threads(
        partial(caller.give_up, run_id, dice.choice(["page", "stream", "socket"]), dice.uniform(0.01, 0.4))
        for caller, run_id in dice.choices(watched, k=GIVEN_UP)
    )

    found = in_threads(partial(caller.events, run_id) for caller, run_id in watched)
    for (_, run_id), events in zip(watched, found, strict=True):
        assert [(event["id"], event["run"], event["kind"]) for event in events] == [("1-1", run_id, "run.queued")]
    for caller, (_, run_id) in zip(callers, (watched[-1], watched[0]), strict=True):  # of the other account
        path = f"{web.url}/api/v1/runs/{run_id}/events"
        assert httpx.get(path, headers=caller.headers, timeout=PATIENCE).status_code == 404
    wire.delay = 0.0
    assert httpx.get(f"{web.url}/readyz", timeout=PATIENCE).status_code == 200
    # Nobody watches it any more: the last of those who hung up in a handshake are found by the server's own clocks.
    eventually(lambda: redis.pubsub_channels(f"*{watched[0][1]}*") == [], timeout=2 * PATIENCE)
    assert "Traceback" not in web.output()
    stack.worker()
    eventually(lambda: invariants.check(*accounts), timeout=PATIENCE)


def health(worker: WorkerProbe) -> tuple[int, dict]:
    answer = httpx.get(f"http://127.0.0.1:{worker.row.port}/healthz", timeout=20)
    return answer.status_code, answer.json()


def test_f66_a_worker_that_hears_nothing_turns_red_and_hears_again_by_itself(own_redis, stack, wire):
    account = builders.make_account()
    worker = stack.worker(REDIS_URL=wire.url)
    until("succeeded", submit(account, "probe.ret", value=1))

    wire.deaf_to = (b"BLPOP",)  # the wait alone: found out when it is overdue, and a look does without it
    until("succeeded", submit(account, "probe.ret", value=2), timeout=PATIENCE)
    assert health(worker)[0] == 200

    wire.deaf_to = (b"BLPOP", TAKE.sha.encode())  # the lease beat has a connection of its own
    begun = time.monotonic()
    unheard = submit(account, "probe.ret", value=3)

    def red() -> None:
        status, facts = health(worker)
        assert (status, facts["ok"]) == (503, False)
        assert facts["read_age"] >= 60 > facts["beat_age"]

    eventually(red, timeout=PATIENCE, interval=0.5)
    assert time.monotonic() - begun > 30
    assert worker.alive
    wire.deaf_to = ()
    until("succeeded", unheard, timeout=PATIENCE)
    eventually(lambda: health(worker)[0] == 200, timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    assert worker.term(60) == 0
