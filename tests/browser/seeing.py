"""Looking away from a page and at it again, and counting what it asks for meanwhile."""

from typing import Any

from playwright.sync_api import Browser, Page

from tests.browser import walking
from tests.browser.conftest import Watched

COUNT = """
window.asked = 0;
window.sockets = new Set();
const read = window.fetch;
window.fetch = (...asked) => { window.asked += 1; return read(...asked); };
window.WebSocket = class extends window.WebSocket {
  constructor(...asked) {
    super(...asked);
    window.asked += 1;
    window.sockets.add(this);
    this.addEventListener("close", () => window.sockets.delete(this));
  }
};
"""
SET_HIDDEN = """
(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""
LONG_MS = 120_000
FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def begin(browser: Browser, url: str, **options: Any) -> Watched:
    """Return a page that counts what it asks for, and whose clock the test may move."""
    watched = Watched(browser, url, viewport=walking.DESKTOP, **options)
    watched.context.add_init_script(COUNT)
    return watched


def set_hidden(page: Page, hidden: bool) -> None:
    page.evaluate(SET_HIDDEN, hidden)


def asked_while_hidden(page: Page) -> int:
    """Hide the page for two minutes of its clock, and show it again; returns what it asked for meanwhile.

    Returns once it asks for something again. The clock has to be installed before the page is opened.
    """
    page.wait_for_function("() => window.asked > 0")
    set_hidden(page, True)
    page.wait_for_function("() => [...window.sockets].every((one) => one.readyState > 1)")
    before = page.evaluate("window.asked")
    page.clock.run_for(LONG_MS)
    asked: int = page.evaluate("window.asked") - before
    set_hidden(page, False)
    page.wait_for_function("(before) => window.asked > before", arg=before + asked)
    return asked
