"""Plans and bulk operations in the console: what is said before, what is started, who may, and what is shown after."""

import uuid

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from quotas.models import AuditEntry
from runs.models import Run
from tests import builders
from tests.bulk_work import started
from workers import dead_letters
from workers.bulk.runner import BulkRunner
from workers.models import BulkItem, BulkOperation, DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)
HOSTILE = "<script>alert(1)</script>\u202e"


def signed_in(*permissions):
    user = builders.make_user(f"op-{uuid.uuid4().hex[:6]}", is_staff=True, is_superuser=not permissions)
    for one in permissions:
        app, name = one.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=name))
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def console(db):
    return signed_in()


def letter_of(account, **fields):
    return builders.make_dead_letter(builders.make_run("failed", account=account, **fields))


def form(**fields):
    return {"reason": "repaired", "form_id": str(uuid.uuid4()), **fields}


def text(answer):
    return answer.content.decode()


# -- single ----------------------------------------------------------------------------------------------------------
def test_the_plan_of_one_run_says_what_would_happen_and_does_nothing(console, account):
    run = builders.make_run("failed", account=account, input={"value": HOSTILE})

    page = text(console.get("/admin/requeue-plan/", {"run": str(run.pk)}))

    assert "Nothing has happened yet" in page
    assert 'id="plan-eligible">1<' in page
    assert HOSTILE not in page
    assert Run.objects.count() == 1
    assert not BulkOperation.objects.exists()


def test_a_single_requeue_acts_once_however_often_its_form_is_sent(console, account):
    letter = letter_of(account)
    address, sent = f"/admin/requeue-plan/?letter={letter.pk}", form(priority="low")

    first, second = console.post(address, sent), console.post(address, sent)

    new = Run.objects.get(retry_of=letter.run_id)
    assert first["Location"] == second["Location"] == f"/admin/runs/run/{new.pk}/change/"
    assert (new.priority, DeadLetter.objects.get().state) == ("low", "requeued")
    assert BulkOperation.objects.count() == 1


def test_a_reason_is_needed(console, account):
    letter = letter_of(account)
    answer = console.post(f"/admin/requeue-plan/?letter={letter.pk}", form(reason=" "))

    assert answer.status_code == 400
    assert not BulkOperation.objects.exists()


def test_a_requeue_that_is_refused_leads_to_the_operation_that_says_why(console, account):
    letter = letter_of(account)
    type(account).objects.filter(pk=account.pk).update(limit=0)

    answer = console.post(f"/admin/requeue-plan/?letter={letter.pk}", form(), follow=True)

    assert "Not requeued:" in text(answer)
    assert BulkItem.objects.get().code == "quota_exceeded"


def test_what_is_not_there_is_404(console, db):
    assert console.get("/admin/requeue-plan/", {"letter": "77"}).status_code == 404
    assert console.get("/admin/requeue-plan/", {"run": str(uuid.uuid4())}).status_code == 404
    assert console.get("/admin/requeue-plan/", {"run": "x"}).status_code == 404
    assert console.get("/admin/bulk-plan/", {"kind": "erase", "source": "runs"}).status_code == 404


# -- many ------------------------------------------------------------------------------------------------------------
def test_a_bulk_requeue_is_planned_and_started_once(console, account):
    letters = [letter_of(account) for _ in range(3)]
    dead_letters.discard(dead_letter_id=letters[0].pk, actor="x", reason="x")
    address = "/admin/bulk-plan/?kind=requeue&source=letters"
    page = text(console.get(address))
    assert "Skipped: discarded already" in page
    assert "Money and room" in page
    sent = form(pace="600")

    first, second = console.post(address, sent), console.post(address, sent)

    operation = BulkOperation.objects.get()
    assert first["Location"] == second["Location"] == f"/admin/workers/bulkoperation/{operation.pk}/change/"
    assert (operation.kind, operation.total, operation.pace, operation.canary) == ("requeue", 3, 600, False)
    assert AuditEntry.objects.filter(action="bulk.requeue", target_id=str(operation.pk)).count() == 1


def test_planning_again_shows_what_the_options_would_change(console, account):
    builders.make_run("succeeded", account=account)
    builders.make_run("failed", account=account)
    address = "/admin/bulk-plan/?kind=requeue&source=runs"

    page = text(console.post(address, form(with_succeeded="on", look="1")))

    assert 'id="plan-eligible">2<' in page
    assert not BulkOperation.objects.exists()


def test_selected_rows_and_all_that_match_lead_to_their_plan(console, account):
    letter, run = letter_of(account), builders.make_run("queued", account=account)

    of_letters = console.post(
        "/admin/workers/deadletter/?reason=fatal",
        {"action": "plan_requeue", "_selected_action": [str(letter.pk)], "select_across": "0", "index": "0"},
    )
    of_all = console.post(
        "/admin/workers/deadletter/?reason=fatal",
        {"action": "plan_discard", "_selected_action": [str(letter.pk)], "select_across": "1", "index": "0"},
    )
    of_runs = console.post(
        "/admin/runs/run/?state=queued",
        {"action": "plan_cancel", "_selected_action": [str(run.pk)], "select_across": "1", "index": "0"},
    )

    assert of_letters["Location"] == f"/admin/bulk-plan/?kind=requeue&source=letters&ids={letter.pk}"
    assert of_all["Location"] == "/admin/bulk-plan/?kind=discard&source=letters&reason=fatal"
    assert of_runs["Location"] == "/admin/bulk-plan/?kind=cancel&source=runs&state=queued"


