"""Keyboard and command palette: pages reached, rows selected, nothing typed taken away, single keys switched off."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests import builders
from tests.browser import walking
from tests.browser.conftest import Watched
from tests.probes import Stack

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(120)]
RUNS, LETTERS = "/admin/runs/run/", "/admin/workers/deadletter/"


@pytest.fixture
def watched(browser: Browser, stack: Stack) -> Iterator[Watched]:
    builders.make_user("root", is_staff=True, is_superuser=True)
    made = walking.begin(browser, stack.web().url).sign_in("root")
    made.page.wait_for_selector("#keys-open:visible")  # its script has begun
    yield made
    assert made.wrong == []


def selected(page: Page) -> list[bool]:
    return page.locator("input.action-select").evaluate_all("boxes => boxes.map((box) => box.checked)")


def test_g_and_a_letter_go_to_the_pages(watched: Watched) -> None:
    page = watched.page
    goes = page.evaluate(
        "JSON.parse(document.getElementById('console-shell').textContent).pages.filter(one => one.key)"
    )

    for go in goes:
        with page.expect_navigation(url=f"**{go['address']}"):
            page.keyboard.press("g")
            page.keyboard.press(go["key"])

    assert {"o", "a", "r", "d", "c", "b", "w", "q"} <= {go["key"] for go in goes}


def test_rows_are_walked_selected_and_opened_without_a_mouse(watched: Watched) -> None:
    account = builders.make_account("default")
    letters = [builders.make_dead_letter(builders.make_run("failed", account=account)) for _ in range(5)]
    page = watched.page
    page.goto(LETTERS)

    page.keyboard.press("j")
    page.keyboard.press("x")
    for key in ("j", "j", "Shift+X"):
        page.keyboard.press(key)
    assert selected(page) == [True, True, True, False, False]
    assert page.locator(".action-counter").text_content().startswith("3 of 5")
    page.keyboard.press("k")
    page.keyboard.press("x")
    assert selected(page) == [True, False, True, False, False]

    page.keyboard.press("Enter")
    page.wait_for_url(f"**{LETTERS}{letters[3].pk}/change/")


def test_f_follows_on_the_page_of_a_run(watched: Watched) -> None:
    page = watched.page
    run = builders.make_run("queued", account=builders.make_account("default"))
    page.goto(f"{RUNS}{run.pk}/change/")

    page.keyboard.press("f")
    assert page.get_attribute("#follow", "aria-pressed") == "false"


def test_what_is_typed_into_a_field_is_typed(watched: Watched) -> None:
    page = watched.page
    page.goto(RUNS)

    page.keyboard.press("/")
    page.keyboard.type("grjkx?/f")

    assert page.input_value("#searchbar") == "grjkx?/f"
    assert page.url.endswith(RUNS)


def test_the_palette_finds_pages_and_runs_by_keyboard_alone(watched: Watched) -> None:
    run = builders.make_run("succeeded", account=builders.make_account("default"), agent=f"</script>{'x' * 20}")
    page = watched.page

    page.keyboard.press("Control+k")
    page.keyboard.type("ddltr")
    assert page.locator("#palette-list li[aria-selected=true] span").text_content() == "Dead letters"
    assert walking.examine(watched) == []
    page.set_viewport_size(walking.DESKTOP)
    page.keyboard.press("Escape")
    assert not page.locator("#palette").is_visible()

    page.keyboard.press("Control+k")
    page.keyboard.type(str(run.pk))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{RUNS}{run.pk}/change/")
    page.goto("/admin/")
    page.keyboard.press("Control+k")
    first = page.locator("#palette-list li").first
    assert first.locator("small").text_content() == "Recent"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{RUNS}{run.pk}/change/")

    page.click("#logout-form button")
    page.wait_for_selector("h1:has-text('Logged out')")
    assert page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('agentops.recent'))") == []


def test_single_keys_can_be_switched_off_and_the_palette_stays(watched: Watched) -> None:
    page = watched.page

    page.keyboard.press("?")
    assert walking.examine(watched) == []
    page.set_viewport_size(walking.DESKTOP)
    page.uncheck("#single-keys")
    page.keyboard.press("Escape")
    page.reload()
    page.keyboard.press("?")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.keyboard.press("Control+k")

    assert page.locator("#palette").is_visible()
    assert page.locator("#keys-help").count() == 0
    assert page.url.endswith("/admin/")
