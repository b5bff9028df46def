"""The start of a plan: it acts on what was read and no more, and is told to those who may know."""

import uuid

import pytest
from django.contrib.messages import get_messages
from django.db import OperationalError

from quotas.errors import Busy
from runs.admin import change_list
from runs.models import Run
from tests import builders
from tests.bulk_work import worked
from tests.console.filled import filled
from tests.console.test_bulk_pages import form, letter_of, signed_in, text
from workers import dead_letters
from workers.bulk import acts, targets
from workers.models import BulkOperation, DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)
LETTERS = "/admin/bulk-plan/?kind=requeue&source=letters"
OPERATOR = ("workers.run_bulkoperation", "workers.requeue_deadletter", "runs.requeue_run", "runs.cancel_run")


@pytest.fixture
def console(db):
    return signed_in()


def read(console, address=LETTERS, **typed):
    return filled(text(console.get(address)), reason="repaired", **typed)


def told(answer):
    return " | ".join(str(message) for message in get_messages(answer.wsgi_request))


# -- what was read ---------------------------------------------------------------------------------------------------
def test_what_came_after_the_plan_was_read_is_not_acted_on(console, account):
    letter = letter_of(account)
    sent = read(console)
    letter_of(account)

    console.post(LETTERS, sent)

    items = worked(BulkOperation.objects.get()).items
    assert [item.letter_id for item in items.all()] == [letter.pk]


def test_another_number_than_was_read_shows_the_plan_again(console, account):
    letters = [letter_of(account) for _ in range(3)]
    dead_letters.discard(dead_letter_id=letters[0].pk, actor="x", reason="x")
    sent = read(console)
    dead_letters.restore(dead_letter_id=letters[0].pk, actor="x", reason="x")
    letter_of(account)

    more = console.post(LETTERS, sent)

    assert more.status_code == 409
    assert "as it was shown any more, with 2 eligible" in text(more)
    assert not BulkOperation.objects.exists()
    again = filled(text(more))
    assert (again["eligible"], again["reason"]) == ("4", "repaired")
    dead_letters.discard(dead_letter_id=letters[1].pk, actor="x", reason="x")
    fewer = console.post(LETTERS, again)
    assert fewer.status_code == 409
    console.post(LETTERS, filled(text(fewer)))
    assert BulkOperation.objects.get().total == 4  # the discarded one is passed over


def test_runs_that_succeeded_are_shown_before_they_are_requeued(console, account):
    builders.make_run("succeeded", account=account)
    builders.make_run("failed", account=account)
    address = "/admin/bulk-plan/?kind=requeue&source=runs"

    answer = console.post(address, read(console, address, with_succeeded="on"))

    assert answer.status_code == 409
    assert 'id="plan-eligible">2<' in text(answer)
    assert console.post(address, filled(text(answer))).status_code == 302


def test_a_cancel_is_started_though_some_have_ended_meanwhile(console, account):
    runs = [builders.make_run("queued", account=account) for _ in range(2)]
    address = "/admin/bulk-plan/?kind=cancel&source=runs"
    sent = read(console, address)
    Run.objects.filter(pk=runs[0].pk).update(state="failed")

    assert console.post(address, sent).status_code == 302


@pytest.mark.parametrize("up_to", ["x", "-1", "9" * 30, "1_0"])
def test_a_key_that_no_page_has_shown_is_refused(console, account, up_to):
    letter_of(account)

    answer = console.post(LETTERS, form(up_to=up_to))

    assert answer.status_code == 400
    assert not BulkOperation.objects.exists()


def test_a_key_that_is_still_to_come_reaches_to_now(console, account):
    builders.make_run("failed", account=account)
    console.post("/admin/bulk-plan/?kind=requeue&source=runs", form(up_to="f" * 32))

    late = builders.make_run("failed", account=account)
    items = worked(BulkOperation.objects.get()).items
    assert late.pk not in set(items.values_list("run_id", flat=True))


def test_the_same_form_sent_twice_leads_to_what_it_began_though_nothing_is_as_it_was(console, account):
    letter_of(account)
    sent = read(console)
    first = console.post(LETTERS, sent)
    worked(BulkOperation.objects.get())

    second = console.post(LETTERS, sent)

    assert first["Location"] == second["Location"]
    assert BulkOperation.objects.count() == 1
    other = signed_in()
    assert other.post(LETTERS, sent).status_code == 409


# -- one -------------------------------------------------------------------------------------------------------------
def test_many_are_not_planned_as_one(console, account):
    runs = ",".join(str(builders.make_run("failed", account=account).pk) for _ in range(2))
    letters = ",".join(str(letter_of(account).pk) for _ in range(2))

    for address in (f"run={runs}", f"letter={letters}", "run=x", "letter=-1", "letter=" + "9" * 30):
        assert console.get(f"/admin/requeue-plan/?{address}").status_code == 404
        assert console.post(f"/admin/requeue-plan/?{address}", form()).status_code == 404


