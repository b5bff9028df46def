"""The page of one run in a real browser: its reason, its filter, links to events, rows that stay where they are."""

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, Response

from quotas.models import Account
from quotas.prices import install_default_prices
from runs.models import Run
from tests import builders, working
from tests.browser import seeing
from tests.browser.conftest import Watched
from tests.browser.test_run_live import await_state, submit
from tests.probes import Stack, WebServer

pytestmark = [pytest.mark.browser, pytest.mark.process]
TALKER = str(Path(__file__).with_name("talker.py"))
WAIT_MS = 30_000


@pytest.fixture
def web(stack: Stack) -> WebServer:
    install_default_prices()
    builders.make_account("default")
    builders.make_user("root", is_staff=True, is_superuser=True)
    return stack.web(AGENTOPS_APPS=TALKER)


def await_text(page: Page, selector: str, text: str) -> None:
    page.wait_for_function(
        "([selector, text]) => document.querySelector(selector).textContent.includes(text)",
        arg=[selector, text],
        timeout=WAIT_MS,
    )


def open_page(browser: Browser, web: WebServer, run: Run, **options: Any) -> Watched:
    watched = Watched(browser, web.url, **options).sign_in("root")
    watched.page.goto(f"/admin/runs/run/{run.pk}/change/")
    watched.page.wait_for_selector("#run-page")
    return watched


def test_the_reason_lives_with_the_run(browser: Browser, web: WebServer, stack: Stack) -> None:
    run = working.submit(Account.objects.get(name="default"), agent="probe.sleep", input={"seconds": 3})
    watched = open_page(browser, web, run)
    page = watched.page
    await_text(page, "#run-why", "No worker is alive, and none ever was. It fails at ")

    page.select_option("#priority", "high")
    page.click("#run-priority button")
    await_text(page, "#run-head", "high")
    page.mouse.move(0, 0)
    stack.worker()

    await_text(page, "#run-why", "It is moving.")
    await_text(page, "#run-head [data-tick=lease]", " s")
    await_state(page, "succeeded")
    await_text(page, "#run-why", "It has ended.")
    assert not page.is_visible("#run-priority")
    assert "Its priority was changed from normal to high." in page.locator("#timeline").text_content()
    assert watched.wrong == []


@pytest.mark.parametrize(
    "options",
    [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}],
    ids=["light", "dark", "narrow"],
)
def test_events_are_filtered_linked_and_reached_by_the_keyboard(
    browser: Browser, web: WebServer, stack: Stack, options: Any
) -> None:
    stack.worker(AGENTOPS_APPS=TALKER)
    watched = Watched(browser, web.url, **options).sign_in("root")
    page = watched.page
    run = submit(page, "probe.emit", count=5, bytes=5, seconds=1)
    await_state(page, "succeeded")
    page.wait_for_function("() => document.querySelectorAll('#timeline li').length === 8", timeout=WAIT_MS)

    page.select_option("#kinds", "probe.tick")
    assert page.locator("#timeline li:visible").count() == 5
    page.focus("#timeline-box")
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.dataset.id") == "2-2"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    await_text(page, "#timeline-note", "Link to the event 2-3")
    assert page.url.endswith(f"/{run.pk}/change/#event-2-3")

    page.goto("/admin/")
    page.goto(f"/admin/runs/run/{run.pk}/change/#event-2-3")
    page.wait_for_selector(".event-named", timeout=WAIT_MS)
    assert page.locator(".event-named").get_attribute("data-id") == "2-3"
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert watched.wrong == []


def test_rows_under_the_pointer_stay_until_it_leaves(browser: Browser, web: WebServer, stack: Stack) -> None:
    run = working.submit(Account.objects.get(name="default"), agent="probe.sleep", input={"seconds": 1})
    watched = open_page(browser, web, run)
    page = watched.page
    rows = "#run-transitions tr"
    assert page.locator(rows).count() == 1
    page.hover("#run-transitions td")
    before = page.locator("#run-transitions").bounding_box()

    stack.worker()
    await_state(page, "succeeded")
    await_text(page, "#run-why", "It has ended.")

    assert (page.locator(rows).count(), page.locator("#run-transitions").bounding_box()) == (1, before)
    assert page.is_visible("#run-cancel")
    page.mouse.move(0, 0)
    page.wait_for_function("() => document.querySelectorAll('#run-transitions tr').length === 3", timeout=WAIT_MS)
    page.wait_for_selector("#run-cancel", state="hidden", timeout=WAIT_MS)
    page.wait_for_selector("#run-requeue", timeout=WAIT_MS)
    assert watched.wrong == []


