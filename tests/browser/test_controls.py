"""The switches in a browser: a double click acts once, the banner is on every page, nothing is wider than 390 px."""

import pytest
from playwright.sync_api import Browser

from quotas.models import AuditEntry
from runs.models import QueuePause
from tests import builders, working
from tests.browser.conftest import Watched
from tests.probes import Stack, eventually

pytestmark = [pytest.mark.browser, pytest.mark.process]
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_a_queue_is_paused_by_a_double_click_once_and_resumed(browser: Browser, stack: Stack) -> None:
    builders.make_user("ann", is_staff=True, is_superuser=True)
    worker = stack.worker()
    web = stack.web()
    ann = Watched(browser, web.url, viewport={"width": 390, "height": 844}).sign_in("ann")
    ann.page.goto("/admin/streams/")
    ann.page.click("text=Pause or resume a queue")
    ann.page.fill(".switch [name=reason] >> visible=true >> nth=-1", "a bad release")

    ann.page.dblclick("text=Pause default")

    ann.page.wait_for_selector(".held")
    assert "The queue default is paused." in ann.page.text_content(".held")
    assert (QueuePause.objects.get().reason, AuditEntry.objects.count()) == ("a bad release", 1)
    run = working.submit(builders.make_account())
    pages = ["streams/", "", "workers/workerprocess/", f"workers/workerprocess/{worker.row.pk}/change/"]
    for page in pages:
        ann.page.goto(f"/admin/{page}")
        assert "a bad release" in ann.page.text_content(".held")
        assert ann.page.evaluate(WIDER) == 0, page

    ann.page.goto("/admin/streams/")
    ann.page.click("text=Pause or resume a queue")
    ann.page.dblclick("text=Resume default")

    ann.page.wait_for_selector(".held", state="detached")
    eventually(lambda: type(run).objects.get(pk=run.pk, state="succeeded"))
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == ["queue.pause", "queue.resume"]
    assert ann.wrong == []
