"""`runworker_streams --processes N`: what a dead child left is repaired at once, whatever its lease says (8.4).

The lease is two minutes: within a test's patience nothing but the repair can take a run over.
"""

import os
import signal
import socket
import sys
from typing import Any

import httpx
import pytest

from runs.models import Run
from runs.services import submit_run
from tests import builders, invariants
from tests.probes import Child, Stack, child_env, eventually, manage
from tests.processes.test_up import Up, is_alive
from tests.processes.trials import kinds, phases, states, submit, until, until_begun
from workers.models import DeadLetter, WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
LEASE = {"AGENTOPS_LEASE_SECONDS": "120"}
REPAIRED_IN = 30.0  # on a busy machine, like the next
STARTED_IN = 120.0  # the parent, then its children
LOST_LIFE = ["run.queued", "run.started", "run.interrupted"]


class Fleet(Child):
    """`runworker_streams --processes 2`. Its rows are those of the workers."""

    def __init__(self, *arguments: str, concurrency: int = 4, **env: str) -> None:
        options = ["--processes", "2", "--name", "fleet", "--concurrency", str(concurrency), *arguments]
        super().__init__([sys.executable, "manage.py", "runworker_streams", *options], child_env(**(LEASE | env)))

    def workers(self) -> dict[str, WorkerProcess]:
        """Return the rows of the workers that have not signed off and are not dead, by `fleet-N`."""
        rows = WorkerProcess.objects.filter(name__startswith="fleet-", stopped_at=None)
        return {"-".join(row.name.split("-")[:2]): row for row in rows if is_alive(row.pid)}

    def is_ready(self) -> bool:
        return len(self.workers()) == 2

    def await_ready(self) -> None:
        eventually(self.is_ready, timeout=STARTED_IN)


@pytest.fixture
def fleet(stack: Stack) -> Fleet:
    made = Fleet()
    stack.together(made)
    return made


def owner_of(run: Run) -> WorkerProcess:
    return WorkerProcess.objects.get(name=Run.objects.get(pk=run.pk).worker)


def spread(account) -> tuple[list[Run], list[Run], WorkerProcess]:
    """Start runs until both workers have some. Returns (those of one worker, those of the other, the one worker)."""
    runs: list[Run] = []
    while len(owners := {owner_of(run).pk for run in runs}) < 2:
        assert len(runs) < 6, f"only {owners} take runs"
        runs.append(submit(account, "probe.sleep", seconds=300))
        until_begun(*runs)
    victim = owner_of(runs[0])
    its = [run for run in runs if owner_of(run) == victim]
    return its, [run for run in runs if run not in its], victim


def rerun(account, agent: str, *, attempts: int, **run_input: Any) -> Run:
    submitted = submit_run(
        account=account, agent=agent, input=run_input, actor="test", on_lost="rerun", max_attempts=attempts
    )
    return submitted.run


def kill(worker: WorkerProcess) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def test_a_killed_childs_runs_are_taken_over_at_once_again_and_again(fleet):
    account = builders.make_account()
    its, others, victim = spread(account)

    kill(victim)

    until("interrupted", *its, timeout=REPAIRED_IN)
    assert [kinds(run) for run in its] == [LOST_LIFE] * len(its)
    assert its[0].transitions.latest("fence").actor == "supervisor"
    assert states(others) == ["running"] * len(others)
    name = "-".join(victim.name.split("-")[:2])
    successor = eventually(lambda: fleet.workers().get(name) or False, timeout=STARTED_IN)
    assert successor.pid != victim.pid
    victim.refresh_from_db()
    assert victim.stopped_at is not None

    for worker in (owner_of(others[0]), successor):
        kill(worker)
    until("interrupted", *others, timeout=REPAIRED_IN)

    eventually(lambda: len(fleet.workers()) == 2, timeout=STARTED_IN)
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(8)], timeout=REPAIRED_IN)
    eventually(lambda: invariants.check(account), timeout=20)
    assert [phases(run) for run in its + others] == [["start"]] * len(its + others)
    ends_when_every_child_was_asked_to(fleet)


def ends_when_every_child_was_asked_to(fleet: Fleet) -> None:
    """A child that ends in order stays away; without any the parent ends."""
    first, second = fleet.workers().values()
    os.kill(first.pid, signal.SIGTERM)
    eventually(lambda: "it was asked to, and stays away" in fleet.output(), timeout=30)
    assert list(fleet.workers().values()) == [second]
    os.kill(second.pid, signal.SIGTERM)
    assert fleet.wait(timeout=60) == 0


def test_sigterm_drains_every_child_also_when_all_get_it(fleet):
    account = builders.make_account()
    workers = fleet.workers().values()
    runs = [submit(account, "probe.sleep", seconds=3) for _ in range(4)]
    until_begun(*runs)

    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    assert fleet.term(timeout=60) == 0

    assert states(runs) == ["succeeded"] * 4
    assert WorkerProcess.objects.filter(stopped_at=None).count() == 0
    assert "worker.repaired" not in fleet.output()
    assert not any(is_alive(worker.pid) for worker in workers)
    eventually(lambda: invariants.check(account), timeout=20)


