"""The overview in Chromium: charts without a violation, their tables, dark, pause, and problems that come and go."""

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, Route

from quotas.models import Account
from tests import builders
from tests.browser import seeing
from tests.browser.walking import PHONE, begin
from tests.probes import Stack, WebServer, eventually

pytestmark = pytest.mark.browser
WAIT_MS = 20000
# Points that are not transparent, and the colour most of them have.
DRAWN = """
() => [...document.querySelectorAll(".chart canvas")].map((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Map();
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] > 200) {
      const colour = `${data[at]},${data[at + 1]},${data[at + 2]}`;
      seen.set(colour, (seen.get(colour) || 0) + 1);
    }
  }
  return [...seen.entries()].sort((one, other) => other[1] - one[1]).slice(0, 8).map(([colour]) => colour);
})
"""


@pytest.fixture
def web(stack: Stack) -> WebServer:
    builders.make_user("root", is_staff=True, is_superuser=True)
    return stack.web()


def make_ended(account: Account, count: int = 3) -> None:
    for _ in range(count):
        builders.make_run("succeeded", account=account, queued_at=timezone.now())


def test_charts_draw_in_light_and_dark_with_their_tables(browser: Browser, web: Any, account: Account) -> None:
    make_ended(account)
    watched = begin(browser, web.url).sign_in("root")
    page = watched.page
    page.wait_for_function("() => document.querySelectorAll('.chart canvas').length === 3", timeout=WAIT_MS)
    light = page.evaluate(DRAWN)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"(before) => JSON.stringify(({DRAWN})()) !== before", arg=str(light), timeout=WAIT_MS)
    dark = page.evaluate(DRAWN)
    page.click("#chart-outcomes summary")
    rows = page.locator("#chart-outcomes tbody tr")
    page.set_viewport_size(PHONE)
    page.wait_for_function("() => document.querySelector('.uplot').clientWidth < 390", timeout=WAIT_MS)

    assert all(light)
    assert all(dark)
    assert [set(one) != set(other) for one, other in zip(light, dark, strict=True)] == [True] * 3
    assert rows.count() == 60
    assert "3" in [rows.nth(at).locator("td").first.text_content() for at in range(3)]
    assert page.evaluate("() => window.blocked") == []
    assert watched.wrong == []


def test_a_chart_of_nothing_and_one_without_an_answer_say_so(browser: Browser, web: Any) -> None:
    watched = begin(browser, web.url).sign_in("root")
    page = watched.page
    note = page.locator("#chart-outcomes .chart-note")
    page.wait_for_function(
        "() => document.querySelector('.chart-note').textContent === 'Nothing ended in the last hour.'", timeout=WAIT_MS
    )
    page.route("**/charts.json", lambda route: route.fulfill(status=503, body="{}"))
    page.click("#overview-pause")
    page.click("#overview-pause")
    page.wait_for_function(
        "() => document.querySelector('.chart-note').textContent.includes('does not answer')", timeout=WAIT_MS
    )

    assert note.is_visible()
    assert page.evaluate("() => window.blocked") == []


def test_a_pause_holds_the_numbers_and_the_age_goes_on(browser: Browser, web: Any, account: Account) -> None:
    watched = begin(browser, web.url).sign_in("root")
    page = watched.page
    page.wait_for_function("() => document.getElementById('overview-age').textContent.includes('old')")
    page.click("#overview-pause")
    builders.make_run(account=account)
    page.wait_for_function(
        "() => /([4-9]|\\d\\d) s old. Updates are paused/.test(document.querySelector('#overview-age').textContent)",
        timeout=WAIT_MS,
    )
    held = page.locator("[data-number=queued_total]").text_content()
    page.click("#overview-pause")
    page.wait_for_function(
        "() => document.querySelector('[data-number=queued_total]').textContent === '1'", timeout=WAIT_MS
    )

    assert held == "0"
    assert watched.wrong == []


def test_problems_come_and_go_without_a_reload(browser: Browser, web: Any, account: Account) -> None:
    watched = begin(browser, web.url).sign_in("root")
    page = watched.page
    page.wait_for_selector("[data-code=no_worker]", timeout=WAIT_MS)
    page.mouse.move(0, 0)  # what is under the pointer stays
    builders.make_worker(heartbeat_at=timezone.now() + dt.timedelta(hours=1))
    page.wait_for_selector("[data-code=no_worker]", state="detached", timeout=WAIT_MS)

    assert watched.wrong == []


SWITCH = "#controls form.switch button"
STARTS = {
    "pointer": lambda page: page.hover(SWITCH),
    "focus": lambda page: page.focus(SWITCH),
}


def read_parts(page: Page) -> str:
    """Have the lower part read now, without a pointer or a focus that moves; returns it, once it may be drawn."""
    with page.expect_response("**/parts.json") as answer:
        seeing.set_hidden(page, True)
        seeing.set_hidden(page, False)
    html: str = answer.value.json()["html"]
    page.evaluate(seeing.FRAME)
    return html


@pytest.mark.parametrize("start", STARTS)
def test_buttons_stay_where_they_are_while_somebody_is_about_to_press(browser: Browser, web: Any, start: str) -> None:
    watched = begin(browser, web.url).sign_in("root")
    page = watched.page
    page.wait_for_selector("[data-code=no_worker]", timeout=WAIT_MS)
    page.click("#controls summary >> nth=0")
    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    STARTS[start](page)
    # By the page, not by the window: the browser itself scrolls what is anchored.
    place = f"() => document.querySelector('{SWITCH}').getBoundingClientRect().top + window.scrollY"
    before = page.evaluate(place)

    for _ in range(3):
        builders.make_worker(heartbeat_at=timezone.now() + dt.timedelta(hours=1))
    page.wait_for_function(
        "() => document.querySelector('[data-number=workers_alive]').textContent === '3'", timeout=WAIT_MS
    )
    eventually(lambda: "overview-workers" in read_parts(page))  # the server reads them anew each five seconds
    assert page.evaluate(place) == before
    assert page.locator("[data-code=no_worker]").is_visible()

    page.evaluate("document.activeElement.blur()")
    page.mouse.move(0, 0)
    page.wait_for_selector("[data-code=no_worker]", state="detached", timeout=WAIT_MS)
    page.wait_for_selector("#overview-workers tbody tr", timeout=WAIT_MS)
    assert watched.wrong == []


@pytest.mark.parametrize("what", ["selection", "focus"])
def test_what_is_gained_while_the_answer_is_under_way_is_kept(browser: Browser, web: Any, what: str) -> None:
    builders.make_worker(name="worker-of-old")
    watched = begin(browser, web.url).sign_in("root")
    page = watched.page
    page.mouse.move(0, 0)
    held: list[Route] = []
    page.route("**/parts.json", lambda route: held.append(route))  # noqa: PLW0108  Playwright marks the function it is given
    seeing.set_hidden(page, True)
    with page.expect_request("**/parts.json"):
        seeing.set_hidden(page, False)
    link = "#overview-workers a"
    page.evaluate(
        "([what, link]) => { const found = document.querySelector(link); window.found = found;"
        " what === 'focus' ? found.focus() : document.getSelection().selectAllChildren(found); }",
        [what, link],
    )

    with page.expect_response("**/parts.json"):
        held[0].continue_()
    page.evaluate(seeing.FRAME)
    assert page.evaluate("window.found.isConnected")

    page.evaluate("document.getSelection().removeAllRanges(), document.activeElement.blur()")
    page.wait_for_function("() => !window.found.isConnected", timeout=WAIT_MS)
    assert watched.wrong == []
