"""The list of runs while it is looked at: changes in place, nothing moved, nothing at all while rows are selected."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from quotas.models import Account
from runs.models import Run
from tests import builders
from tests.browser import walking
from tests.browser.conftest import Watched
from tests.probes import Stack

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(120)]
RUNS = "/admin/runs/run/"
BOX = "input.made-box"
STATE = "document.querySelector('[data-row-id] [data-state]').textContent"
COUNT_READS = """
window.reads = 0;
const read = window.fetch;
window.fetch = (...asked) => { window.reads += 1; return read(...asked); };
"""


@pytest.fixture
def account(stack: Stack) -> Account:
    builders.make_user("root", is_staff=True, is_superuser=True)
    return builders.make_account("default")


@pytest.fixture
def watched(browser: Browser, stack: Stack, account: Account) -> Iterator[Watched]:
    for _ in range(3):
        builders.make_run("queued", account=account)
    made = walking.begin(browser, stack.web().url)
    made.context.add_init_script(COUNT_READS)
    made.sign_in("root")
    made.page.goto(RUNS)
    yield made
    assert made.wrong == []


def places(page: Page) -> list[list[object]]:
    """Return each row's id and where it stands."""
    return page.locator("[data-row-id]").evaluate_all(
        "rows => rows.map((row) => [row.dataset.rowId, row.getBoundingClientRect().top])"
    )


def add_box(page: Page) -> None:
    """Put a check box into the second row, as lists with acts on selected rows have."""
    page.evaluate(
        """() => {
          const box = Object.assign(document.createElement("input"), { type: "checkbox", className: "made-box" });
          document.querySelectorAll("[data-row-id] td")[9].append(box);
        }"""
    )


def says(part: str) -> str:
    return f"() => document.querySelector('.live-line .quiet').textContent.includes('{part}')"


def end_first(page: Page) -> None:
    """End the run of the list's first row."""
    Run.objects.filter(pk=places(page)[0][0]).update(state="cancelled")


def test_a_row_changes_in_place_and_new_ones_are_announced_not_inserted(watched: Watched, account: Account) -> None:
    page = watched.page
    before = places(page)

    end_first(page)
    for _ in range(2):
        builders.make_run("queued", account=account)
    page.wait_for_function(f"() => {STATE} === 'cancelled'")
    page.wait_for_selector(".live-line .live-new:visible")

    assert places(page) == before
    assert page.locator(".live-new").text_content().strip() == "2 new"
    assert page.locator(".live-line [role=status]").text_content() == "2 new"
    page.click(".live-new a")
    page.wait_for_function("() => document.querySelectorAll('[data-row-id]').length === 5")


def test_nothing_is_read_while_a_row_is_selected_or_updates_are_paused(watched: Watched) -> None:
    page = watched.page
    add_box(page)
    said = page.locator(".live-line .quiet")

    page.check(BOX)
    end_first(page)
    page.wait_for_function(says("1 row is selected"))
    page.wait_for_function("() => /is (9|1\\d) s old/.test(document.querySelector('.live-line .quiet').textContent)")
    assert (page.evaluate("window.reads"), page.evaluate(STATE)) == (0, "queued")

    page.click(".live-line button")
    page.uncheck(BOX)
    page.wait_for_function(says("paused"))
    assert page.evaluate("window.reads") == 0
    page.click(".live-line button")
    page.wait_for_function(f"() => {STATE} === 'cancelled'")
    assert "is 0 s old" in said.text_content() or "is 1 s old" in said.text_content()


def test_an_answer_that_comes_after_a_row_was_selected_changes_nothing(watched: Watched) -> None:
    page = watched.page
    held: list[Route] = []
    add_box(page)
    page.route("**/rows.json*", lambda route: held.append(route))  # noqa: PLW0108  Playwright marks the function it is given

    end_first(page)
    page.wait_for_function("() => window.reads === 1")
    page.check(BOX)
    held[0].continue_()
    page.wait_for_function(says("is 0 s old"))

    assert page.evaluate(STATE) == "queued"


def test_a_server_that_is_away_is_told_by_the_age_of_the_data(watched: Watched, stack: Stack) -> None:
    page = watched.page
    page.route("**/rows.json*", lambda route: route.abort())

    page.wait_for_function(says("does not answer"))
    watched.wrong.clear()
    page.unroute("**/rows.json*")
    end_first(page)
    page.wait_for_function(f"() => {STATE} === 'cancelled'")
    watched.wrong.clear()
