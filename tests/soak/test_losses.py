"""What Redis holds is lost in the middle of fifty runs: every run ends once (protocol 1.2)."""

from collections import Counter
from collections.abc import Callable

import pytest
import redis as redis_py

from agentops.invariants import broken_log
from quotas.models import Account, LedgerEntry
from runs import keys
from runs.models import Run
from runs.services import submit_run
from tests import builders, invariants
from tests.probes import Stack, WorkerProbe, eventually, probe_log
from tests.processes.trials import kinds, phases, states, until
from tests.soak.test_frozen_and_busy import PLAIN_LIFE

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
RUNS = 50
RUNNING_LEAST, WAITING_LEAST = 10, 10
RETRIED_LIFE = ["run.queued", "run.started", "run.retrying", "run.queued", "run.started", "run.succeeded"]
WITHOUT_RETRY, WITH_RETRY = ["start", "end"], ["start", "error", "start", "end"]
ROOM = 384 * 1024  # bytes beyond what the server needs for itself: less than the events of the runs to come
Loss = Callable[[redis_py.Redis, list[Run]], str]


def streams() -> list[str]:
    return [keys.ready("default", priority) for priority in ("high", "normal")]


def flush_all(redis: redis_py.Redis, runs: list[Run]) -> str:
    lost = redis.dbsize()
    redis.flushall()
    return f"{lost} keys lost"


def destroy_groups(redis: redis_py.Redis, runs: list[Run]) -> str:
    pending = sum(redis.xpending(stream, keys.GROUP)["pending"] for stream in streams())
    assert [redis.xgroup_destroy(stream, keys.GROUP) for stream in streams()] == [1, 1]
    assert pending >= RUNNING_LEAST
    return f"{pending} entries were pending"


def trim(redis: redis_py.Redis, runs: list[Run]) -> str:
    trimmed = sum(redis.xtrim(stream, maxlen=0, approximate=False) for stream in streams())
    assert trimmed >= RUNNING_LEAST + WAITING_LEAST
    return f"{trimmed} entries trimmed"


def delete_streams(redis: redis_py.Redis, runs: list[Run]) -> str:
    entries = sum(redis.xlen(stream) for stream in streams())
    assert redis.delete(*streams()) == 2
    assert entries >= RUNNING_LEAST + WAITING_LEAST
    return f"{entries} entries deleted"


def flush_scripts(redis: redis_py.Redis, runs: list[Run]) -> str:
    known = redis.info("memory")["number_of_cached_scripts"]
    redis.script_flush()
    assert known >= 3
    return f"{known} scripts forgotten"


def evict(redis: redis_py.Redis, runs: list[Run]) -> str:
    """Evict everything, then leave so little room that the events of the runs at work go on evicting each other."""
    redis.config_set("maxmemory-policy", "allkeys-lru")
    held = redis.dbsize()
    redis.config_set("maxmemory", "1")
    eventually(lambda: not redis.exists(*streams(), keys.index("default"), keys.epoch("default")), timeout=10)
    at_once = redis.info("stats")["evicted_keys"]
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] + ROOM)
    assert at_once >= held * 0.9
    return f"{at_once} keys evicted at once"


def fill(redis: redis_py.Redis, runs: list[Run]) -> str:
    """Refuse every write for want of memory until some runs have ended and some submits could not be dispatched."""
    ended = states(runs).count("succeeded")
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", "1")
    eventually(lambda: states(runs).count("succeeded") >= ended + 5, timeout=60)
    refused = redis.info("errorstats")["errorstat_OOM"]["count"]
    redis.config_set("maxmemory", "0")
    assert refused > 0
    return f"{refused} writes refused, {states(runs).count('succeeded') - ended} runs ended meanwhile"


LOSSES: dict[str, Loss] = {
    "FLUSHALL": flush_all,
    "XGROUP DESTROY": destroy_groups,
    "XTRIM to 0": trim,
    "DEL of the ready streams": delete_streams,
    "SCRIPT FLUSH": flush_scripts,
    "allkeys-lru": evict,
    "maxmemory reached": fill,
}


def submit_fifty(account: Account) -> tuple[list[Run], list[Run]]:
    """Submit long and short runs of two priorities. Returns (those that succeed at once, those that are retried)."""
    given = [("probe.sleep", {"seconds": 4}), ("probe.emit", {"count": 150, "seconds": 5, "bytes": 1000})] * 15
    given += [("probe.spend", {"amount": 3, "times": 20, "seconds": 2}), ("probe.ret", {"value": 1})] * 7
    retried = [("probe.retryable", {"fails": 1, "after": 3, "seconds": 1})] * (RUNS - len(given))
    made = []
    for number, (agent, run_input) in enumerate(retried + given):
        priority = "high" if number % 3 == 0 else "normal"
        options = {"account": account, "actor": "test", "priority": priority}
        made.append(submit_run(agent=agent, input=run_input, **options).run)
    return made[len(retried) :], made[: len(retried)]


def life(run: Run) -> list[str]:
    """Return the run's life without claims that were handed back unbegun: their start could not be stored (6.6)."""
    found: list[str] = []
    for kind in kinds(run):
        if kind == "run.handed_back":
            assert found.pop() == "run.started"
        else:
            found.append(kind)
    return found


def in_the_middle(runs: list[Run]) -> Counter[str]:
    found = Counter(states(runs))
    assert found["running"] >= RUNNING_LEAST
    assert found["queued"] >= WAITING_LEAST
    assert found["succeeded"] >= 1
    return found


@pytest.mark.parametrize("loss", LOSSES)
def test_4_every_run_ends_once_whatever_redis_loses(own_redis, stack: Stack, redis, report, loss):
    account = builders.make_account()
    plain, retried = submit_fifty(account)
    runs = plain + retried
    workers = [WorkerProbe(concurrency=8) for _ in range(2)]
    stack.together(*workers)
    pids = [worker.pid for worker in workers]
    found = eventually(lambda: in_the_middle(runs), timeout=30, interval=0)

    what = LOSSES[loss](redis, runs)
    evicted = redis.info("stats")["evicted_keys"]

    until("succeeded", *runs, timeout=180)
    stats = redis.info("stats")
    assert [life(run) for run in runs] == [PLAIN_LIFE] * len(plain) + [RETRIED_LIFE] * len(retried)
    assert [phases(run) for run in runs] == [WITHOUT_RETRY] * len(plain) + [WITH_RETRY] * len(retried)
    assert sum(line["phase"] == "end" for line in probe_log()) == RUNS == LedgerEntry.objects.count()
    eventually(lambda: invariants.check(account, events=False), timeout=60)
    assert [problem for run in runs for problem in broken_log(Run.objects.get(pk=run.pk), gaps=True)] == []
    assert [worker.pid for worker in workers if worker.alive] == pids
    if loss == "allkeys-lru":
        assert stats["evicted_keys"] > evicted
        what += f", {stats['evicted_keys']} in all"
    hit = f"{found['running']} running, {found['queued']} waiting, {found['scheduled']} in back-off"
    last = max(run.finished_at for run in Run.objects.all())
    first = min(run.submitted_at for run in runs)
    report("4", f"{loss} ({what}) with {hit}: {RUNS} runs ended once in {(last - first).total_seconds():.1f} s")
