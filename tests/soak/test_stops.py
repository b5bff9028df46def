"""A whole server stops and comes back: Redis under idle workers, PostgreSQL under busy ones."""

import time

import pytest
import redis as redis_py
from django.db import connection

from quotas.models import LedgerEntry
from runs.models import Run
from tests import builders, invariants
from tests.probes import Stack, WorkerProbe, eventually, probe_log
from tests.processes.trials import kinds, phases, states, submit, until, until_begun
from tests.soak.test_frozen_and_busy import PLAIN_LIFE, passes

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
STOPPED_SECONDS = 90.0
PICKED_UP_SECONDS = 10.0
RUNNING = 20
RUN_SECONDS = 12


def begun_at(run) -> float:
    """Return the monotonic time at which the run's handler began."""
    return probe_log(run.pk)[0]["monotonic"]


def test_5_idle_workers_pick_up_within_10_seconds_of_redis_being_back(own_redis, stack: Stack, redis, report):
    account = builders.make_account()
    workers = [WorkerProbe() for _ in range(3)]
    stack.together(*workers)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(6)])
    eventually(lambda: invariants.check(account), timeout=30)
    pids = [worker.pid for worker in workers]

    own_redis.halt()
    stopped = time.monotonic()
    with pytest.raises(redis_py.ConnectionError):
        redis.ping()
    passes(STOPPED_SECONDS - 5)
    early = submit(account, "probe.ret", value="submitted without Redis")
    passes(STOPPED_SECONDS - (time.monotonic() - stopped))
    assert states([early]) == ["queued"]
    own_redis.start()
    back = time.monotonic()
    late = submit(account, "probe.ret", value="submitted with it")

    until("succeeded", early, late, timeout=60)
    seconds = [begun_at(run) - back for run in (early, late)]
    assert max(seconds) <= PICKED_UP_SECONDS
    many: list[Run] = []

    def everybody_works() -> bool:
        """Also the worker that was in the longest of its pauses between two tries to connect."""
        many.extend(submit(account, "probe.sleep", seconds=1) for _ in range(6))
        until("succeeded", *many)
        return {line["worker"] for run in many for line in probe_log(run.pk)} == {one.row.name for one in workers}

    eventually(everybody_works, timeout=30)
    assert [worker.pid for worker in workers if worker.alive] == pids
    assert [phases(run) for run in (early, late, *many)] == [["start", "end"]] * (2 + len(many))
    eventually(lambda: invariants.check(account), timeout=30)
    figures = (
        f"Redis stopped for {back - stopped:.0f} s: a submit of meanwhile began {seconds[0]:.1f} s after it was back"
    )
    report("5", f"{figures}, one after it {seconds[1]:.1f} s (at most {PICKED_UP_SECONDS:.0f} s); same processes")


def test_6_every_run_ends_over_a_restart_of_the_database(stack: Stack, postgres_server, report):
    account = builders.make_account()
    workers = [WorkerProbe(concurrency=10) for _ in range(2)]
    stack.together(*workers)
    pids = [worker.pid for worker in workers]
    runs = [submit(account, "probe.emit", count=100, seconds=RUN_SECONDS) for _ in range(RUNNING // 2)]
    runs += [submit(account, "probe.spend", amount=3, times=60, seconds=RUN_SECONDS) for _ in range(RUNNING // 2)]
    until_begun(*runs)
    assert states(runs) == ["running"] * RUNNING
    connection.close()

    stopped = time.monotonic()
    postgres_server.restart()
    away = time.monotonic() - stopped

    assert [phases(run) for run in runs] == [["start"]] * RUNNING  # none of them was over by then
    until("succeeded", *runs, timeout=60)
    assert [kinds(run) for run in runs] == [PLAIN_LIFE] * RUNNING
    assert [phases(run) for run in runs] == [["start", "end"]] * RUNNING
    settled = list(LedgerEntry.objects.values_list("run_id", flat=True))
    assert sorted(settled) == sorted(run.pk for run in runs)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(20)])
    eventually(lambda: invariants.check(account), timeout=30)
    assert [worker.pid for worker in workers if worker.alive] == pids
    report("6", f"PostgreSQL away for {away:.1f} s under {RUNNING} running runs: all succeeded, {RUNNING} settled once")
