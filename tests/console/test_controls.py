"""The switches of operators, their banner, and the pages of streams and workers."""

import datetime as dt
import os
import subprocess
import sys
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from quotas.models import Account, AuditEntry
from runs import keys
from runs.controls import begin_maintenance, pause_queue
from runs.models import Maintenance, QueuePause, Run
from tests import builders, working
from workers import processes
from workers.models import WorkerProcess

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>\"'&{{ 7|add:7 }}\u202e"
SWITCHES = {
    "queues/pause/": {"queue": "default", "reason": "x"},
    "queues/resume/": {"queue": "default"},
    "maintenance/begin/": {"message": "x", "retry_after": "60"},
    "maintenance/end/": {},
}


@pytest.fixture
def console(client: Client, operator: Any) -> Client:
    client.force_login(operator)
    return client


def said(answer: Any) -> str:
    return " | ".join(str(message) for message in answer.context["messages"])


def acts() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


# -- switches ----------------------------------------------------------------------------------------
def test_every_switch_needs_its_permission_and_a_post(client: Client) -> None:
    views = ["view_run", "view_workerprocess", "view_deadletter"]
    client.force_login(builders.make_operator("viewer", permissions=views))
    refused = {page: client.post(f"/admin/{page}", form).status_code for page, form in SWITCHES.items()}
    client.force_login(builders.make_operator("everything"))
    got = {page: client.get(f"/admin/{page}").status_code for page in SWITCHES}

    assert refused == dict.fromkeys(SWITCHES, 403)
    assert got == dict.fromkeys(SWITCHES, 405)
    assert acts() == []


def test_a_pause_is_pressed_twice_and_acts_once_and_a_resume_too(console: Client) -> None:
    form = {"queue": "default", "reason": "a bad release", "page": "streams"}
    first, second = (console.post("/admin/queues/pause/", form, follow=True) for _ in range(2))
    row = QueuePause.objects.get()
    ended, again = (console.post("/admin/queues/resume/", form, follow=True) for _ in range(2))

    assert (row.reason, row.paused_by) == ("a bad release", "operator")
    assert first.redirect_chain[-1][0] == "/admin/streams/"
    assert ("is paused" in said(first), "was paused before" in said(second)) == (True, True)
    assert ("is resumed" in said(ended), "was not paused" in said(again)) == (True, True)
    assert acts() == ["queue.pause", "queue.resume"]


@pytest.mark.parametrize(
    ("page", "form", "word"),
    [
        ("queues/pause/", {"queue": "nowhere", "reason": "x"}, "no queue nowhere"),
        ("queues/pause/", {"queue": "default", "reason": " "}, "reason"),
        ("maintenance/begin/", {"message": "", "retry_after": "60"}, "message"),
        ("maintenance/begin/", {"message": "x", "retry_after": "soon"}, "retry_after"),
        ("maintenance/begin/", {"message": "x", "retry_after": "0"}, "retry_after"),
        ("maintenance/begin/", {"message": "x", "retry_after": "9" * 30}, "retry_after"),
    ],
)
def test_a_switch_that_is_filled_in_wrongly_says_so(console: Client, page: str, form: Any, word: str) -> None:
    answer = console.post(f"/admin/{page}", form, follow=True)

    assert word in said(answer)
    assert (acts(), QueuePause.objects.count(), Maintenance.objects.count()) == ([], 0, 0)


def test_maintenance_is_switched_and_the_submit_page_says_so(console: Client, account: Account) -> None:
    page = "/admin/submit/?agent=probe.emit"
    form = {"message": "The database moves", "retry_after": "90"}
    for _ in range(2):
        console.post("/admin/maintenance/begin/", form)
    shown = console.get(page).content.decode()
    submitted = {"account": account.pk, "priority": "normal", "session": "", "metadata": "", "form_id": str(uuid4())}
    submitted |= {"input.count": "3", "input.seconds": "0.5"}
    console.force_login(builders.make_user("root", is_staff=True, is_superuser=True))
    refused = console.post(page, submitted).content.decode()
    console.post("/admin/maintenance/end/", {"reason": "moved"})

    assert "Maintenance: no new runs." in shown
    assert "The database moves" in shown
    assert "No new runs are accepted now" in refused
    assert (acts(), Run.objects.count()) == (["maintenance.on", "maintenance.off"], 0)


def test_the_banner_is_on_every_page_and_what_was_typed_is_inert(console: Client, account: Account) -> None:
    pause_queue(queue="default", actor=HOSTILE[:150], reason=HOSTILE)
    begin_maintenance(message=HOSTILE, actor="olga")
    run = builders.make_run("failed", account=account)
    pages = ["", "runs/run/", f"runs/run/{run.pk}/change/", "workers/deadletter/", "streams/", "quotas/account/",
             "submit/", "workers/workerprocess/", "quotas/auditentry/"]  # fmt: skip

    for page in pages:
        text = console.get(f"/admin/{page}").content.decode()
        assert "The queue default is paused." in text, page
        assert "Maintenance: no new runs." in text, page
        assert "<script>alert(1)" not in text, page
        assert "{{ 7|add:7 }}" in text, page
    console.logout()
    assert "is paused" not in console.get("/admin/login/").content.decode()


def test_without_anything_held_back_there_is_no_banner(console: Client) -> None:
    assert 'class="held"' not in console.get("/admin/").content.decode()


def test_who_may_not_switch_is_shown_no_switch(client: Client) -> None:
    client.force_login(builders.make_operator("viewer", permissions=["view_workerprocess"]))

    for page in ("streams/", ""):
        text = client.get(f"/admin/{page}").content.decode()
        assert ("Queue default" in text, "queues/pause" in text, "repair-form" in text) == (True, False, False), page

    client.force_login(builders.make_operator("pauser", permissions=["pause_queue"]))
    text = client.get("/admin/").content.decode()
    assert ("queues/pause" in text, "maintenance/begin" in text) == (True, False)


