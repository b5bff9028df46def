"""queues, maintenance, workers undrain."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.models import AuditEntry
from runs.models import Maintenance, QueuePause
from tests import builders
from workers.models import WorkerProcess

pytestmark = pytest.mark.django_db


def test_queues_pause_list_and_resume(manage, default_account):
    paused = manage("queues", "pause", "default", "--reason", "a bad release", "--json")
    again = manage("queues", "pause", "default", "--reason", "another")
    (row,) = manage("queues", "list", "--json").json["results"]
    listed = manage("queues", "list").out
    status = manage("queue_status").out
    resumed = manage("queues", "resume", "default", "--reason", "fixed", "--json")
    nothing = manage("queues", "resume", "default")

    assert (paused.code, paused.json["changed"], paused.json["reason"]) == (0, True, "a bad release")
    assert (again.code, "was paused before" in again.out, "a bad release" in again.out) == (0, True, True)
    assert "That reason is kept; for another one: `queues resume default` first" in again.out
    assert (row["queue"], row["paused"], row["reason"]) == ("default", True, "a bad release")
    assert "a bad release" in listed
    assert "queue default is paused by command" in status
    assert (resumed.code, resumed.json) == (0, {"queue": "default", "paused": False, "changed": True})
    assert (nothing.code, "was not paused" in nothing.out) == (0, True)
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == ["queue.pause", "queue.resume"]


def test_queues_refuses_what_is_no_queue_and_no_reason(manage, default_account):
    wrong = manage("queues", "pause", "nowhere", "--reason", "x")
    empty = manage("queues", "pause", "default", "--reason", " ")

    assert (wrong.code, "Known are: default" in wrong.err) == (2, True)
    assert empty.code == 2
    assert not QueuePause.objects.exists()


def test_queues_resume_refuses_what_is_neither_known_nor_paused(manage, default_account):
    QueuePause.objects.create(queue="of-an-agent-that-is-gone", reason="x", paused_by="ann")

    wrong = manage("queues", "resume", "nosuch")
    as_json = manage("queues", "resume", "nosuch", "--json")

    assert (wrong.code, "There is no queue nosuch. Known are: default" in wrong.err) == (2, True)
    assert (as_json.code, as_json.json["code"]) == (2, "no_such_queue")
    assert manage("queues", "resume", "of-an-agent-that-is-gone").code == 0
    assert not QueuePause.objects.exists()


def test_maintenance_on_show_and_off(manage, default_account):
    off = manage("maintenance", "show", "--json")
    on = manage("maintenance", "on", "--message", "back at noon", "--retry-after", "90", "--json")
    shown = manage("maintenance", "show").out
    status = manage("queue_status").out
    ended = manage("maintenance", "off", "--reason", "done")

    assert off.json == {"on": False, "message": None, "retry_after_seconds": None, "set_by": None, "set_at": None}
    assert (on.code, on.json["on"], on.json["retry_after_seconds"]) == (0, True, 90)
    assert ("back at noon" in shown, "in 90 s" in shown) == (True, True)
    assert "maintenance, no new runs: back at noon" in status
    assert (ended.code, "off" in ended.out, Maintenance.objects.exists()) == (0, True, False)
    assert manage("maintenance", "off").code == 0
    assert manage("maintenance", "on", "--message", "x", "--retry-after", "0").code == 2


def test_workers_undrain_says_why_not(manage, default_account):
    idle, leaving = builders.make_worker(), builders.make_worker()
    manage("workers", "drain", idle.name)
    manage("workers", "drain", leaving.name)
    WorkerProcess.objects.filter(pk=leaving.pk).update(leaving_at=leaving.heartbeat_at)

    recalled = manage("workers", "undrain", idle.name, "--json")
    again = manage("workers", "undrain", idle.name)
    gone = manage("workers", "undrain", leaving.name)

    assert (recalled.code, recalled.json["results"][0]["drain_requested_at"]) == (0, None)
    assert (again.code, "nobody asked it to drain" in again.err) == (2, True)
    assert (gone.code, "it leaves" in gone.err) == (2, True)
    assert manage("workers", "undrain", "nobody").code == 2


def test_workers_undrain_of_one_that_has_stopped_says_to_start_another(manage, default_account):
    now = timezone.now()
    builders.make_worker(name="w1-17-0a", stopped_at=now)
    builders.make_worker(name="w2-18-0b", heartbeat_at=now - dt.timedelta(days=1))

    stopped, dead = manage("workers", "undrain", "w1"), manage("workers", "undrain", "w2")

    assert (stopped.code, "w1-17-0a" in stopped.err, "it has stopped. Start another" in stopped.err) == (2, True, True)
    assert "./run runworker_streams" in stopped.err
    assert (dead.code, "it is not alive. Start another" in dead.err) == (2, True)
    assert "No live worker is called w" in manage("workers", "undrain", "w").err
