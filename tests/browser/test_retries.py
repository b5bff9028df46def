"""Retries on a run's page: the text of a failed attempt goes, that of the next one stays, however one came to look."""

from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from runs.models import Run
from tests import builders
from tests.browser.conftest import Watched
from tests.browser.test_run_live import WAIT_MS, await_state, kinds, submit
from tests.probes import Stack, WebServer

pytestmark = [pytest.mark.browser, pytest.mark.process]
FIRST, SECOND = (f"This is what attempt {number} says. " for number in (1, 2))


@pytest.fixture
def web(stack: Stack) -> WebServer:
    builders.make_account("default")
    builders.make_user("root", is_staff=True, is_superuser=True)
    return stack.web()


@pytest.fixture
def worker(stack: Stack, web: WebServer) -> Any:
    return stack.worker()


def await_output(page: Page, text: str) -> None:
    page.wait_for_function("text => document.querySelector('#output').textContent === text", arg=text, timeout=WAIT_MS)


def await_text(page: Page, selector: str, part: str) -> None:
    page.wait_for_function(
        "([selector, part]) => document.querySelector(selector)?.textContent.includes(part)",
        arg=[selector, part],
        timeout=WAIT_MS,
    )


def crossed_out(page: Page) -> list[bool]:
    """Return, for each row of output in the timeline, whether it is shown as void."""
    rows = page.locator("#timeline li[data-kind='output.delta']")
    return [bool(void) for void in rows.evaluate_all("rows => rows.map((row) => row.matches('.event-void'))")]


def sees_the_second_attempt_alone(page: Page) -> None:
    await_state(page, "succeeded")
    await_output(page, SECOND)
    await_text(page, "#live-status", "The run has ended; this is its whole log.")
    assert crossed_out(page) == [True, False]
    assert kinds(page) == [
        "run.queued", "run.started", "output.delta", "run.retrying",
        "run.queued", "run.started", "output.rollback", "output.delta", "run.succeeded",
    ]  # fmt: skip


def test_the_text_of_a_failed_attempt_goes_live_for_who_comes_later_and_after_a_reload(
    browser: Browser, web: WebServer, worker: Any
) -> None:
    watched, late = (Watched(browser, web.url).sign_in("root") for _ in range(2))
    page = watched.page

    run = submit(page, "probe.retryable", fails=1, after=3, seconds=3)
    await_output(page, FIRST)
    await_state(page, "scheduled")
    await_text(page, "#run-when", "not before")
    await_text(page, "#run-head", "2 of 3")
    await_text(page, "#timeline", "Attempt 2 of 3 begins not before")
    await_text(page, "#timeline", "provider_transient: no answer on attempt 1")
    assert page.locator("#output").text_content() == FIRST  # it counts until the next attempt begins
    await_text(page, "#run-state", "running")
    late.page.goto(f"/admin/runs/run/{run.pk}/change/")
    await_output(late.page, SECOND)

    for one in (page, late.page):
        sees_the_second_attempt_alone(one)
    page.reload()
    sees_the_second_attempt_alone(page)
    assert (watched.wrong, late.wrong) == ([], [])


def test_the_text_of_a_failed_attempt_goes_for_who_lost_the_connection_in_between(
    browser: Browser, web: WebServer, worker: Any
) -> None:
    page = Watched(browser, web.url).sign_in("root").page
    submit(page, "probe.retryable", fails=1, after=1, seconds=4)
    await_output(page, FIRST)

    web.restart()

    sees_the_second_attempt_alone(page)


def test_a_run_behind_its_session_says_what_it_waits_for(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page
    page.goto("/admin/submit/?agent=probe.sleep")
    page.fill("[name='input.seconds']", "60")
    page.fill("[name=session]", "s")
    page.click("#submit-form button[type=submit]")
    await_state(page, "running")
    holder = Run.objects.get()

    page.goto("/admin/submit/?agent=probe.retryable")
    page.fill("[name='input.fails']", "0")
    page.fill("[name=session]", "s")
    page.click("details summary:has-text('Options')")
    page.select_option("[name=on_busy]", "enqueue")
    page.fill("[name=max_attempts]", "5")
    page.click("#submit-form button[type=submit]")
    await_state(page, "scheduled")
    await_text(page, "#run-when", "waiting for its session")
    await_text(page, "#run-head", "1 of 5")
    await_text(page, "#timeline", "Begins when its session s is free.")
    link = page.locator("#run-links a").first
    assert link.get_attribute("href") == f"/admin/runs/run/{holder.pk}/change/"

    here = page.url
    link.click()
    page.click("#run-cancel button")
    await_state(page, "cancelled")
    page.goto(here)
    await_state(page, "succeeded")
    await_output(page, FIRST)
    assert page.locator("#run-when").text_content() == ""
    assert watched.wrong == []
