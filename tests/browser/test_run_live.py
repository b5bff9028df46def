"""A run in a real browser: submitted by the form, watched live, under the strict content security policy."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from quotas.models import Account
from quotas.prices import install_default_prices
from runs.models import Run
from tests import builders
from tests.browser.conftest import Watched
from tests.browser.talker import WORD
from tests.console.test_pages import LISTS
from tests.probes import Stack, WebServer

pytestmark = [pytest.mark.browser, pytest.mark.process]
TALKER = str(Path(__file__).with_name("talker.py"))
WAIT_MS = 30_000
NO_SOCKET = """
window.WebSocket = class {
  constructor() { setTimeout(() => this.onclose && this.onclose({ code: 1006 }), 0); }
  send() {}
  close() {}
};
"""


@pytest.fixture
def web(stack: Stack) -> WebServer:
    install_default_prices()
    builders.make_account("default")
    builders.make_user("root", is_staff=True, is_superuser=True)
    return stack.web(AGENTOPS_APPS=TALKER)


@pytest.fixture
def worker(stack: Stack, web: WebServer) -> Any:
    return stack.worker(AGENTOPS_APPS=TALKER)


def submit(page: Page, agent: str, **fields: Any) -> Run:
    """Submit by the form and stay on the run's page."""
    page.goto("/admin/submit/")
    page.select_option("#agent", agent)
    page.wait_for_selector("#submit-form")
    for name, value in fields.items():
        page.fill(f"[name='input.{name}']", str(value))
    page.click("#submit-form button[type=submit]")
    page.wait_for_selector("#run-page")
    return Run.objects.latest("id")


def await_state(page: Page, state: str) -> None:
    page.wait_for_function(
        "state => document.querySelector('#run-state').textContent.trim() === state", arg=state, timeout=WAIT_MS
    )


def kinds(page: Page) -> list[str]:
    return page.locator("#timeline .event-kind").all_text_contents()


