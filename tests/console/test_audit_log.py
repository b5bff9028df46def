"""The audit log: searched by who, what, which, when and why; exported; and no act happens without its line."""

import csv
import io
import json

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import DatabaseError, connection
from django.test import Client

from quotas import audit
from quotas.audit_log import changes
from quotas.models import Account, AuditEntry, Membership
from runs.models import Maintenance, QueuePause, Run
from tests import builders
from tests.access.world import signed_in
from workers import dead_letters
from workers.models import Case, DeadLetter, WorkerProcess

pytestmark = pytest.mark.django_db
LOG = "/admin/quotas/auditentry/"


@pytest.fixture
def console() -> Client:
    return signed_in(builders.make_user("root", is_staff=True, is_superuser=True))


@pytest.fixture
def entries() -> list[AuditEntry]:
    say = {"target_type": "thing", "before": {"a": 1, "same": 2}, "after": {"a": "<b>", "same": 2, "new": None}}
    return [
        audit.record(actor="jane", action="queue.pause", target_id=1, reason="disk is full", request_id="r-1", **say),
        audit.record(actor="joe", action="queue.resume", target_id=2, reason="50% done", request_id="r-1", **say),
        audit.record(actor="jane", action="run.cancel", target_id=3, request_id="r-2", **say),
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [3, 2, 1]),
        ("?q=joe", [2]),
        ("?q=r-1", [2, 1]),
        ("?q=3", [3]),
        ("?q=run.cancel", [3]),
        ("?q=run", []),
        ("?actor_is=jane", [3, 1]),
        ("?action_is=queue.", [2, 1]),
        ("?action_is=queue.pause", [1]),
        ("?reason_has=disk", [1]),
        ("?reason_has=0%25", [2]),
        ("?to=2001-01-01", []),
        ("?from=2001-01-01&actor_is=joe", [2]),
    ],
)
def test_it_is_found_by_what_it_says(console: Client, entries: list[AuditEntry], query: str, found: list[int]) -> None:
    shown = console.get(f"{LOG}{query}").context["cl"].result_list

    assert [entry.target_id for entry in shown] == [str(number) for number in found]


@pytest.mark.parametrize("query", ["from=yesterday&actor_is=joe", "to=2026-13-01", "actor=joe", "request_id=r-1"])
def test_a_filter_that_is_none_shows_and_exports_nothing(
    console: Client, entries: list[AuditEntry], query: str
) -> None:
    page = console.get(f"{LOG}?{query}")

    assert (page.status_code, len(page.context["cl"].result_list)) == (400, 0)
    assert {console.get(f"{LOG}export.{form}?{query}").status_code for form in ("csv", "jsonl")} == {400}
    assert AuditEntry.objects.count() == len(entries)


def test_an_entry_shows_what_changed_and_what_else_its_request_did(console: Client, entries: list[AuditEntry]) -> None:
    page = console.get(f"{LOG}{entries[0].pk}/change/").content.decode()

    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert f'href="{LOG}?q=r-1"' in page
    assert changes({"a": 1, "same": 2}, {"same": 2, "a": 3}) == [("a", 1, 3), ("same", 2, 2)]
    assert changes(None, [1]) == [("value", "", [1])]
    assert changes(None, None) == []


def test_what_the_list_shows_is_exported_and_the_export_is_a_line_itself(
    console: Client, entries: list[AuditEntry]
) -> None:
    rows = list(csv.DictReader(io.StringIO(console.get(f"{LOG}export.csv?action_is=queue.").getvalue().decode())))
    lines = console.get(f"{LOG}export.jsonl?actor_is=jane").getvalue().decode().splitlines()

    assert [row["target_id"] for row in rows] == ["2", "1"]
    assert json.loads(rows[0]["before"]) == {"a": 1, "same": 2}
    assert [json.loads(line)["after"] for line in lines] == [entries[2].after, entries[0].after]
    taken = AuditEntry.objects.filter(action="audit.export").order_by("pk")
    assert [(one.actor, one.target_id, one.after) for one in taken] == [
        ("root", "csv", {"query": "action_is=queue."}),
        ("root", "json lines", {"query": "actor_is=jane"}),
    ]


