"""Chromium for the tests of this folder: one process, a fresh context a page, and a strict ear for what goes wrong."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests import builders, servers

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)


class Watched:
    """A signed-in page that remembers violations, console errors, failed scripts and requests to elsewhere."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.url = url
        self.wrong: list[str] = []
        self.context = browser.new_context(base_url=url, **options)
        self.page: Page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"script: {error}"))
        self.context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" or "Content Security Policy" in message.text:
            self.wrong.append(f"console: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:", "ws://127.0.0.1:")):
            self.wrong.append(f"request: {request.url}")

    def sign_in(self, username: str) -> "Watched":
        self.page.goto("/admin/login/?next=/admin/")
        self.page.fill("#id_username", username)
        self.page.fill("#id_password", builders.PASSWORD)
        self.page.click("input[type=submit]")
        self.page.wait_for_selector("#overview")
        return self


@pytest.fixture(autouse=True)
def allow_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Playwright's sync API keeps an event loop in this thread, which Django would take for async code."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = servers.find_chromium()
    assert program, "Chromium is missing: install the package chromium."
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield made
        made.close()
