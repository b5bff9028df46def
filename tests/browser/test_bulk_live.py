"""The page of a bulk operation while it is looked at: its age, a server that is away, and what its end leaves alone."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests import builders, bulk_work
from tests.browser import seeing
from tests.browser.conftest import Watched
from tests.probes import Stack

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(120)]
ENDED = "#bulk:not([data-progress])"
SELECT = """
() => document.getSelection().selectAllChildren(document.querySelector("#bulk-items th"))
"""


@pytest.fixture
def operation(stack: Stack) -> Any:
    builders.make_user("root", is_staff=True, is_superuser=True)
    bulk_work.letters_of(bulk_work.make_purse(), 3)
    return bulk_work.started(reason="repaired")


@pytest.fixture
def watched(browser: Browser, stack: Stack, operation: Any) -> Iterator[Watched]:
    made = seeing.begin(browser, stack.web().url).sign_in("root")
    made.page.goto(f"/admin/workers/bulkoperation/{operation.pk}/change/")
    yield made
    assert made.wrong == []


def await_line(page: Page, part: str) -> None:
    """Wait until the visible line says something."""
    page.wait_for_function("(part) => document.querySelector('#bulk-line').innerText.includes(part)", arg=part)


def await_final(page: Page) -> None:
    """Wait until the numbers are those of the end."""
    page.wait_for_function("() => document.querySelector('[data-number=done]').textContent === '3'")
    await_line(page, "It is over")
    page.evaluate(seeing.FRAME)


def test_a_server_that_is_away_is_told_to_everybody(watched: Watched, operation: Any) -> None:
    page = watched.page
    await_line(page, "Data is ")
    page.route("**/progress.json", lambda route: route.abort())
    await_line(page, "The server does not answer")
    assert page.locator("#bulk-line [role=status]").text_content() == "The server does not answer"

    page.route("**/progress.json", lambda route: route.fulfill(status=503, body="{}"))
    await_line(page, "The server answers with an error, 503")
    page.unroute("**/progress.json")
    bulk_work.worked(operation)
    page.wait_for_selector(ENDED)
    watched.wrong.clear()


def test_who_is_signed_out_is_told_so(watched: Watched) -> None:
    page = watched.page
    watched.context.clear_cookies()

    await_line(page, "You are signed out")
    asked = page.evaluate("window.asked")
    seeing.set_hidden(page, True)
    seeing.set_hidden(page, False)
    assert page.evaluate("window.asked") == asked
    assert page.locator("#bulk").is_visible()


def test_the_end_waits_for_what_is_selected(watched: Watched, operation: Any) -> None:
    page = watched.page
    page.mouse.move(0, 0)
    page.evaluate("window.isSame = true")
    page.evaluate(SELECT)

    bulk_work.worked(operation)
    await_final(page)
    assert page.evaluate("document.getSelection().toString()").strip() == "1"
    assert page.locator("#abort-form").is_visible()

    page.evaluate("document.getSelection().removeAllRanges()")
    page.wait_for_selector(ENDED)
    assert page.locator("#bulk-items .pill").first.text_content() == "done"
    assert page.evaluate("window.isSame")  # drawn, not loaded


def test_the_end_waits_for_what_is_pointed_at_and_typed(watched: Watched, operation: Any) -> None:
    page = watched.page
    page.fill("#abort-reason", "a long story")
    page.hover("#abort-form button")
    before = page.locator("#abort-form button").bounding_box()

    bulk_work.worked(operation)
    await_final(page)
    assert page.locator("#abort-form button").bounding_box() == before
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.evaluate(seeing.FRAME)
    assert page.input_value("#abort-reason") == "a long story"
    page.click("#bulk-line a")
    page.wait_for_selector(ENDED)


def test_a_pointer_that_rests_on_the_items_holds_nothing(watched: Watched, operation: Any) -> None:
    page = watched.page
    page.hover("#bulk-items td >> nth=1")

    bulk_work.worked(operation)

    page.wait_for_selector(ENDED)
    assert page.locator("#bulk-line").inner_text() == "It is over; its numbers are final."
