"""Looking at a page as a strict visitor: what the content policy blocks, what is too wide, what axe finds."""

from importlib.resources import files
from typing import Any

from playwright.sync_api import Browser

from tests.browser.conftest import Watched

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
OF_ANSWERS = ("Failed to load resource", "WebSocket connection to")  # how Chromium logs an answer of 400 or more
LISTEN = """
window.broken = 0;
window.blocked = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.blocked.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`);
});
"""
# What hostile text must never become.
INERT = """
() => [
  ...(window.broken ? ["a script of ours ran that nobody wrote"] : []),
  ...window.blocked,
  ...[...document.querySelectorAll("*")].filter((one) =>
    [...one.attributes].some(({ name }) => name.startsWith("on"))
    || /^\\s*javascript:/i.test(one.getAttribute("href") || one.getAttribute("src") || "")
    || (one.localName === "script" && !one.src && one.type !== "application/json")
    || (one.localName === "img" && one.getAttribute("src") === "x")
  ).map((one) => `live: ${one.outerHTML.slice(0, 200)}`),
  // An override that turns around must end with the element it stands in.
  ...[...document.querySelectorAll("main *")].filter((one) =>
    [...one.childNodes].some((node) => node.nodeType === 3 && node.data.includes("\\u202e"))
    && getComputedStyle(one).display === "inline" && getComputedStyle(one).unicodeBidi === "normal"
  ).map((one) => `turns its neighbours around: ${one.outerHTML.slice(0, 200)}`),
]
"""
TOO_WIDE = """
() => {
  const most = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= most) { return []; }
  const wide = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > most + 1);
  const shown = wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 160)).join(" ");
  return [`${document.documentElement.scrollWidth} wide: ${shown}`];
}
"""
# Left out is a part inside of Select2's own named field, to which nobody can give a name of its own.
# Without preload: it would copy stylesheets that import others into the page, which the policy blocks.
FIND = """
async (rules) => {
  const options = { resultTypes: ["violations"], elementRef: false, preload: false };
  if (rules) { options.runOnly = rules; }
  const found = await axe.run({ include: document, exclude: [".select2-selection__rendered"] }, options);
  return found.violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => [id, nodes.length, nodes[0].html.slice(0, 200), nodes[0].failureSummary.slice(0, 300)])
    .map((said) => `axe ${said.join(" ")}`);
}
"""
SHAPE = """
() => [
  ...(document.querySelectorAll("main").length === 1 ? [] : ["no single main"]),
  ...(document.querySelectorAll("h1").length === 1 ? [] : [`${document.querySelectorAll("h1").length} h1`]),
  ...(document.title.trim() ? [] : ["no title"]),
  ...[...document.querySelectorAll("main table:not(.inline-group *)")]
    .filter((one) => one.rows.length && !one.querySelector("th[scope]"))
    .map((one) => `a table without scopes: ${one.outerHTML.slice(0, 120)}`),
]
"""


def begin(browser: Browser, url: str) -> Watched:
    """Return a signed-in page that listens for violations and brings axe along."""
    watched = Watched(browser, url, viewport=DESKTOP, color_scheme="light", reduced_motion="reduce")
    watched.context.add_init_script(LISTEN)
    return watched


def look(watched: Watched, address: str, *, status: int | None = None, away: bool = False) -> list[str]:
    """Open a page once and look at it in light, dark and at 390 pixels; returns what is wrong with it.

    Without `status` any below 400 is right. `away`: what the page reads from a server that is gone may fail.
    """
    page = watched.page
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")
    answer = page.goto(address, wait_until="load")
    got = answer.status if answer else 0
    is_right = got < 400 if status is None else got == status
    wrong = [] if is_right else [f"{address}: answers {got}"]
    return wrong + examine(watched, quiet_errors=away or got >= 400)


def examine(watched: Watched, *, quiet_errors: bool = False) -> list[str]:
    """Look at the page that is open; returns what is wrong with it. `quiet_errors`: apart from answers of an error."""
    page = watched.page
    wrong: list[Any] = []
    page.evaluate(AXE)
    wrong += page.evaluate(SHAPE) + page.evaluate(FIND, None)
    page.emulate_media(color_scheme="dark")
    wrong += [f"dark: {one}" for one in page.evaluate(FIND, ["color-contrast", "link-in-text-block"])]
    page.set_viewport_size(PHONE)
    wrong += [f"390: {one}" for one in page.evaluate(TOO_WIDE) + page.evaluate(FIND, None)]
    wrong += page.evaluate(INERT)
    told, watched.wrong = watched.wrong, []
    wrong += [one for one in told if not (quiet_errors and any(part in one for part in OF_ANSWERS))]
    path = page.url.removeprefix(watched.url)
    return [f"{path}: {one}" for one in wrong]