def test_the_act_needs_its_permission_beside_that_of_bulk_operations(account):
    letter_of(account)
    bulk, own = "workers.run_bulkoperation", "workers.requeue_deadletter"
    address = "/admin/bulk-plan/?kind=requeue&source=letters"

    for permissions in ([bulk], [own], [bulk, "workers.discard_deadletter"]):
        client = signed_in(*permissions)
        assert client.get(address).status_code == 403
        assert client.post(address, form()).status_code == 403
    may = signed_in(bulk, own)
    assert may.get(address).status_code == 200
    assert "Change the input" not in text(may.get(address))
    assert may.get(f"{address}&q=secret").status_code == 403  # words of messages are for who may see payloads


def test_who_may_write_off_may_have_nobody_pay(account):
    run = builders.make_run("failed", account=account)
    address = f"/admin/requeue-plan/?run={run.pk}"
    mayor = signed_in("runs.view_run", "runs.requeue_run", "quotas.write_off", "quotas.view_hold")
    other = signed_in("runs.view_run", "runs.requeue_run")

    assert 'name="payer"' not in text(other.get(address))
    assert 'name="payer"' in text(mayor.get(address))
    mayor.post(address, form(payer="nobody"))

    new = Run.objects.exclude(pk=run.pk).get()
    assert new.waived_by.startswith("op-")
    assert "nobody: waived by" in text(mayor.get(f"/admin/runs/run/{new.pk}/change/"))
    other.post(f"/admin/requeue-plan/?run={builders.make_run('failed', account=account).pk}", form(payer="nobody"))
    assert Run.objects.order_by("-pk").first().waived_by == ""


def test_where_all_have_succeeded_they_may_be_chosen_too(console, account):
    builders.make_run("succeeded", account=account)
    address = "/admin/bulk-plan/?kind=requeue&source=runs&state=succeeded"

    page = text(console.get(address))
    again = text(console.post(address, form(with_succeeded="on", look="1")))

    assert ('id="plan-nothing"' in page, 'id="plan-start"' in page, 'name="with_succeeded"' in page) == (
        True,
        False,
        True,
    )
    assert ('id="plan-nothing"' in again, 'id="plan-start"' in again) == (False, True)


# -- the operation -----------------------------------------------------------------------------------------------------
def test_its_page_says_how_far_it_is_and_that_no_worker_is_alive(console, account):
    letter_of(account)
    operation = started(reason=HOSTILE)
    address = f"/admin/workers/bulkoperation/{operation.pk}/"

    page = text(console.get(f"{address}change/"))
    progress = console.get(f"{address}progress.json").json()

    assert 'id="bulk-no-worker"' in page
    assert HOSTILE not in page
    assert progress["total"] == progress["left"] == 1
    assert (progress["is_live"], progress["state"]) == (True, "running")
    builders.make_worker()
    assert 'id="bulk-no-worker"' not in text(console.get(f"{address}change/"))


def test_items_are_paged_and_filtered_by_their_result(console, account):
    for _ in range(55):
        letter_of(account)
    operation = started("discard", reason=HOSTILE)
    dead_letters.discard(dead_letter_id=operation.items.first().letter_id, actor="x", reason="x")
    runner = BulkRunner("test")
    while runner.run_once()[1]:
        pass
    address = f"/admin/workers/bulkoperation/{operation.pk}/change/"

    first, second = text(console.get(address)), text(console.get(f"{address}?after=50"))
    refused = text(console.get(f"{address}?result=refused"))

    assert (first.count(">letter "), second.count(">letter "), refused.count("not_open")) == (50, 5, 1)
    assert "54 of 55" in text(console.get("/admin/workers/bulkoperation/"))


def test_abort_and_repeat_act_once(console, account):
    for _ in range(3):
        letter_of(account)
    operation = started(reason=HOSTILE)
    address = f"/admin/workers/bulkoperation/{operation.pk}/"

    console.post(f"{address}abort/", {"reason": "wrong"})
    again = console.post(f"{address}abort/", {"reason": "wrong"}, follow=True)
    assert "aborted already" in text(again)
    assert AuditEntry.objects.filter(action="bulk.abort").count() == 1
    sent = {"reason": "right now", "form_id": str(uuid.uuid4())}
    first, second = console.post(f"{address}again/", sent), console.post(f"{address}again/", sent)

    assert first["Location"] == second["Location"]
    assert BulkOperation.objects.count() == 2
    console.post(f"{address}again/", {"reason": " "})
    assert BulkOperation.objects.count() == 2


# -- restore -----------------------------------------------------------------------------------------------------------
def test_a_discarded_letter_is_restored_on_its_page(console, account):
    letter = letter_of(account)
    dead_letters.discard(dead_letter_id=letter.pk, actor="x", reason="x")
    assert 'id="restore-form"' in text(console.get(f"/admin/workers/deadletter/{letter.pk}/change/"))

    console.post(f"/admin/workers/deadletter/{letter.pk}/restore/", {"reason": ""})
    assert DeadLetter.objects.get().state == "discarded"
    console.post(f"/admin/workers/deadletter/{letter.pk}/restore/", {"reason": "of use"})

    assert DeadLetter.objects.get().state == "open"
    assert 'id="restore-form"' not in text(console.get(f"/admin/workers/deadletter/{letter.pk}/change/"))
