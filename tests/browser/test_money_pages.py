"""Pages of money in a browser: nothing the content policy blocks, nothing wider than a phone, one click one line."""

from typing import Any

import pytest
from playwright.sync_api import Browser

from quotas import services as money
from quotas.models import MICRO, Account, LedgerEntry
from tests import builders
from tests.browser.conftest import Watched
from tests.probes import Stack, WebServer

pytestmark = [pytest.mark.browser, pytest.mark.process]
SCREENS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}


@pytest.fixture
def account(stack: Stack) -> Account:
    made = builders.make_account("default", limit=500 * MICRO)
    builders.make_user("root", is_staff=True, is_superuser=True)
    builders.make_user("ada", account=made)
    for cost in range(1, 6):
        builders.make_run("succeeded", account=made, cost=cost * 1_234_567, session=f"s-{cost}", tags=["blue"])
    builders.make_run("running", account=made, cost=500_000, estimate=2 * MICRO)
    money.grant(made, amount=25 * MICRO, reason="Goodwill after the outage, ticket 4711 " * 5, actor="root")
    return made


@pytest.fixture
def web(stack: Stack, account: Account) -> WebServer:
    return stack.web()


@pytest.mark.parametrize("screen", SCREENS)
def test_each_page_keeps_to_the_policy_and_to_its_screen(
    browser: Browser, web: WebServer, account: Account, screen: str
) -> None:
    options: dict[str, Any] = SCREENS[screen]
    watched = Watched(browser, web.url, **options).sign_in("root")
    page = watched.page
    here = f"/admin/quotas/account/{account.pk}"

    wide = []
    for path in (
        "/admin/quotas/account/",
        f"{here}/change/",
        f"{here}/line/grant/",
        "/admin/quotas/membership/",
        "/admin/quotas/hold/",
        "/admin/quotas/ledgerentry/?from=2020-01-01",
        f"/admin/quotas/ledgerentry/{LedgerEntry.objects.latest('pk').pk}/change/",
        *(f"/admin/spending/?by={by}" for by in ("agent", "session", "tag", "day", "run", "attempt")),
    ):
        page.goto(path)
        wide += [path] if page.evaluate("document.documentElement.scrollWidth > window.innerWidth") else []

    assert wide == []
    assert watched.wrong == []


def test_a_double_click_writes_one_line(browser: Browser, web: WebServer, account: Account) -> None:
    watched = Watched(browser, web.url).sign_in("root")
    page = watched.page

    page.goto(f"/admin/quotas/account/{account.pk}/line/adjustment/")
    page.fill("#id_amount", "-1.5")
    page.fill("#id_reason", "counted twice")
    page.dblclick("button:has-text('Adjust')")
    page.wait_for_url(f"**/account/{account.pk}/change/")
    page.wait_for_selector(".messagelist li")  # of the line, or that the form was sent before

    assert list(LedgerEntry.objects.filter(kind="adjustment").values_list("amount", "reason")) == [
        (-1_500_000, "counted twice")
    ]
