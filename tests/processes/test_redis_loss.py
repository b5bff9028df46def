"""Redis is flushed, stopped, killed and frozen under working processes: runs are late, none is lost or doubled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis as redis_py

from runs import keys
from runs.services import cancel_run
from tests import builders, invariants
from tests.probes import Stack, WorkerProbe, eventually
from tests.processes.trials import kinds, phases, states, submit, until, until_begun
from tests.servers import Server

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]


@pytest.fixture
def redis(own_redis: Server) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(own_redis.url, socket_timeout=10, retry=None) as client:
        yield client


@pytest.fixture
def worker(own_redis: Server, stack: Stack) -> WorkerProbe:
    return stack.worker(concurrency=1)


def delete_stream(redis: redis_py.Redis) -> None:
    redis.delete(keys.ready("default", "normal"))


def destroy_group(redis: redis_py.Redis) -> None:
    redis.xgroup_destroy(keys.ready("default", "normal"), keys.GROUP)


LOSSES: list[Callable[[redis_py.Redis], object]] = [
    lambda redis: redis.flushall(),
    lambda redis: redis.script_flush(),
    delete_stream,
    destroy_group,
    lambda redis: redis.delete(keys.index("default"), keys.epoch("default"), keys.sweeper()),
]


def test_what_waits_runs_once_whatever_is_deleted(worker, redis):
    account = builders.make_account()
    pid = worker.pid
    for number, lose in enumerate(LOSSES):
        busy = submit(account, "probe.emit", count=100, seconds=1.5)
        until_begun(busy)
        waiting = [submit(account, "probe.ret", value=value) for value in range(10)]
        assert states(waiting) == ["queued"] * 10

        lose(redis)

        runs = [busy, *waiting]
        until("succeeded", *runs)
        assert [phases(run) for run in runs] == [["start", "end"]] * 11, number
        assert [kinds(run) for run in runs] == [PLAIN_LIFE] * 11
        eventually(lambda: invariants.check(account), timeout=20)
    assert worker.alive
    assert worker.pid == pid


@contextmanager
def stopped(server: Server, worker: WorkerProbe, event: str) -> Iterator[None]:
    """Have the server stopped for the block, which begins when the worker has met with it."""
    said = worker.output().count(event)
    server.halt()
    eventually(lambda: worker.output().count(event) > said, timeout=20)
    yield
    server.start()


def test_an_idle_worker_hears_again_after_a_stop(worker, own_redis):
    account = builders.make_account()
    with stopped(own_redis, worker, "control.reconnecting"):
        late = submit(account, "probe.ret", value=1)

    until("succeeded", late, timeout=15)
    run = submit(account, "probe.sleep", seconds=100)
    until_begun(run)
    cancel_run(run_id=run.pk, actor="test")  # its channel is subscribed again
    until("cancelled", run, timeout=5)
    eventually(lambda: invariants.check(account), timeout=20)


def test_runs_end_over_a_stop_and_a_kill(own_redis, stack):
    account = builders.make_account()
    worker = stack.worker()
    emit = submit(account, "probe.emit", count=600, seconds=6)
    short = submit(account, "probe.sleep", seconds=1)
    until_begun(emit, short)
    with stopped(own_redis, worker, "events.postponed"):
        late = [submit(account, "probe.ret", value=value) for value in range(3)]
        until("succeeded", short)  # the database alone decides

    until("succeeded", emit, *late, timeout=30)
    eventually(lambda: invariants.check(account), timeout=20)

    emit = submit(account, "probe.emit", count=300, seconds=3)
    until_begun(emit)
    own_redis.kill()
    own_redis.start()
    until("succeeded", emit)
    eventually(lambda: invariants.check(account), timeout=20)
    assert worker.alive


def test_runs_end_over_a_frozen_server(own_redis, stack):
    """Connections stay open and nothing answers: commands time out, with or without an effect."""
    account = builders.make_account()
    worker = stack.worker()
    emit = submit(account, "probe.emit", count=400, seconds=2)
    waiting = [submit(account, "probe.sleep", seconds=1) for _ in range(6)]
    until_begun(emit)

    own_redis.pause()
    eventually(lambda: "events.postponed" in worker.output(), timeout=20)
    own_redis.resume()

    until("succeeded", emit, *waiting, timeout=40)
    eventually(lambda: invariants.check(account), timeout=20)
    assert [phases(run) for run in waiting] == [["start", "end"]] * 6
    assert worker.alive


def test_runs_end_over_a_full_server(own_redis, stack, redis):
    """Every write that needs memory is refused; reads and acknowledgements are not (F03)."""
    account = builders.make_account()
    worker = stack.worker()
    emit = submit(account, "probe.emit", count=300, seconds=3)
    short = submit(account, "probe.sleep", seconds=0.5)
    until_begun(emit, short)

    redis.config_set("maxmemory", "1")
    late = [submit(account, "probe.ret", value=value) for value in range(5)]
    until("succeeded", short)
    eventually(lambda: "events.postponed" in worker.output())
    assert states(late) == ["queued"] * 5
    redis.config_set("maxmemory", "0")

    until("succeeded", emit, *late)
    eventually(lambda: invariants.check(account), timeout=20)
    assert [phases(run) for run in late] == [["start", "end"]] * 5
