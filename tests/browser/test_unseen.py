"""What lives on a page stops while its tab is hidden, and goes on when it is shown again."""

import pytest
from playwright.sync_api import Browser

from tests import builders, bulk_work
from tests.browser import seeing
from tests.probes import Stack

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(120)]
PAGES = ("overview", "runs", "bulk", "run", "run without payload")


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_asked_for_while_the_tab_is_hidden(browser: Browser, stack: Stack, name: str) -> None:
    account = builders.make_account("default", limit=10**9)
    builders.make_user("root", is_staff=True, is_superuser=True)
    builders.make_operator("viewer", permissions=["view_run"])
    run = builders.make_run("queued", account=account)
    bulk_work.letters_of(account, 1)
    operation = bulk_work.started()
    addresses = {
        "overview": "/admin/",
        "runs": "/admin/runs/run/",
        "bulk": f"/admin/workers/bulkoperation/{operation.pk}/change/",
    }
    watched = seeing.begin(browser, stack.web().url).sign_in("viewer" if name == PAGES[-1] else "root")
    page = watched.page
    page.clock.install()
    page.goto(addresses.get(name, f"/admin/runs/run/{run.pk}/change/"))

    assert seeing.asked_while_hidden(page) == 0
    # What is shown is as new as on a page that was never left.
    page.wait_for_function(
        "() => /(is|are) [0-5] s old(?!.*not seen)/.test(document.querySelector('.live-line').innerText)"
    )
    assert watched.wrong == []


def test_a_run_is_followed_after_the_tab_was_hidden(browser: Browser, stack: Stack) -> None:
    account = builders.make_account("default", limit=10**9)
    builders.make_user("root", is_staff=True, is_superuser=True)
    run = builders.make_run("queued", account=account)
    watched = seeing.begin(browser, stack.web().url).sign_in("root")
    page = watched.page
    page.goto(f"/admin/runs/run/{run.pk}/change/")
    page.wait_for_selector("#run-page[data-live=live]")

    seeing.set_hidden(page, True)
    page.wait_for_selector("#run-page[data-live=stopped]")
    assert page.locator("#live-status").text_content() == "Waits while the page is not seen"
    type(run).objects.filter(pk=run.pk).update(priority="high")
    seeing.set_hidden(page, False)

    page.wait_for_selector("#run-page[data-live=live]")
    page.wait_for_function("() => document.querySelector('#run-head').textContent.includes('high')")
    assert watched.wrong == []
