"""What a hundred workers leave behind, and what five thousand runs do (protocol P5; docs/deploy.md, Retention)."""

import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import pytest
from django.apps import apps
from django.conf import settings
from django.db import connections

from quotas.models import Account
from runs import keys
from runs.models import Run
from tests import builders, invariants
from tests.probes import Stack, WebServer, WorkerProbe, eventually
from tests.processes.footprint import database_sessions, open_files, resident_bytes
from tests.processes.trials import phases, rerun, submit, until
from tests.soak.killing import held_by
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess
from workers.worker import UNIT_THREADS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
WORKERS, GROUP, KILLED_EVERY = 100, 5, 10
LETTERS = "abcxyzABCXYZ019äß漢 .,:;*?[]{}()$%&#@!'\"|\\^~-_"
MIB = 2**20
RUNS, WARM_UP, SUBMITTERS = 5000, 1000, 3
CLOSED_MS = settings.EVENT_CLOSED_TTL_SECONDS * 1000
ROWS_OF_RUNS = {"Run", "Transition", "Attempt", "EventArchive", "Hold", "LedgerEntry"}


def rows() -> dict[str, int]:
    """Return how many rows every table has that has any."""
    counts = {model.__name__: model._default_manager.count() for model in apps.get_models()}
    return {name: count for name, count in counts.items() if count}


def documented(queues: list[str], workers: list[str]) -> re.Pattern[str]:
    """Match the keys that docs/deploy.md says are there while these workers live and nothing waits or runs."""
    lasting = [keys.sweeper(), *map(keys.heartbeat, workers)]
    for queue in queues:
        lasting += [*keys.ready_streams(queue), keys.epoch(queue), keys.wake(queue)]
    log = re.escape(keys.log("@")).replace("@", "[0-9a-f-]{36}")
    return re.compile("|".join([*map(re.escape, lasting), log]))


def names(dice: random.Random) -> Iterator[str]:
    while True:
        yield "".join(dice.choices(LETTERS, k=dice.randint(1, 40))).strip() or "w"


def live_and_die(stack: Stack, account: Account, group: list[WorkerProbe], victims: list[WorkerProbe]) -> list[Run]:
    """Let a group of workers have runs in hand; kill the victims in the middle, end the others in order."""
    stack.together(*group)
    runs = [rerun(account, "probe.sleep", attempts=5, seconds=3) for _ in range(2 * (len(group) + 1))]

    def in_hand() -> None:
        assert [worker for worker in group if not held_by(worker.row.name)] == []

    eventually(in_hand, timeout=120)
    for worker in victims:
        assert held_by(worker.row.name)
        worker.kill()
    others = [worker for worker in group if worker not in victims]
    assert [worker.term(120) for worker in others] == [0] * len(others)
    return runs


def test_10_a_hundred_workers_leave_nothing_behind(own_redis, stack: Stack, redis, report):
    account = builders.make_account(max_in_flight=1000)
    resident = stack.worker(concurrency=2)
    until("succeeded", submit(account, "probe.ret", value=1))
    eventually(lambda: invariants.check(account), timeout=30)
    tables, clients = rows(), redis.info("clients")["connected_clients"]
    named, runs, killed = names(random.Random(10)), [], []

    for first in range(0, WORKERS, GROUP):
        group = [WorkerProbe(f"--name={next(named)}", concurrency=2) for _ in range(GROUP)]
        victims = [one for number, one in enumerate(group, first + 1) if number % KILLED_EVERY == 0]
        runs += live_and_die(stack, account, group, victims)
        killed += victims

    assert (len(killed), WorkerProcess.objects.count()) == (WORKERS / KILLED_EVERY, WORKERS + 1)
    until("succeeded", *runs, timeout=180)
    retaken = sum(len(phases(run)) > 2 for run in runs)
    assert retaken >= len(killed)
    pattern = documented(list(settings.QUEUES), [resident.row.name])

    def only_what_is_documented() -> None:
        groups = [redis.xinfo_consumers(stream, keys.GROUP) for stream in keys.ready_streams("default")]
        assert {consumer["name"].decode() for group in groups for consumer in group} <= {resident.row.name}
        assert list(WorkerProcess.objects.filter(stopped_at=None)) == [resident.row]
        assert not WorkerProcess.objects.exclude(stopped_at=None).exclude(running_count=0).exists()
        assert [name for key in redis.scan_iter(count=1000) if not pattern.fullmatch(name := key.decode())] == []

    eventually(only_what_is_documented, timeout=15 * alive_seconds() + 60, interval=1)
    eventually(lambda: invariants.check(account), timeout=60)
    logs = list(redis.scan_iter(match=keys.log("*"), count=1000))
    assert [key for key in logs if not 0 <= redis.pttl(key) <= CLOSED_MS] == []
    assert redis.llen(keys.wake("default")) <= 64
    assert set(rows()) - set(tables) <= ROWS_OF_RUNS
    grown = {name for name, count in rows().items() if count != tables.get(name, 0)}
    assert grown - ROWS_OF_RUNS == {"WorkerProcess"}
    most = clients + UNIT_THREADS  # by now each thread of the resident may have a connection
    eventually(lambda: redis.info("clients")["connected_clients"] <= most, timeout=10)
    figures = f"{WORKERS} workers of random names, {len(killed)} killed with runs in hand ({retaken} runs begun again)"
    report("10", f"{figures}, {len(runs)} runs: 1 consumer, 1 worker alive, keys and rows as documented")


