"""Every page of the console, in light, dark and on a phone: full of hostile text, empty, and when something is away."""

import uuid
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests import builders, servers
from tests.browser import hostile, pages, walking
from tests.probes import Stack

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(300)]


# Pages that show what Redis says; every other one does not know of it.
ASKS_REDIS = ("/admin/runs/run/", "/admin/streams/", "/admin/workers/", "/admin/submit/")


def status_of(address: str) -> int | None:
    """Return what a page must answer: 400 where the address asks for what is no filter, else no error."""
    return 400 if "nonsense" in address else None


def test_every_page_is_known() -> None:
    assert pages.console_routes() - set(pages.catalogue()) == set()
    assert set(pages.catalogue()) - pages.console_routes() == set()


def test_every_page_full_of_hostile_text_is_inert_readable_and_fits(browser: Browser, stack: Stack) -> None:
    rows = hostile.fill()
    watched = walking.begin(browser, stack.web().url).sign_in("root")

    wrong: list[str] = []
    for address in pages.addresses(rows):
        wrong += walking.look(watched, address, status=status_of(address))

    assert not wrong, "\n".join(wrong)


def test_every_page_without_rows_fits(browser: Browser, stack: Stack) -> None:
    user = hostile.users()
    watched = walking.begin(browser, stack.web().url).sign_in("root")

    wrong: list[str] = []
    for address in pages.addresses({"auth/user": user.pk, "hostile": "x"}, only_known=True):
        wrong += walking.look(watched, address, status=status_of(address))

    assert not wrong, "\n".join(wrong)


def test_every_page_opens_while_redis_is_away(own_redis: servers.Server, browser: Browser, stack: Stack) -> None:
    rows = hostile.fill()
    watched = walking.begin(browser, stack.web().url).sign_in("root")
    own_redis.stop()

    wrong: list[str] = []
    for address in pages.addresses(rows):
        if address.startswith(ASKS_REDIS):
            wrong += walking.look(
                watched, address, status=503 if "streams" in address else status_of(address), away=True
            )

    assert not wrong, "\n".join(wrong)


def test_the_pages_of_errors_fit(browser: Browser, stack: Stack, tmp_path: Path) -> None:
    builders.make_user("root", is_staff=True, is_superuser=True)
    builders.make_user("nobody", is_staff=True)
    web = stack.web()
    (tmp_path / "empty.sqlite3").touch()
    broken = stack.web(DATABASE_URL=f"sqlite:///{tmp_path / 'empty.sqlite3'}")
    root, nobody = (walking.begin(browser, web.url).sign_in(name) for name in ("root", "nobody"))
    stranger = walking.begin(browser, broken.url)
    stranger.context.add_cookies([{"name": "sessionid", "value": "x" * 32, "url": broken.url}])
    visitor = walking.begin(browser, web.url)

    wrong = walking.look(visitor, "/admin/login/")
    visitor.page.fill("#id_username", hostile.MARKUP)
    visitor.page.fill("#id_password", "x")
    visitor.page.click("input[type=submit]")
    wrong += walking.examine(visitor)
    wrong += walking.look(root, "/admin/runs/run/?q=%00", status=400)
    wrong += walking.look(root, f"/admin/runs/run/{uuid.uuid4()}/change/", status=404)
    wrong += walking.look(nobody, "/admin/runs/run/", status=403)
    wrong += walking.look(nobody, "/admin/")
    wrong += walking.look(stranger, "/admin/", status=500)
    root.page.goto("/admin/password_change/")
    root.page.evaluate("document.querySelector('#content form [name=csrfmiddlewaretoken]').value = 'x'.repeat(64)")
    root.page.evaluate("document.querySelector('#content form').submit()")
    root.page.wait_for_selector("h1:has-text('Not allowed')")
    wrong += walking.examine(root, quiet_errors=True)

    assert not wrong, "\n".join(wrong)