def test_who_may_see_it_may_not_export_it(entries: list[AuditEntry]) -> None:
    user = builders.make_user("viewer", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    client = signed_in(user)

    assert client.get(LOG).status_code == 200
    assert "Export" not in client.get(LOG).content.decode()
    assert client.get(f"{LOG}export.csv").status_code == client.get(f"{LOG}export.jsonl").status_code == 403


PASSWORD = {"usable_password": "true", "password1": "Quite-long-9", "password2": "Quite-long-9"}


def test_what_is_done_to_users_and_groups_is_a_line_each(console: Client, account: Account) -> None:
    group = Group.objects.create(name="night shift")
    seer = Permission.objects.get(codename="view_payload")
    console.post("/admin/auth/user/add/", {"username": "jane", **PASSWORD})
    jane = User.objects.get(username="jane")
    Membership.objects.create(user=jane, account=account, role="member")

    console.post(f"/admin/auth/group/{group.pk}/change/", {"name": group.name, "permissions": [seer.pk]})
    form = {"username": "jane", "is_active": "on", "is_staff": "on", "groups": [group.pk]}
    console.post(f"/admin/auth/user/{jane.pk}/change/", form)
    console.post(f"/admin/auth/user/{jane.pk}/password/", PASSWORD)
    console.post("/admin/auth/user/", {"action": "delete_selected", "_selected_action": [jane.pk], "post": "yes"})
    console.post(f"/admin/auth/group/{group.pk}/delete/", {"post": "yes"})

    lines = list(AuditEntry.objects.order_by("pk"))
    assert [line.action for line in lines] == [
        "user.create",
        "group.change",
        "user.change",
        "user.password",
        "user.delete",
        "account.member_removed",
        "group.delete",
    ]
    assert {(line.actor, bool(line.request_id)) for line in lines} == {("root", True)}
    assert changed(lines[1]) == {"permissions": ([], ["runs.view_payload"])}
    assert changed(lines[2]) == {"is_staff": (False, True), "groups": ([], ["night shift"])}
    assert PASSWORD["password1"] not in str([(line.before, line.after) for line in lines])


def changed(line: AuditEntry) -> dict[str, tuple[object, object]]:
    return {name: (was, now) for name, was, now in changes(line.before, line.after) if was != now}


REFUSE = {
    "sqlite": ["CREATE TRIGGER no_audit BEFORE INSERT ON quotas_auditentry BEGIN SELECT RAISE(ABORT, 'full'); END"],
    "mysql": ["CREATE TRIGGER no_audit BEFORE INSERT ON quotas_auditentry FOR EACH ROW SIGNAL SQLSTATE '45000'"],
    "postgresql": [
        "CREATE FUNCTION no_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full'; END $$",
        "CREATE TRIGGER no_audit BEFORE INSERT ON quotas_auditentry EXECUTE FUNCTION no_audit()",
    ],
}
ALLOW = {"postgresql": ["DROP FUNCTION no_audit() CASCADE"]}


def test_ones_own_new_password_is_a_line_without_it(client: Client) -> None:
    user = builders.make_user("jane", is_staff=True)
    user.set_password("Old-long-word-1")
    user.save()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    words = {"old_password": "Old-long-word-1", "new_password1": "Quite-long-9", "new_password2": "Quite-long-9"}

    assert client.post("/admin/password_change/", {**words, "old_password": "x"}).status_code == 200
    assert not AuditEntry.objects.exists()
    assert client.post("/admin/password_change/", words).status_code == 302

    line = AuditEntry.objects.get()
    assert (line.actor, line.action, line.target_id) == ("jane", "user.password", str(user.pk))
    assert "Quite-long-9" not in str([line.before, line.after, line.reason])


def execute(statements: list[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.django_db(transaction=True)
def test_an_act_whose_line_cannot_be_written_does_not_happen(console: Client, account: Account) -> None:
    queued, failed = builders.make_run("queued", account=account), builders.make_run("failed", account=account)
    waiting = builders.make_run("queued", account=account)
    letter = builders.make_dead_letter(failed)
    key, _ = builders.make_api_key(account)
    worker, member = builders.make_worker(), builders.make_user("member", account=account)
    why = {"reason": "x"}
    line = {"amount": "1", "form_id": "0d5a7a52-35a4-4b8a-9d2c-6f8b1d4c2a10", **why}
    acts = {  # the worker first: it counts as alive for a moment only
        f"workers/workerprocess/{worker.pk}/drain/": why,
        f"runs/run/{queued.pk}/cancel/": why,
        f"runs/run/{waiting.pk}/priority/": {"priority": "low", **why},
        f"requeue-plan/?run={failed.pk}": {"form_id": "0d5a7a52-35a4-4b8a-9d2c-6f8b1d4c2a11", **why},
        f"bulk-plan/?kind=requeue&source=letters&case={letter.case_id}": {
            "form_id": "0d5a7a52-35a4-4b8a-9d2c-6f8b1d4c2a12",
            **why,
        },
        f"workers/deadletter/{letter.pk}/discard/": why,
        f"workers/case/{letter.case_id}/resolve/": {"version": "", **why},
        f"workers/case/{letter.case_id}/note/": why,
        "queues/pause/": {"queue": "default", **why},
        "maintenance/begin/": {"message": "x", "retry_after": "60"},
        f"quotas/account/{account.pk}/line/grant/": line,
        f"quotas/apikey/{key.pk}/revoke/": why,
        "quotas/price/set/": {"model": "m", "input": "1"},
        "auth/group/add/": {"name": "night shift"},
        "auth/user/add/": {"username": "new", **PASSWORD},
        f"auth/user/{member.pk}/password/": PASSWORD,
        f"auth/user/{member.pk}/delete/": {"post": "yes"},
    }
    console.raise_request_exception = False
    before = facts()
    execute(REFUSE[connection.vendor])
    try:
        answers = {address: console.post(f"/admin/{address}", form).status_code for address, form in acts.items()}
        with pytest.raises(DatabaseError):
            dead_letters.discard(dead_letter_id=letter.pk, actor="x", reason="x")
    finally:
        execute(ALLOW.get(connection.vendor, ["DROP TRIGGER no_audit"]))

    assert facts() == before
    assert {address: status for address, status in answers.items() if status < 500} == {}
    done = {address: console.post(f"/admin/{address}", form).status_code for address, form in acts.items()}
    assert {address: status for address, status in done.items() if status >= 500} == {}
    assert AuditEntry.objects.count() >= len(acts) - 2  # of the acts on the one letter only the first one happens


def facts() -> dict[str, list[object]]:
    models = (
        Run,
        DeadLetter,
        Case,
        QueuePause,
        Maintenance,
        WorkerProcess,
        Account,
        AuditEntry,
        User,
        Group,
        Membership,
    )
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in models}
