"""Two operators in two browsers press requeue on one dead letter at the same moment: one new run."""

import pytest
from playwright.sync_api import Browser

from quotas.models import Hold
from runs.models import Run
from tests import builders
from tests.browser.conftest import Watched
from tests.probes import Stack, eventually
from workers.models import DeadLetter

pytestmark = [pytest.mark.browser, pytest.mark.process]
PRESS_AT = """
(at) => new Promise((done) => {
  setTimeout(() => { document.querySelector("#plan-start").click(); done(); }, at - Date.now());
})
"""
AHEAD_MS = 600  # both pages are told the moment before it comes


def test_requeue_from_two_browsers_at_once_makes_one_run(browser: Browser, stack: Stack) -> None:
    run = builders.make_run("failed", account=builders.make_account("default"), agent="probe.ret", input={"value": 1})
    letter = builders.make_dead_letter(run)
    for name in ("ann", "bob"):
        builders.make_user(name, is_staff=True, is_superuser=True)
    web = stack.web()
    people = [Watched(browser, web.url).sign_in(name) for name in ("ann", "bob")]
    for one in people:
        one.page.goto(f"/admin/workers/deadletter/{letter.pk}/change/")
        one.page.click("#requeue-plan")
        one.page.fill("#id_reason", "mended")

    at = people[0].page.evaluate("Date.now()") + AHEAD_MS
    for one in people:
        # Not awaited by the page: the second is told before the first has pressed.
        one.page.evaluate(f"(at) => {{ void ({PRESS_AT})(at); }}", at)
    told = [one.page.wait_for_selector(".messagelist li").text_content() for one in people]

    assert sorted(text.strip().split(":")[0] for text in told) == ["Not requeued", "Requeued"]
    assert [one.wrong for one in people] == [[], []]
    new = Run.objects.exclude(pk=run.pk).get()
    assert (new.retry_of_id, Run.objects.get(pk=run.pk).retried_by) == (run.pk, new.pk)
    assert DeadLetter.objects.get().state == "requeued"
    assert Hold.objects.filter(run_id=new.pk).count() == 1

    stack.worker()
    eventually(lambda: Run.objects.get(pk=new.pk, state="succeeded"), timeout=30)
    winner = next(one for one, text in zip(people, told, strict=True) if text.strip().startswith("Requeued"))
    winner.page.wait_for_selector("#run-page")
    assert winner.page.locator("#run-links").text_content().strip().startswith("Requeued from")
