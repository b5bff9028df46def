"""What must not grow: connections, files, memory, streams, metrics, consumers (docs/faults.md)."""

import socket as sockets
import struct
import time
from urllib.parse import urlsplit

import httpx
import pytest
from django.db import connection

from runs import keys
from runs.models import Run
from tests import builders, invariants
from tests.acceptance.test_api_parallel import at_once, statuses
from tests.acceptance.test_api_parallel import submit as post
from tests.acceptance.viewers import SseViewer, start
from tests.probes import WebServer, WorkerProbe, eventually
from tests.processes.footprint import database_sessions, open_files, resident_bytes, scrape
from tests.processes.trials import phases, rerun, states, submit, until, until_begun
from workers.selectors import list_workers
from workers.worker import UNIT_THREADS

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
PATIENCE = 120.0
MIB = 2**20
CONCURRENCY = 50
BESIDE_UNITS = 8  # threads of a worker that talk to the database beside its units: the beat, the sweeper, repairs
WEB_SESSIONS = 40  # threads of sync views, and one for each probe of /readyz
PID_LABEL = ("pid=", "process_id=", "worker=")


def url_of(worker: WorkerProbe) -> str:
    return f"http://127.0.0.1:{worker.row.port}"


def posted(web: WebServer, key: str, count: int) -> list[Run]:
    """Submit over HTTP, each on a connection of its own and all at once. Busy is answered by coming again."""
    answers = at_once(count, lambda number: post(web, key, body={"input": {"value": number}}))
    while any(answer.status_code == 503 for answer in answers):
        assert connection.vendor != "sqlite", "a writer that waits is no failure there"
        answers = [post(web, key) if answer.status_code == 503 else answer for answer in answers]
    assert set(statuses(answers)) == {202}, answers
    return list(Run.objects.filter(pk__in=[answer.json()["id"] for answer in answers]))


def test_f32_f34_f35_f55_f56_f58_five_hundred_runs_leave_no_more_behind_than_fifty(own_redis, stack, redis):
    account = builders.make_account(max_in_flight=1000)
    key = builders.make_api_key(account)[1]
    web, worker, other = WebServer(), WorkerProbe(concurrency=CONCURRENCY), WorkerProbe(concurrency=CONCURRENCY)
    stack.together(web, worker, other)
    children = (web, worker, other)
    runs = posted(web, key, 30) + [submit(account, "probe.sleep", seconds=0.1) for _ in range(20)]
    until("succeeded", *runs, timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    clients, memory = redis.info("clients")["connected_clients"], resident_bytes(worker)
    series = scrape(url_of(worker))

    stream = keys.ready("default", "normal")
    seen: list[tuple[int, int, int]] = []
    for _ in range(3):
        more = posted(web, key, 30) + [submit(account, "probe.sleep", seconds=0.1) for _ in range(120)]
        runs += more

        def worked_off(more: list[Run] = more) -> None:
            seen.append((*database_sessions(*children), redis.xlen(stream)))
            assert states(more) == ["succeeded"] * len(more)

        eventually(worked_off, timeout=PATIENCE, interval=0.2)
    most, idle, entries = (max(column) for column in zip(*seen, strict=True))
    assert most <= 2 * (UNIT_THREADS + BESIDE_UNITS) + WEB_SESSIONS
    assert idle == 0
    assert entries <= 150  # what waits and is in flight: a third is over before the next begins
    assert Run.objects.filter(state="succeeded").count() == len(runs) == 500

    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    assert redis.xlen(stream) == 0
    assert abs(redis.info("clients")["connected_clients"] - clients) <= 5
    assert resident_bytes(worker) < memory + 50 * MIB
    logs = [name for name in redis.scan_iter("*:log") if b":run:" in name]
    assert [name for name in logs if redis.ttl(name) < 0] == []
    after = scrape(url_of(worker))
    assert set(after) == set(series)
    counters = [name for name in series if name.split("{")[0].endswith("_total")]
    assert [name for name in counters if after[name] < series[name]] == []
    assert [name for name in after if any(label in name for label in PID_LABEL)] == []
    assert "event loop is closed" not in "".join(child.output() for child in children).lower()

    worker.term(60)
    again = stack.worker(concurrency=CONCURRENCY)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(20)], timeout=PATIENCE)
    assert len(scrape(url_of(again))) <= len(after)