def test_a_second_signal_ends_every_child_at_once(stack):
    account = builders.make_account()
    fleet = Fleet(AGENTOPS_DRAIN_GRACE_SECONDS="600", AGENTOPS_HANDLER_GRACE_SECONDS="1")
    stack.together(fleet)
    runs = [submit(account, "probe.sleep", seconds=300) for _ in range(3)]
    until_begun(*runs)

    fleet.signal(signal.SIGTERM)
    eventually(lambda: fleet.output().count("worker.draining") == 2, timeout=20)
    assert states(runs) == ["running"] * 3
    assert fleet.term(timeout=60) == 0

    assert states(runs) == ["interrupted"] * 3
    eventually(lambda: invariants.check(account), timeout=20)


def test_children_of_a_killed_parent_drain(fleet):
    account = builders.make_account()
    pids = [worker.pid for worker in fleet.workers().values()]
    runs = [submit(account, "probe.sleep", seconds=3) for _ in range(4)]
    until_begun(*runs)

    fleet.kill()

    eventually(lambda: not any(map(is_alive, pids)), timeout=60)
    assert states(runs) == ["succeeded"] * 4
    eventually(lambda: invariants.check(account), timeout=20)
    assert WorkerProcess.objects.filter(stopped_at=None).count() == 0


def test_a_poison_run_kills_workers_and_harms_only_itself(stack):
    account = builders.make_account()
    fleet = Fleet()
    stack.together(fleet)
    poison = rerun(account, "probe.suicide", attempts=2, seconds=0.5)
    until_begun(poison)
    others = [rerun(account, "probe.sleep", attempts=10, seconds=0.2) for _ in range(20)]

    until("failed", poison, timeout=90)
    until("succeeded", *others, timeout=90)

    letter = DeadLetter.objects.get()
    assert (letter.run_id, letter.reason) == (poison.pk, DeadLetter.Reason.CRASH_LOOP)
    assert phases(poison) == ["start"] * 2
    assert kinds(poison) == ["run.queued", "run.started", "run.retaken", "run.queued", "run.started", "run.failed"]
    eventually(lambda: invariants.check(account), timeout=20)
    assert fleet.term(timeout=60) == 0


def test_the_last_attempt_of_a_run_that_kills_workers_harms_nobody(stack):
    account = builders.make_account()
    fleet = Fleet()
    stack.together(fleet)
    poison = rerun(account, "probe.suicide", attempts=2, seconds=2)
    neighbours = [rerun(account, "probe.sleep", attempts=2, seconds=10) for _ in range(7)]
    until_begun(poison, *neighbours, timeout=60)

    until("failed", poison, timeout=90)
    until("succeeded", *neighbours, timeout=90)

    assert DeadLetter.objects.get().reason == DeadLetter.Reason.CRASH_LOOP
    error = Run.objects.get(pk=poison.pk).error
    assert (error["class"], error["type"]) == ("lost_worker", "ProcessDied")
    lost = [run for run in neighbours if "run.retaken" in kinds(run)]
    assert lost, "the first attempt has harmed its neighbours"
    assert [phases(run) for run in lost] == [["start", "start", "end"]] * len(lost)
    eventually(lambda: invariants.check(account), timeout=30)
    assert fleet.term(timeout=60) == 0


def test_a_lone_workers_next_start_repairs_what_it_left(stack):
    account = builders.make_account()
    first = stack.worker(**LEASE)
    run = submit(account, "probe.sleep", seconds=300, session="talk")
    until_begun(run)

    first.kill()
    assert states([run]) == ["running"]
    second = stack.worker(**LEASE)

    until("interrupted", run, timeout=REPAIRED_IN)
    assert run.transitions.latest("fence").actor == second.row.name
    until("succeeded", submit(account, "probe.ret", value=1, session="talk"))
    eventually(lambda: invariants.check(account), timeout=20)


def test_options_that_cannot_work_are_refused_before_anything_starts(transactional_db):
    none = manage("runworker_streams", "--processes", "0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = manage("runworker_streams", "--processes", "2", "--port", str(taken.getsockname()[1] - 1))

    assert (none.returncode, port.returncode) == (2, 2)
    assert "--processes must be 1 to 100, not 0" in none.stderr
    assert "cannot be used" in port.stderr


def test_up_repairs_what_a_dead_worker_left(tmp_path):
    up = Up(tmp_path / "d", [], {**LEASE, "AGENTOPS_PROBE_AGENTS": "1"})
    try:
        ready = up.wait_ready().ready

        def call(path: str, **body: Any) -> dict[str, Any]:
            answer = httpx.request(
                "POST" if body else "GET",
                f"{ready['url']}/api/v1/{path}",
                json=body or None,
                headers={"Authorization": f"Bearer {ready['api_key']}"},
                timeout=20,
            )
            return answer.raise_for_status().json()

        run = f"runs/{call('runs', agent='probe.sleep', input={'seconds': 300})['id']}"
        eventually(lambda: call(run)["state"] == "running", timeout=REPAIRED_IN)

        os.kill(ready["pids"]["worker-1"], signal.SIGKILL)

        eventually(lambda: call(run)["state"] == "interrupted", timeout=REPAIRED_IN)
        assert up.end() == 0
    finally:
        up.close()