def test_two_attempts_are_chosen_and_compared(browser: Browser, web: WebServer, stack: Stack) -> None:
    stack.worker()
    account = Account.objects.get(name="default")
    run = working.submit(account, agent="probe.retryable", input={"fails": 2, "after": 0.1}, max_attempts=3)
    watched = open_page(browser, web, run)
    page = watched.page
    await_state(page, "succeeded")
    page.mouse.move(0, 0)
    page.wait_for_selector("#compare:visible", timeout=WAIT_MS)
    await_text(page, "#compare-right", "succeeded")

    page.select_option("#compare-b", index=1)
    page.select_option("#compare-a", index=0)
    page.click(".compare-form button")
    page.wait_for_url("**a=*")

    assert page.locator("#run-compare tr.differs").first.text_content().startswith("Message")
    assert "no answer on attempt 2" in page.locator("#run-compare").text_content()
    assert watched.wrong == []


def test_everybody_is_told_how_old_the_facts_are(browser: Browser, web: WebServer) -> None:
    builders.make_operator("viewer", permissions=["view_run"])
    run = builders.make_run("running", account=Account.objects.get(name="default"))
    lease = timezone.now() + dt.timedelta(seconds=40)
    Run.objects.filter(pk=run.pk).update(lease_expires_at=lease)
    watched = Watched(browser, web.url).sign_in("viewer")
    page = watched.page
    page.clock.install()
    with page.expect_response("**/facts.json"):
        page.goto(f"/admin/runs/run/{run.pk}/change/")
    await_text(page, "#run-page .live-line", "Data is ")

    page.route("**/facts.json", lambda route: route.abort())
    page.clock.run_for(60_000)
    await_text(page, "#run-page .live-line .quiet", "The server does not answer")
    page.clock.run_for(1_000)
    await_text(page, "#run-head [data-tick=lease]", "not known")
    assert page.locator("#run-page .live-line [role=status]").text_content() == "The server does not answer"

    page.unroute("**/facts.json")
    watched.context.clear_cookies()
    page.clock.run_for(60_000)
    await_text(page, "#run-page .live-line .quiet", "You are signed out")


def test_the_head_waits_for_whoever_is_about_to_cancel(browser: Browser, web: WebServer) -> None:
    run = builders.make_run("queued", account=Account.objects.get(name="default"))
    watched = open_page(browser, web, run)
    page = watched.page
    page.hover("#run-cancel button")
    before = page.locator("#run-cancel button").bounding_box()
    head, why = (page.locator(one).text_content() for one in ("#run-head", "#run-why"))
    Run.objects.filter(pk=run.pk).update(priority="high", worker="w" * 200)

    def is_news(response: Response) -> bool:
        return "facts.json" in response.url and response.json()["priority"] == "high"

    with page.expect_response(is_news):
        pass
    page.evaluate(seeing.FRAME)
    assert page.locator("#run-cancel button").bounding_box() == before
    assert [page.locator(one).text_content() for one in ("#run-head", "#run-why")] == [head, why]
    page.mouse.move(0, 0)
    await_text(page, "#run-head", "high")
    assert watched.wrong == []


BOX = "document.querySelector('#timeline-box')"
AT_END = f"() => {BOX}.scrollHeight - {BOX}.clientHeight - {BOX}.scrollTop <= 1"


def swipe(page: Page) -> None:
    """Draw the timeline down with a finger."""
    box = page.locator("#timeline-box").bounding_box()
    touch = page.context.new_cdp_session(page)
    x, y = box["x"] + 60, box["y"] + 60
    touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 16):
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y + 12 * step}]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def page_up(page: Page) -> None:
    page.focus("#timeline-box")
    page.keyboard.press("PageUp")


def drag(page: Page) -> None:
    """What drawing the bar comes to."""
    page.evaluate(f"{BOX}.scrollTop -= 150")


@pytest.mark.parametrize("leave", [page_up, swipe, drag])
def test_following_ends_however_the_end_is_left(browser: Browser, web: WebServer, stack: Stack, leave: Any) -> None:
    stack.worker(AGENTOPS_APPS=TALKER)
    watched = Watched(browser, web.url, has_touch=True).sign_in("root")
    page = watched.page
    submit(page, "probe.emit", count=1000, bytes=5, seconds=50)
    page.mouse.move(0, 0)
    page.wait_for_function("() => document.querySelectorAll('#timeline li').length > 60", timeout=WAIT_MS)
    page.locator("#timeline-box").scroll_into_view_if_needed()
    page.wait_for_function(AT_END)
    assert page.get_attribute("#follow", "aria-pressed") == "true"  # the script's own scrolls end nothing

    leave(page)
    page.wait_for_selector("#follow[aria-pressed=false]")
    page.evaluate("document.activeElement.blur()")
    page.wait_for_function(f"() => !({AT_END})()")
    rows = page.locator("#timeline li").count()
    page.wait_for_function(
        "(rows) => document.querySelectorAll('#timeline li').length > rows + 20", arg=rows, timeout=WAIT_MS
    )
    assert not page.evaluate(AT_END)

    page.evaluate(f"{BOX}.scrollTop = {BOX}.scrollHeight")
    page.wait_for_selector("#follow[aria-pressed=true]")
    assert watched.wrong == []