# -- streams -----------------------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_the_streams_page_shows_a_difference_and_repairs_it(console: Client, account: Account, redis: Any) -> None:
    run = working.submit(account)
    redis.delete(keys.ready("default", "normal"), keys.index("default"))
    Run.objects.filter(pk=run.pk).update(queued_at=timezone.now() - dt.timedelta(minutes=1))

    before = console.get("/admin/streams/").content.decode()
    without = console.post("/admin/streams/repair/", {"reason": " "}, follow=True)
    after = console.post("/admin/streams/repair/", {"reason": "a failover"}, follow=True)

    assert ("Queued runs that no stream" in before, str(run.pk) in before) == (True, True)
    assert "Say why" in said(without)
    assert ("Repaired" in said(after), "No difference." in after.content.decode()) == (True, True)
    assert acts() == ["streams.repair"]


def test_a_redis_that_is_away_is_an_error_state_and_no_error(console: Client, own_redis: Any) -> None:
    own_redis.kill()

    page = console.get("/admin/streams/")
    repair = console.post("/admin/streams/repair/", {"reason": "x"}, follow=True)

    assert (page.status_code, "Redis does not answer" in page.content.decode()) == (503, True)
    assert "Redis does not answer" in said(repair)
    assert acts() == []


# -- workers -----------------------------------------------------------------------------------------
def test_the_page_of_a_worker_shows_what_it_runs_its_leases_and_its_memory(console: Client, account: Account) -> None:
    worker = builders.make_worker(memory_bytes=64 * 2**20, running_count=1)
    expires = timezone.now() + dt.timedelta(seconds=2)
    run = builders.make_run("running", account=account, worker=worker.name, lease_expires_at=expires)

    text = console.get(f"/admin/workers/workerprocess/{worker.pk}/change/").content.decode()

    assert str(run.pk) in text
    assert "Lease renewed" in text
    assert "64.0\xa0MB" in text
    assert "unknown" in text  # it has no event in Redis
    assert "drain-form" in text


def test_drain_and_undrain_by_button_each_once(console: Client) -> None:
    worker = builders.make_worker()
    page = f"/admin/workers/workerprocess/{worker.pk}/"

    without = console.post(f"{page}drain/", {"reason": ""}, follow=True)
    for _ in range(2):
        drained = console.post(f"{page}drain/", {"reason": "a new version"}, follow=True)
    asked_by = WorkerProcess.objects.get().drain_requested_by
    undrained = console.post(f"{page}undrain/", {"reason": "not that one"}, follow=True)
    again = console.post(f"{page}undrain/", {"reason": "not that one"}, follow=True)

    assert "Say why" in said(without)
    assert (asked_by, "undrain-form" in drained.content.decode()) == ("operator", True)
    assert ("recalled" in said(undrained), "nobody asked it to drain" in said(again)) == (True, True)
    assert acts() == ["worker.drain", "worker.undrain"]


def test_a_worker_that_leaves_cannot_be_undrained_and_its_page_offers_nothing(console: Client) -> None:
    now = timezone.now()
    worker = builders.make_worker(drain_requested_at=now, draining_since=now, leaving_at=now)
    page = f"/admin/workers/workerprocess/{worker.pk}/"

    shown = console.get(f"{page}change/").content.decode()
    refused = console.post(f"{page}undrain/", {"reason": "x"}, follow=True)

    assert ("undrain-form" in shown, "drain-form" in shown) == (False, False)
    assert "its drain is over, and it leaves" in said(refused)
    assert acts() == []


@pytest.mark.django_db(transaction=True)
def test_taking_over_from_a_worker_that_is_provably_gone(console: Client, account: Account, redis: Any) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = processes.identity(child.pid)
    child.kill()
    child.communicate()
    facts = {"boot_id": me.boot_id, "pid_namespace": me.pid_namespace, "pid_started": me.started}
    dead = builders.make_worker(pid=child.pid, heartbeat_at=timezone.now() - dt.timedelta(hours=1), **facts)
    run = builders.make_run("running", account=account, worker=dead.name)
    page = f"/admin/workers/workerprocess/{dead.pk}/"

    shown = console.get(f"{page}change/").content.decode()
    done = console.post(f"{page}take-over/", {"reason": "the machine lost power"}, follow=True)
    again = console.post(f"{page}take-over/", {"reason": "the machine lost power"}, follow=True)

    assert "take-over-form" in shown
    assert "taken over: 1" in said(done)
    assert "taken over: 0" in said(again)
    assert Run.objects.get(pk=run.pk).state == "interrupted"
    assert acts() == ["worker.take_over"]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_nothing_is_taken_over_without_a_proof(console: Client, account: Account, where: str) -> None:
    me = processes.identity()
    facts = {"boot_id": me.boot_id, "pid_namespace": me.pid_namespace, "pid_started": me.started}
    facts |= {"boot_id": "another"} if where == "elsewhere" else {}
    row = builders.make_worker(pid=os.getpid(), heartbeat_at=timezone.now() - dt.timedelta(hours=1), **facts)
    run = builders.make_run("running", account=account, worker=row.name)

    refused = console.post(f"/admin/workers/workerprocess/{row.pk}/take-over/", {"reason": "x"}, follow=True)

    assert "Nothing was taken over" in said(refused)
    assert ("another machine" in said(refused)) is (where == "elsewhere")
    assert (Run.objects.get(pk=run.pk).state, acts()) == ("running", [])