@pytest.mark.parametrize("error", [Busy(), OperationalError("server closed the connection")])
@pytest.mark.parametrize("where", [(targets, "collect"), (acts, "act_on_next")], ids=["collecting", "acting"])
def test_what_is_written_down_and_cannot_be_done_at_once_is_left_to_a_worker(
    console, account, monkeypatch, error, where
):
    def breaks(operation_id):
        raise error

    letter = letter_of(account)
    address = f"/admin/requeue-plan/?letter={letter.pk}"
    with monkeypatch.context() as patch:
        patch.setattr(*where, breaks)
        answer = console.post(address, read(console, address))

    operation = BulkOperation.objects.get()
    assert answer["Location"] == f"/admin/workers/bulkoperation/{operation.pk}/change/"
    assert "a worker does it" in told(answer)
    assert worked(operation).done_count == 1


def test_who_may_not_see_operations_is_led_back(account):
    run = builders.make_run("failed", account=account)
    type(account).objects.filter(pk=account.pk).update(limit=0)
    client = signed_in("runs.view_run", "runs.requeue_run")

    answer = client.post(f"/admin/requeue-plan/?run={run.pk}", form(), follow=True)

    assert answer.status_code == 200
    assert "Not requeued: " in text(answer)


# -- what is told to whom --------------------------------------------------------------------------------------------
def test_a_search_that_looks_into_no_payload_is_planned_as_the_list_shows_it(account):
    run = builders.make_run("failed", account=account, session="s-1", error={"message": "secret words"})
    letter = builders.make_dead_letter(run)
    builders.make_run("failed", account=account, session="s-2")
    client = signed_in(*OPERATOR)
    runs, letters = "/admin/bulk-plan/?kind=requeue&source=runs", LETTERS

    for address in (f"{runs}&q=s-1", f"{runs}&q={run.pk}", f"{runs}&q={str(run.pk)[:18]}", f"{letters}&q={run.pk}"):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert 'id="plan-eligible">1<' in text(answer)
    for address in (f"{runs}&q=secret", f"{runs}&error=secret", f"{letters}&q=secret"):
        for answer in (client.get(address), client.post(address, form())):
            assert answer.status_code == 403, address
            assert change_list.HIDDEN in text(answer)
            assert "eligible" not in text(answer).lower()
    assert client.get(f"{runs}&q=%00").status_code == 400
    assert not BulkOperation.objects.exists()
    assert DeadLetter.objects.get() == letter


def test_what_broke_is_told_in_words_only_to_who_may_see_payloads(account, monkeypatch):
    def breaks(**asked):
        raise ValueError("secret of the payload")

    monkeypatch.setattr(acts, "requeue_run", breaks)
    views = ("runs.view_run", "runs.requeue_run", "workers.view_bulkoperation")
    for permissions in (views, (*views, "runs.view_payload")):
        run = builders.make_run("failed", account=account)
        client = signed_in(*permissions)

        said = told(client.post(f"/admin/requeue-plan/?run={run.pk}", form()))

        is_shown = "runs.view_payload" in permissions
        assert said == "Not requeued: " + ("ValueError: secret of the payload" if is_shown else "broke")


# -- from a list -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("address", ["/admin/runs/run/", "/admin/workers/deadletter/"])
def test_what_is_no_filter_goes_along_and_is_refused(console, account, rf, address):
    from agentops.console.bulk_actions import plan_address, query_of
    from workers.bulk.options import Kind, Source

    letter_of(account)
    source = Source.RUNS if "run/" in address else Source.LETTERS
    for key in ("nothing", "kind", "source", "agent__startswith"):
        request = rf.post(f"{address}?{key}=failed", {"select_across": "1"})

        planned = console.get(plan_address(source, Kind.REQUEUE, query_of(request, source)))

        assert planned.status_code == 400
        assert f"{key}" in text(planned)
        assert 'id="plan-eligible"' not in text(planned)


def test_the_place_in_a_list_is_no_filter(rf):
    from agentops.console.bulk_actions import query_of
    from workers.bulk.options import Source

    runs = rf.post(f"/?older_than={uuid.uuid4()}&newer_than=&state=failed&q=x", {"select_across": "1"})
    letters = rf.post("/?p=2&o=1&all=&_facets=1&reason=fatal&q=x", {"select_across": "1"})

    assert query_of(runs, Source.RUNS) == {"state": "failed", "q": "x"}
    assert query_of(letters, Source.LETTERS) == {"reason": "fatal", "q": "x"}
