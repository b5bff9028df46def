"""A cell is what it says, by the servers' own word, and a worker does its work there."""

import pytest
from django.db import connection

from runs.models import Run
from tests import builders, invariants, matrix, servers
from tests.probes import eventually
from tests.processes.trials import kinds as life
from tests.processes.trials import phases, submit, until

VERSION = {"sqlite": "SELECT sqlite_version()", "postgresql": "SELECT version()", "mysql": "SELECT version()"}


def test_the_redis_server_is_of_the_kind_the_cell_is_about(redis, kinds):
    info = redis.info("server")

    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info["redis_version"]
    assert f"{name} {version}".startswith(servers.REDIS_KINDS[kinds["redis"]].name)


def test_the_database_is_the_one_the_cell_is_about(db, kinds):
    with connection.cursor() as cursor:
        cursor.execute(VERSION[connection.vendor])
        version = cursor.fetchone()[0]

    name = matrix.DATABASES[kinds["database"]].strip()
    if kinds["database"] == "sqlite":
        assert (connection.vendor, version.partition(".")[0]) == ("sqlite", "3")
    else:
        assert name in version


@pytest.mark.process
@pytest.mark.timeout(240)
def test_a_worker_works_on_when_another_kind_of_server_takes_the_place_of_its_own(own_redis, stack, other_kind):
    """The new server is empty, and has commands the old one had not, or lacks some it had."""
    account = builders.make_account()
    worker = stack.worker()
    pid = worker.pid

    runs = [submit(account, "probe.ret", value=value) for value in range(5)]
    eventually(lambda: not Run.objects.filter(log_closed_at=None).exists(), timeout=60)
    servers.replace_redis(own_redis, other_kind)
    runs += [submit(account, "probe.ret", value=value) for value in range(5)]
    until("succeeded", *runs, timeout=60)

    assert [phases(run) for run in runs] == [["start", "end"]] * 10
    assert [life(run) for run in runs] == [["run.queued", "run.started", "run.succeeded"]] * 10
    eventually(lambda: invariants.check(account), timeout=30)
    assert (worker.alive, worker.pid) == (True, pid)
