"""A worker process that is provably dead is repaired without its lease being waited for (protocol 8.4)."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from quotas.models import Account
from runs import broker, keys, ready
from runs.models import Run
from tests import builders, invariants, working
from tests.probes import eventually
from workers import processes
from workers.models import WorkerProcess
from workers.repair import Repairs, dead_workers, repair_dead

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def dead():
    """The pid and the identity of a process that has been killed and reaped."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = processes.identity(child.pid)
    child.kill()
    child.communicate()
    return child.pid, identity


def worker_row(pid, identity, **fields) -> WorkerProcess:
    known = {"boot_id": identity.boot_id, "pid_namespace": identity.pid_namespace, "pid_started": identity.started}
    return builders.make_worker(pid=pid, **(known | fields))


def state(run):
    return Run.objects.get(pk=run.pk).state


class TestProof:
    def test_a_process_that_is_gone_is_dead(self, dead):
        assert processes.is_provably_dead(worker_row(*dead))

    def test_this_process_is_not(self):
        assert not processes.is_provably_dead(worker_row(os.getpid(), processes.identity()))

    def test_a_pid_that_another_process_has_now_is_no_life(self):
        older = dataclasses.replace(processes.identity(), started=processes.identity().started - 100)

        assert processes.is_provably_dead(worker_row(os.getpid(), older))

    def test_one_that_waits_to_be_reaped_is_dead(self):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        row = worker_row(child.pid, processes.identity(child.pid))
        assert not processes.is_provably_dead(row)
        child.kill()

        eventually(lambda: processes.is_provably_dead(row))

        child.communicate()

    def test_one_that_is_stopped_is_alive(self):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        row = worker_row(child.pid, processes.identity(child.pid))
        child.send_signal(signal.SIGSTOP)

        assert not processes.is_provably_dead(row)

        child.kill()
        child.communicate()

    @pytest.mark.parametrize(
        "elsewhere", [{"boot_id": "f" * 36}, {"pid_namespace": "pid:[1]"}, {"boot_id": ""}, {"pid_started": 0}]
    )
    def test_what_is_elsewhere_or_unknown_is_never_dead(self, dead, elsewhere):
        row = worker_row(*dead, **elsewhere)

        assert not processes.is_provably_dead(row)
        assert dead_workers() == []


@pytest.fixture
def owned(account: Account, dead, redis) -> tuple[Run, WorkerProcess]:
    """A run owned by a process that is dead, with all its lease before it."""
    config = working.config()
    run = working.submit(account)
    assert len(working.consumer(config).take([0])) == 1
    working.claim(run, worker=config.consumer, lease=600.0)
    row = worker_row(*dead, name=config.consumer)
    redis.zadd(keys.slots("default"), {f"{row.name}/0": 2**50, f"{row.name}0/0": 2**50})
    redis.set(keys.heartbeat(row.name), 1)
    redis.set(keys.sweeper(), row.name)
    return run, row


def consumers(redis):
    return [found["name"].decode() for found in redis.xinfo_consumers(keys.ready("default", "normal"), keys.GROUP)]


class TestRepair:
    def test_a_dead_owners_run_is_taken_over_and_nothing_of_it_stays(self, owned, redis):
        run, row = owned
        assert consumers(redis) == [row.name]

        assert repair_dead(broker.client(), actor="supervisor") == 1

        assert state(run) == "interrupted"
        assert run.transitions.get(kind="run.interrupted").actor == "supervisor"
        assert working.log_of(run) == ["1-1", "2-1", "3-1"]
        assert ready.named_entry(redis, run) is None
        row.refresh_from_db()
        assert row.stopped_at is not None
        assert consumers(redis) == []
        assert redis.exists(keys.heartbeat(row.name), keys.sweeper()) == 0
        assert redis.zrange(keys.slots("default"), 0, -1) == [f"{row.name}0/0".encode()]
        redis.delete(keys.slots("default"))
        invariants.check(run.account)
        assert repair_dead(broker.client(), actor="supervisor") == 0

    def test_a_run_that_another_worker_has_by_now_is_left_alone(self, owned):
        run, _ = owned
        Run.objects.filter(pk=run.pk).update(worker="somebody-else")

        assert repair_dead(broker.client(), actor="supervisor") == 0

        assert state(run) == "running"

    def test_one_that_signed_off_and_left_a_run_is_repaired_too(self, owned):
        run, row = owned
        WorkerProcess.objects.filter(pk=row.pk).update(stopped_at=timezone.now())

        assert repair_dead(broker.client(), actor="supervisor") == 1

        assert state(run) == "interrupted"

    def test_an_entry_that_was_never_claimed_goes_to_the_next_take(self, account, dead, redis):
        config = working.config()
        run = working.submit(account)
        assert len(working.consumer(config).take([0])) == 1
        worker_row(*dead, name=config.consumer)
        other = working.consumer(working.config(name="other"))
        assert other.take([0]) == []
        redis.delete(keys.wake("default"))

        assert repair_dead(broker.client(), actor="supervisor") == 0

        assert redis.llen(keys.wake("default")) == 1
        assert [entry.fields[b"run_id"].decode() for entry in other.take([0])] == [str(run.pk)]

    def test_without_redis_the_run_is_taken_over_and_the_rest_is_done_later(self, own_redis, owned):
        run, row = owned
        own_redis.halt()
        repairs = Repairs(actor="supervisor")

        assert not repairs.run_once()

        assert state(run) == "interrupted"
        row.refresh_from_db()
        assert row.stopped_at is None
        own_redis.start()
        broker.reset()
        assert repairs.run_once()
        row.refresh_from_db()
        assert row.stopped_at is not None

    def test_the_command_repairs(self, owned, capsys):
        run, _ = owned

        call_command("repair_workers", "--json")

        assert capsys.readouterr().out == '{"runs": 1}\n'
        assert state(run) == "interrupted"

    def test_the_command_says_what_it_could_not_do(self, own_redis, owned):
        own_redis.halt()

        with pytest.raises(CommandError, match="Redis does not answer"):
            call_command("repair_workers")
