"""What commands say of runs that are not moving, and set_priority."""

import json

import pytest

from quotas.models import Account, AuditEntry
from runs import watch
from runs.models import Run
from runs.services import cancel_run
from tests import builders, working


def test_queue_status_says_of_each_queue_why_its_oldest_run_waits(manage, default_account):
    run = working.submit(default_account)
    working.submit(default_account)

    (why,) = manage("queue_status", "--json").json["why"]

    assert (why["queue"], why["run"], why["code"]) == ("default", str(run.pk), "no_worker")
    assert f"oldest run of default, {run.pk}: No worker is alive" in manage("queue_status").out


@pytest.mark.django_db(transaction=True)
def test_watch_run_says_once_why_nothing_comes(default_account, monkeypatch):
    run = working.submit(default_account)
    monkeypatch.setattr(watch, "WHY_SECONDS", 0.0)
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)
    said: list[str] = []

    def write(text):
        said.append(text)
        if sum("[no_worker]" in line for line in said) and len(said) < 3:
            builders.make_worker(agents=["probe.ret"])
        if sum("[in_line]" in line for line in said):
            cancel_run(run_id=run.pk, actor="t")

    assert watch.Watcher(run.pk, account=default_account, write=write).watch() == 3
    lines = [line for line in said if line.startswith("[")]
    assert [line.partition("]")[0] for line in lines] == ["[run.queued", "[no_worker", "[in_line", "[run.cancelled"]


def test_set_priority_moves_a_run_that_waits(manage, default_account):
    run = working.submit(default_account)

    ran = manage("set_priority", run.pk, "high", "--reason", "urgent", "--json")

    assert (ran.code, ran.json["priority"], ran.json["fence"]) == (0, "high", 2)
    assert Run.objects.get(pk=run.pk).priority == "high"
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.actor.partition(":")[0]) == ("run.reprioritise", "urgent", "command")
    assert manage("set_priority", run.pk, "low").out == f"{run.pk}: priority low\n"


def test_set_priority_refuses_what_cannot_be(manage, default_account):
    Account.objects.filter(pk=default_account.pk).update(max_priority="normal")
    waiting, ended = working.submit(default_account), builders.make_run("failed", account=default_account)
    foreign = builders.make_run(account=builders.make_account("globex"))

    above = manage("set_priority", waiting.pk, "high", "--json")
    assert (above.code, json.loads(above.out)["code"]) == (2, "priority_too_high")
    assert (manage("set_priority", ended.pk, "low").code, manage("set_priority", foreign.pk, "low").code) == (2, 2)
    assert manage("set_priority", "nonsense", "low").code == 2
    assert AuditEntry.objects.count() == 0
