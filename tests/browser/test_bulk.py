"""An operator finds a failing case, edits the input, has a canary, requeues 200, watches, and can prove it."""

import re

import pytest
from playwright.sync_api import Browser

from quotas.models import AuditEntry
from runs.models import Run
from tests import builders
from tests.browser.conftest import Watched
from tests.probes import Stack, eventually
from workers import case_filing
from workers.models import BulkOperation, DeadLetter

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(240)]
COUNT = 200
WAIT_MS = 120_000


def buried(count: int) -> None:
    account = builders.make_account("default", limit=10**9, max_in_flight=2 * COUNT)
    for number in range(count):
        builders.make_dead_letter(builders.make_run("failed", account=account, input={"value": number}))
    while case_filing.backfill():
        pass


def test_from_a_case_to_two_hundred_requeued_letters(browser: Browser, stack: Stack) -> None:
    buried(COUNT)
    builders.make_user("ann", is_staff=True, is_superuser=True)
    stack.worker()
    ann = Watched(browser, stack.web().url).sign_in("ann")
    page = ann.page
    page.goto("/admin/workers/case/")
    page.click("#result_list tbody th a")
    page.click("text=Requeue 200 open…")
    assert page.text_content("#plan-eligible") == str(COUNT)
    assert page.is_checked("#id_canary")
    page.fill("#id_reason", "the provider is back")
    assert page.is_hidden("[name='whole_input']")
    page.check("#id_edit_input")
    page.fill("[name='whole_input']", '{"value": "mended"}')

    page.dblclick("#plan-start")

    page.wait_for_selector("#bulk")
    page.wait_for_selector("#bulk-state .pill:text-is('done')", timeout=WAIT_MS)
    page.wait_for_selector("#bulk[data-progress]", state="detached")
    assert page.text_content("[data-number=done]") == str(COUNT)
    assert "the provider is back" in (page.text_content("#bulk-audit") or "")
    operation = BulkOperation.objects.get()
    new = Run.objects.filter(retry_of__isnull=False)
    assert new.count() == COUNT
    assert {run.input["value"] for run in new} == {"mended"}
    assert DeadLetter.objects.filter(state="requeued").count() == COUNT
    assert AuditEntry.objects.filter(action="bulk.requeue").count() == 1
    eventually(lambda: Run.objects.filter(pk=operation.canary_run, state="succeeded").exists())
    page.click("#bulk-items a.run-id >> nth=0")
    page.wait_for_selector("#run-made-by")
    assert "mended" in (page.text_content("#run-made-by") or "")
    assert "run.made_by_bulk" in (page.text_content("#run-audit") or "")
    assert ann.wrong == []


def test_an_operation_is_aborted_in_the_middle_by_a_double_click(browser: Browser, stack: Stack) -> None:
    buried(COUNT)
    builders.make_user("ann", is_staff=True, is_superuser=True)
    stack.worker()
    ann = Watched(browser, stack.web().url, viewport={"width": 390, "height": 844}).sign_in("ann")
    page = ann.page
    page.goto("/admin/bulk-plan/?kind=discard&source=letters&state_is=open")
    page.fill("#id_reason", "of no use")
    page.fill("#id_pace", "300")
    page.dblclick("#plan-start")
    page.wait_for_selector("#bulk")
    eventually(lambda: int(page.text_content("[data-number=done]") or 0) > 3)

    page.dblclick("#abort-form button")

    page.wait_for_selector("#bulk-state .pill:text-is('aborted')")
    operation = BulkOperation.objects.get()
    assert 0 < operation.done_count < COUNT
    assert DeadLetter.objects.filter(state="discarded").count() == operation.done_count
    assert AuditEntry.objects.filter(action="bulk.abort").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert ann.wrong == []


def test_a_double_click_requeues_a_single_letter_once(browser: Browser, stack: Stack) -> None:
    buried(1)
    builders.make_user("ann", is_staff=True, is_superuser=True)
    ann = Watched(browser, stack.web().url).sign_in("ann")
    letter = DeadLetter.objects.get()
    ann.page.goto(f"/admin/workers/deadletter/{letter.pk}/change/")
    ann.page.click("#requeue-plan")
    ann.page.fill("#id_reason", "again")

    ann.page.dblclick("#plan-start")

    ann.page.wait_for_selector("#run-page")
    assert Run.objects.filter(retry_of__isnull=False).count() == 1
    assert BulkOperation.objects.count() == 1
    assert ann.wrong == []


def test_limits_of_an_input_that_is_not_to_be_changed_hold_up_nothing(browser: Browser, stack: Stack) -> None:
    account = builders.make_account("default", limit=10**9)
    run = builders.make_run("failed", account=account, agent="probe.sleep", input={"seconds": -1})
    builders.make_user("ann", is_staff=True, is_superuser=True)
    ann = Watched(browser, stack.web().url).sign_in("ann")
    page = ann.page
    page.goto(f"/admin/requeue-plan/?run={run.pk}")
    assert page.is_hidden("#plan-input")
    page.check("#id_edit_input")
    assert page.is_enabled("#plan-input")
    page.uncheck("#id_edit_input")
    page.fill("#id_reason", "again")

    page.click("#plan-start")

    page.wait_for_url(re.compile(r"/bulkoperation/[^/]+/change/"))  # the agent does not take it, and that is told
    assert BulkOperation.objects.get().options.get("edit") is None
    assert ann.wrong == []