def submit_many(account: Account, web: WebServer, key: str, count: int) -> None:
    """Submit runs that end at once, from several threads, one in five over HTTP."""

    def some(number: int) -> None:
        with closing(httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60)) as client:
            for value in range(number, count, SUBMITTERS):
                if value % 5:
                    submit(account, "probe.ret", value=value)
                    continue
                body = {"agent": "probe.ret", "input": {"value": value}}
                client.post(f"{web.url}/api/v1/runs", json=body).raise_for_status()
        connections.close_all()

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(some, range(SUBMITTERS)))


def forget_logs(redis) -> None:
    """Let the logs of ended runs end now instead of in ten minutes."""
    for key in list(redis.scan_iter(match=keys.log("*"), count=1000)):
        assert 0 <= redis.pttl(key) <= CLOSED_MS
        redis.pexpire(key, 1)
    eventually(lambda: not list(redis.scan_iter(match=keys.log("*"), count=1000)), timeout=30)


def work_off(account: Account, web: WebServer, key: str, redis, count: int) -> None:
    """Submit so many runs and wait until they have ended and nothing of them is left in Redis."""
    before = Run.objects.filter(state="succeeded").count()
    submit_many(account, web, key, count)
    eventually(lambda: Run.objects.filter(state="succeeded").count() == before + count, timeout=600, interval=0.5)
    eventually(lambda: not Run.objects.filter(log_closed_at=None).exists(), timeout=120, interval=0.5)
    forget_logs(redis)


def held(redis, *children: Any) -> dict[str, float]:
    """Return what processes and servers hold on to."""
    info = redis.info()
    found: dict[str, float] = {"clients": info["connected_clients"], "Redis MiB": info["used_memory"] / MIB}
    found["database connections"] = database_sessions(*children)[0]
    found["files"] = sum(map(len, map(open_files, children)))
    return found | {f"MiB of {number}": resident_bytes(child) / MIB for number, child in enumerate(children)}


MORE = {"clients": 3, "Redis MiB": 2, "database connections": 3, "files": 10}  # that is no leak
MORE_MIB = 24


def test_10_five_thousand_runs_leave_everything_at_the_baseline(own_redis, stack: Stack, redis, report):
    account = builders.make_account(max_in_flight=10_000)
    key = builders.make_api_key(account)[1]
    web, *workers = children = [WebServer(), *[WorkerProbe(concurrency=50) for _ in range(2)]]
    stack.together(*children)
    work_off(account, web, key, redis, WARM_UP)
    eventually(lambda: invariants.check(account), timeout=120, interval=1)
    before = held(redis, *children)

    work_off(account, web, key, redis, RUNS)
    eventually(lambda: invariants.check(account), timeout=300, interval=1)

    def back_at_the_baseline() -> dict[str, float]:
        after = held(redis, *children)
        grown = {name: after[name] - before[name] for name in before}
        assert {name: more for name, more in grown.items() if more > MORE.get(name, MORE_MIB)} == {}
        return after

    after = eventually(back_at_the_baseline, timeout=60, interval=1)
    assert Run.objects.filter(state="succeeded").count() == WARM_UP + RUNS
    assert [worker.alive for worker in children] == [True] * len(children)
    told = ", ".join(f"{name} {before[name]:.4g} → {after[name]:.4g}" for name in before)
    took = Run.objects.order_by("-id")[:RUNS]
    seconds = (max(run.finished_at for run in took) - min(run.submitted_at for run in took)).total_seconds()
    report(
        "10", f"{RUNS} runs in {seconds:.0f} s after {WARM_UP} ({len(workers)} workers, 0 is web, 1… workers): {told}"
    )