def test_a_submitted_run_is_watched_live_to_its_end(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page

    run = submit(page, "talker", words=40, seconds=4)
    # Text is there while the run is running, not only after it.
    page.wait_for_function(
        "() => document.querySelector('#output').textContent.includes('word')"
        " && document.querySelector('#run-state').textContent.trim() === 'running'",
        timeout=WAIT_MS,
    )
    await_state(page, "succeeded")
    page.wait_for_function("() => !document.querySelector('#run-result').closest('section').hidden", timeout=WAIT_MS)

    assert page.locator("#output").text_content() == WORD * 40
    assert page.evaluate("window.broken") is None
    seen = kinds(page)
    assert (seen[0], seen[1], seen[-1]) == ("run.queued", "run.started", "run.succeeded")
    assert page.locator("#run-progress-text").text_content() == f"40 of 40 · {WORD}".strip()
    assert page.locator("#live-status").text_content().startswith("The run has ended")
    with page.expect_download() as download:
        page.click("#run-artifacts a")
    assert Path(download.value.path()).read_text() == WORD
    assert watched.wrong == []
    assert Run.objects.get(pk=run.pk).submitted_by == "root"


def test_an_operator_who_is_no_member_watches_by_ticket(browser: Browser, web: WebServer, worker: Any) -> None:
    builders.make_operator("operator")
    first = Watched(browser, web.url).sign_in("root")
    run = submit(first.page, "talker", words=20, seconds=2)
    watched = Watched(browser, web.url).sign_in("operator")

    watched.page.goto(f"/admin/runs/run/{run.pk}/change/")
    await_state(watched.page, "succeeded")

    watched.page.wait_for_function(
        "text => document.querySelector('#output').textContent === text", arg=WORD * 20, timeout=WAIT_MS
    )
    assert watched.wrong == []


def test_without_a_socket_the_page_reads_sse(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    watched.page.add_init_script(NO_SOCKET)

    submit(watched.page, "talker", words=30, seconds=3)
    await_state(watched.page, "succeeded")

    watched.page.wait_for_function(
        "text => document.querySelector('#output').textContent === text", arg=WORD * 30, timeout=WAIT_MS
    )
    assert kinds(watched.page)[-1] == "run.succeeded"
    assert watched.wrong == []


def test_an_ended_run_shows_its_log_without_socket_or_stream(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page
    run = submit(page, "talker", words=30, seconds=1)
    await_state(page, "succeeded")
    page.add_init_script(NO_SOCKET)
    page.route("**/api/**", lambda route: route.abort())

    page.goto(f"/admin/runs/run/{run.pk}/change/")
    page.wait_for_function("() => document.querySelector('#run-page').dataset.live === 'ended'", timeout=WAIT_MS)

    assert page.locator("#live-status").text_content() == "The run has ended; this is its whole log."
    assert (kinds(page)[0], kinds(page)[-1]) == ("run.queued", "run.succeeded")
    page.wait_for_function("text => document.querySelector('#output').textContent === text", arg=WORD * 30)
    assert watched.wrong == []


def test_a_web_restart_loses_and_doubles_no_event(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page
    submit(page, "probe.emit", count=80, bytes=5, seconds=8)
    page.wait_for_function("() => document.querySelectorAll('#timeline li').length > 10", timeout=WAIT_MS)

    web.restart()
    await_state(page, "succeeded")
    page.wait_for_function("() => document.querySelectorAll('#timeline li').length >= 83", timeout=WAIT_MS)

    ticks = page.locator("#timeline li:has-text('probe.tick') .event-data").all_text_contents()
    assert [int(text.split('"n":')[1].split(",")[0]) for text in ticks] == list(range(80))
    assert kinds(page)[-1] == "run.succeeded"


@pytest.mark.parametrize("broken_socket", [False, True], ids=["socket", "no socket"])
def test_the_numbers_of_the_overview_live(browser: Browser, web: WebServer, broken_socket: bool) -> None:
    watched = Watched(browser, web.url)
    if broken_socket:
        watched.page.add_init_script(NO_SOCKET)
    page = watched.sign_in("root").page
    before = page.locator("[data-number=queued_total]").text_content()

    builders.make_run(account=Account.objects.get(name="default"))
    page.wait_for_function(
        "() => document.querySelector('[data-number=queued_total]').textContent === '1'", timeout=WAIT_MS
    )

    assert before == "0"
    assert page.locator("[data-priority=normal] [data-count]").text_content() == "1"
    assert watched.wrong == []


def test_pause_holds_back_and_go_on_shows_everything(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page
    submit(page, "probe.emit", count=30, bytes=5, seconds=3)
    page.wait_for_function("() => document.querySelectorAll('#timeline li').length > 5", timeout=WAIT_MS)

    page.click("#pause")
    held = page.locator("#timeline li").count()
    await_state(page, "succeeded")
    still = page.locator("#timeline li").count()
    page.click("#pause")
    page.wait_for_function("() => document.querySelectorAll('#timeline li').length >= 33", timeout=WAIT_MS)

    assert held == still < 33
    assert watched.wrong == []


def test_cancel_from_the_page(browser: Browser, web: WebServer, worker: Any) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page
    run = submit(page, "probe.sleep", seconds=60)
    await_state(page, "running")

    page.fill("#cancel-reason", "enough")
    page.click("#run-cancel button")
    await_state(page, "cancelled")

    page.mouse.move(0, 0)  # what is under the pointer waits until it is left
    page.wait_for_selector("#run-requeue:visible", timeout=WAIT_MS)
    assert not page.is_visible("#run-cancel")
    assert Run.objects.get(pk=run.pk).state == "cancelled"
    assert watched.wrong == []


@pytest.mark.parametrize(
    "options",
    [
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"viewport": {"width": 390, "height": 800}},
    ],
    ids=["light", "dark", "narrow"],
)
def test_every_page_keeps_the_policy_and_fits_the_screen(browser: Browser, web: WebServer, options: Any) -> None:
    account = Account.objects.get(name="default")
    failed = builders.make_run("failed", account=account, input={"prompt": "x" * 3000}, tags=["y" * 300])
    letter = builders.make_dead_letter(failed, message="z" * 2000)
    worker = builders.make_worker()
    watched = Watched(browser, web.url, **options).sign_in("root")
    pages = [
        *(path.replace("account=acme", "account=default") for path in LISTS if not path.endswith(".json")),
        "/admin/submit/?agent=document.digest",
        "/admin/submit/?agent=assistant.chat",
        f"/admin/runs/run/{failed.pk}/change/",
        f"/admin/workers/deadletter/{letter.pk}/change/",
        f"/admin/workers/workerprocess/{worker.pk}/change/",
        f"/admin/quotas/account/{account.pk}/change/",
        "/admin/password_change/",
        "/admin/quotas/",
    ]

    wide = {}
    for path in pages:
        assert watched.page.goto(path).status == 200, path
        over = watched.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if over > 0:
            wide[path] = over

    assert (wide, watched.wrong) == ({}, [])