def test_f36_dead_workers_leave_no_consumer_and_no_row_that_looks_alive(stack, redis):
    account = builders.make_account()
    workers = [WorkerProbe("--name", f"w{number}", concurrency=1) for number in range(4)]
    stack.together(*workers)
    runs = [rerun(account, "probe.sleep", attempts=5, seconds=3) for _ in range(4)]
    until_begun(*runs, timeout=PATIENCE)

    for worker in workers[:2]:
        worker.kill()
    assert workers[2].term(60) == 0

    until("succeeded", *runs, timeout=PATIENCE)

    def only_the_living() -> None:
        names = [
            consumer["name"].decode() for consumer in redis.xinfo_consumers(keys.ready("default", "normal"), "workers")
        ]
        assert names == [workers[3].row.name]
        assert list(list_workers()) == [workers[3].row]

    eventually(only_the_living, timeout=PATIENCE, interval=0.5)
    assert max(len(phases(run)) for run in runs) > 2  # at least one was begun again
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def request_of(web: WebServer, path: str, key: str, *, upgrade: bool) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {urlsplit(web.url).netloc}"]
    if upgrade:
        lines += ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Sec-WebSocket-Protocol: agentops, key.{key}"]
    else:
        lines += [f"Authorization: Bearer {key}", "Accept: text/event-stream"]
    return "\r\n".join([*lines, "", ""]).encode()


def opened(web: WebServer, path: str, key: str, *, upgrade: bool) -> sockets.socket:
    """Open a stream and read its beginning, and nothing more. Closing it resets the connection."""
    one = sockets.create_connection(("127.0.0.1", web.port), timeout=PATIENCE)
    one.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    one.sendall(request_of(web, path, key, upgrade=upgrade))
    assert one.recv(16).startswith(b"HTTP/1.1 101" if upgrade else b"HTTP/1.1 200")
    return one


def streams(web: WebServer, run: Run, key: str, count: int) -> list[sockets.socket]:
    """Open as many of both kinds."""
    paths = [(f"/ws/runs/{run.pk}/", True), (f"/api/v1/runs/{run.pk}/events", False)] * count
    return [opened(web, path, key, upgrade=upgrade) for path, upgrade in paths]


def test_f37_f57_viewers_that_vanish_or_never_read_cost_nothing_that_stays(stack, redis):
    account = builders.make_account()
    key = builders.make_api_key(account)[1]
    web, worker = WebServer(), WorkerProbe()
    stack.together(web, worker)
    long = submit(account, "probe.sleep", seconds=300)
    until_begun(long)
    for one in streams(web, long, key, 2):
        one.close()
    wake = keys.run_wake(long.pk)

    def unwatched() -> None:
        assert dict(redis.pubsub_numsub(wake)) == {wake.encode(): 0}
        assert sum("socket:" in name for name in open_files(web)) <= files

    files = 10**6
    eventually(unwatched, timeout=PATIENCE)
    files = sum("socket:" in name for name in open_files(web)) + 5

    many = streams(web, long, key, 40)
    assert sum("socket:" in name for name in open_files(web)) >= 80
    for one in many:
        one.close()
    eventually(unwatched, timeout=PATIENCE)

    memory = resident_bytes(web)
    flood = submit(account, "probe.emit", count=6000, bytes=1024)
    deaf = streams(web, flood, key, 2)
    until("succeeded", flood, timeout=PATIENCE)
    late = SseViewer(web, f"/api/v1/runs/{flood.pk}/events", key, stay=60)
    start(late)
    invariants.check_sequence(late.finish(PATIENCE))
    assert resident_bytes(web) < memory + 50 * MIB
    for one in deaf:
        one.close()
    asked = time.monotonic()
    assert httpx.post(f"{web.url}/api/v1/runs/{long.pk}/cancel", headers={"Authorization": f"Bearer {key}"}).is_success
    until("cancelled", long, timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)

    assert web.term(30) in {0, -15}
    assert time.monotonic() - asked < 60
    assert "took too long to shut down" not in web.output()
