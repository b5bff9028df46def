"""A paused queue stays paused whatever is restarted, and a recalled drain goes on working: real processes."""

import httpx
import pytest

from quotas.models import AuditEntry
from runs import keys
from runs.models import Attempt, QueuePause, Run
from tests import builders, invariants
from tests.probes import WebServer, WorkerProbe, eventually, manage
from tests.processes.trials import states, submit, until, until_begun

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
SCOPES = ["read", "submit", "admin"]


class Client:
    """A client of one web process."""

    def __init__(self, web, key):
        self.web = web
        self.headers = {"Authorization": f"Bearer {key}"}

    def get(self, path):
        return httpx.get(f"{self.web.url}/api/v1{path}", headers=self.headers, timeout=20)

    def submit(self, **fields):
        body = {"agent": "probe.ret", "input": {"value": 1}} | fields
        return httpx.post(f"{self.web.url}/api/v1/runs", json=body, headers=self.headers, timeout=20)


@pytest.fixture
def account(transactional_db):
    return builders.make_account()


def was_passed_over(redis, run):
    """A worker woke for the run, asked for work and was given none: the wake is used up, the run waits."""
    eventually(lambda: redis.llen(keys.wake(run.queue)) == 0)
    assert states([run]) == ["queued"]


def test_a_paused_queue_is_not_taken_from_whatever_is_restarted_until_it_is_resumed(stack, account, own_redis, redis):
    workers, web = [WorkerProbe(), WorkerProbe()], WebServer()
    stack.together(*workers, web)
    client = Client(web, builders.make_api_key(account, scopes=SCOPES)[1])
    long = submit(account, "probe.sleep", seconds=4)
    until_begun(long)

    assert manage("queues", "pause", "default", "--reason", "a bad release").returncode == 0
    first = Run.objects.get(pk=client.submit().json()["id"])
    was_passed_over(redis, first)
    until("succeeded", long)  # what runs goes on
    workers[0].kill()
    assert workers[1].term() == 0
    web.restart()
    own_redis.kill()
    own_redis.restart()
    redis.flushall()
    again = [WorkerProbe(), WorkerProbe()]
    stack.together(*again)

    accepted = client.submit()
    second = Run.objects.get(pk=accepted.json()["id"])
    in_stream = keys.ready("default", "normal")
    eventually(lambda: redis.xlen(in_stream) == 2)  # the sweeper has added the first again
    was_passed_over(redis, second)
    third = submit(account, "probe.ret", value=3)
    was_passed_over(redis, third)

    assert accepted.status_code == 202
    assert redis.xpending(in_stream, keys.GROUP)["pending"] == 0
    assert (states([first, second, third]), Attempt.objects.count()) == (["queued"] * 3, 1)
    (pause,) = client.get("/queue/status").json()["paused"]
    assert (pause["queue"], pause["reason"]) == ("default", "a bad release")
    assert pause["paused_by"].startswith("command")
    why = client.get(f"/runs/{second.pk}").json()["why"]
    assert "a bad release" in why["text"]

    since = QueuePause.objects.get().paused_at
    assert manage("queues", "resume", "default", "--reason", "fixed").returncode == 0
    until("succeeded", first, second, third)
    resumed = AuditEntry.objects.get(action="queue.resume")
    assert all(at > resumed.at > since for at in Attempt.objects.exclude(run=long).values_list("started_at", flat=True))
    eventually(lambda: invariants.check(account), timeout=20)


def test_a_drain_is_recalled_while_a_run_is_waited_for_and_not_after(stack, account):
    worker = stack.worker(concurrency=2)
    name = worker.row.name
    long = submit(account, "probe.sleep", seconds=100)
    until_begun(long)
    assert manage("workers", "drain", name).returncode == 0
    eventually(lambda: worker.row.draining_since is not None)
    waits = submit(account, "probe.ret", value=1)
    assert states([waits]) == ["queued"]

    recalled = manage("workers", "undrain", name, "--reason", "the wrong one")

    assert recalled.returncode == 0, recalled.stderr
    until("succeeded", waits)
    assert "worker.undrained" in worker.output()
    assert (worker.row.draining_since, worker.row.drain_requested_at) == (None, None)
    manage("workers", "drain", name)
    eventually(lambda: worker.row.draining_since is not None)
    manage("cancel_runs", str(long.pk), "--account", account.name)
    assert worker.wait() == 0  # the last run has ended, so it leaves
    refused = manage("workers", "undrain", name)
    assert (refused.returncode, "it has stopped. Start another" in refused.stderr) == (2, True)
    acts = AuditEntry.objects.filter(target_type="worker").order_by("pk").values_list("action", flat=True)
    assert list(acts) == ["worker.drain", "worker.undrain", "worker.drain"]


def test_a_drain_that_a_signal_asked_for_is_not_recalled(stack, account):
    worker = stack.worker(concurrency=1)
    long = submit(account, "probe.sleep", seconds=6)
    until_begun(long)
    manage("workers", "drain", worker.row.name)
    eventually(lambda: worker.row.draining_since is not None)
    worker.signal(15)
    eventually(lambda: worker.row.leaving_at is not None or not worker.alive)

    refused = manage("workers", "undrain", worker.row.name)

    assert refused.returncode == 2
    assert worker.wait() == 0
