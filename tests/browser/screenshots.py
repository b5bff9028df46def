"""The pictures of docs/console.md: `make screenshots` takes them all anew. No test of the suite.

Each page full (light and dark), empty, on a phone where it is a list, and in its error or loading state where it has
one of its own. Chromium writes WebP by itself, so that no picture library is needed.
"""

import base64
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Browser

from quotas import audit
from quotas import services as money
from quotas.models import MICRO, Account
from quotas.prices import install_default_prices
from runs.models import QueuePause
from tests import builders, servers
from tests.browser import walking
from tests.browser.conftest import Watched
from tests.probes import ROOT, Stack, manage
from workers.models import BulkOperation, Case

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.timeout(900)]
IMAGES = ROOT / "docs" / "images" / "console"
MOST_BYTES = 60 * 1024
SCREEN = {"width": 1280, "height": 800}
PICTURES = re.compile(r"\n*<!-- pictures -->.*?<!-- end -->\n*", re.DOTALL)
QUALITIES = (70, 50, 30)

# Section of docs/console.md -> the address of its page, from /admin/ on, and of its error state.
LISTS: dict[str, tuple[str, str]] = {
    "Overview": ("", ""),
    "Submit a run": ("submit/?agent=probe.ret", "submit/?agent=no.such"),
    "Runs": ("runs/run/", "runs/run/?state=nonsense"),
    "Cases": ("workers/case/", "workers/case/0/change/"),
    "Dead letters": ("workers/deadletter/", "workers/deadletter/?case=nonsense"),
    "Bulk operations": ("workers/bulkoperation/", ""),
    "Agents": ("agents/", "agents/?agent=no.such"),
    "Workers": ("workers/workerprocess/", ""),
    "Streams": ("streams/", "streams/"),
    "Accounts": ("quotas/account/", ""),
    "Members": ("quotas/membership/", ""),
    "Holds": ("quotas/hold/", ""),
    "Ledger": ("quotas/ledgerentry/", "quotas/ledgerentry/?from=nonsense"),
    "Spending": ("spending/?by=agent", "spending/?by=agent&account=no+such"),
    "Prices": ("quotas/price/", ""),
    "API keys": ("quotas/apikey/", ""),
    "Users and groups": ("auth/user/", ""),
    "Audit log": ("quotas/auditentry/", "quotas/auditentry/?from=nonsense"),
    "Sign-in record": ("axes/accesslog/", ""),
}
ONES = {"Run": "runs/run/{run}/change/", "Case": "workers/case/{case}/change/"}
ONES |= {"Dead letter": "workers/deadletter/{letter}/change/", "Requeue": "requeue-plan/?letter={letter}"}
ERRORS = {"400": "runs/run/?q=%00", "403": "auth/user/", "404": "nowhere/"}  # of every page; the 500 is taken apart


def slug(section: str) -> str:
    return re.sub(r"\W+", "-", section.lower())


def shoot(watched: Watched, name: str, *, theme: str = "light") -> None:
    """Write the open page as docs/images/console/<name>-<theme>.webp, as good as MOST_BYTES allow."""
    watched.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    session = watched.context.new_cdp_session(watched.page)
    for quality in QUALITIES:
        taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality})
        data = base64.b64decode(taken["data"])
        if len(data) <= MOST_BYTES:
            break
    assert len(data) <= MOST_BYTES, (name, len(data))
    (IMAGES / f"{name}-{theme}.webp").write_bytes(data)


def visit(watched: Watched, address: str) -> None:
    watched.page.goto(f"/admin/{address}", wait_until="load")
    watched.page.wait_for_load_state("networkidle")


def fill() -> dict[str, Any]:
    """Make a busy instance; returns the ids of one row of each kind that has a page of its own."""
    assert manage("bench", "fill", "--runs", "3000", "--dead", "300", "--force", timeout=300).returncode == 0
    install_default_prices()
    account = Account.objects.get(name="default")
    builders.make_user("ada", account=account, first_name="Ada", is_staff=True)
    builders.make_api_key(account, name="nightly reports")
    for cost in (1_234_567, 830_000, 12_500):
        builders.make_run("succeeded", account=account, agent="research", cost=cost, session="weekly", tags=["blue"])
    run = builders.make_run(
        "failed", account=account, agent="document.digest", cost=420_000, input={"question": "What is new in 2.0?"},
        session="weekly", submitted_by="ada", tags=["blue"], usage={"small-model": {"input": 5312, "output": 811}},
    )  # fmt: skip
    money.grant(account, amount=25 * MICRO, reason="Goodwill after the outage, ticket 4711", actor="root")
    builders.make_worker(name="worker-a", version="1.4.0", host="node-1")
    builders.make_worker(name="worker-b", version="1.4.0", host="node-2")
    audit.record(actor="ada", action="run.cancel", target_type="run", target_id=run.pk, reason="asked by its owner")
    letter = builders.make_dead_letter(run)
    for state, total, done in (("done", 40, 38), ("aborted", 200, 71)):
        BulkOperation.objects.create(
            form_id=uuid.uuid4(), kind="requeue", source="letters", query={"state_is": "open"}, state=state,
            total=total, done_count=done, refused_count=2,
            actor="ada", reason="fixed in 1.4.1", finished_at=timezone.now(),
        )  # fmt: skip
    case = Case.objects.order_by("-open_count").first()
    return {"run": run.pk, "letter": letter.pk, "case": case.pk if case else letter.case_id}


def test_take_the_pictures(own_redis: servers.Server, browser: Browser, stack: Stack, tmp_path: Path) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    builders.make_account("default", limit=500 * MICRO)
    builders.make_user("root", is_staff=True, is_superuser=True)
    builders.make_user("nobody", is_staff=True)
    web = stack.web()
    root, nobody = (walking.begin(browser, web.url).sign_in(name) for name in ("root", "nobody"))
    root.page.set_viewport_size(SCREEN)
    for section, (address, _) in LISTS.items():
        visit(root, address)
        shoot(root, f"{slug(section)}-empty")

    rows = fill()
    take_full(root, rows)
    take_shell(root)
    take_loading(root, rows)
    nobody.page.set_viewport_size(SCREEN)
    for code, address in ERRORS.items():
        visit(nobody if code == "403" else root, address)
        shoot(nobody if code == "403" else root, f"errors-{code}")
    take_broken(browser, stack, tmp_path)

    QueuePause.objects.create(queue="default", reason="The provider is down, ticket 4711", paused_by="ada")
    own_redis.stop()
    for section, (_, address) in LISTS.items():
        if address or section == "Overview":
            visit(root, address)
            shoot(root, f"{slug(section)}-error")
    visit(root, ONES["Run"].format_map(rows))
    shoot(root, "run-error")


def take_full(root: Watched, rows: dict[str, Any]) -> None:
    pages = {section: address for section, (address, _) in LISTS.items()}
    pages |= {section: address.format_map(rows) for section, address in ONES.items()}
    pages["Overview"] = pages.pop("Overview")  # its figures are a few seconds old
    for section, address in pages.items():
        visit(root, address)
        for theme in ("light", "dark"):
            shoot(root, f"{slug(section)}-full", theme=theme)
        root.page.set_viewport_size(walking.PHONE)
        shoot(root, f"{slug(section)}-phone")
        root.page.set_viewport_size(SCREEN)


def take_shell(root: Watched) -> None:
    visit(root, "runs/run/")
    root.page.keyboard.press("Control+k")
    root.page.keyboard.type("de")
    shoot(root, "palette-open")
    root.page.keyboard.press("Escape")
    root.page.keyboard.press("?")
    shoot(root, "keys-open")
    root.page.keyboard.press("Escape")


def take_loading(root: Watched, rows: dict[str, Any]) -> None:
    """The page whose script reads what it shows, while the answer is under way. All others are sent whole."""
    root.page.route("**/events.json*", lambda _route: None)  # never answered
    root.page.goto(f"/admin/{ONES['Run'].format_map(rows)}", wait_until="load")
    root.page.wait_for_selector("#live-status:has-text('Reading')")
    shoot(root, "run-loading")
    root.page.goto("/admin/")
    root.page.unroute("**/events.json*")


def take_broken(browser: Browser, stack: Stack, folder: Path) -> None:
    """The page of a web process whose database has no tables."""
    (folder / "empty.sqlite3").touch()
    web = stack.web(DATABASE_URL=f"sqlite:///{folder / 'empty.sqlite3'}")
    stranger = walking.begin(browser, web.url)
    stranger.page.set_viewport_size(SCREEN)
    stranger.context.add_cookies([{"name": "sessionid", "value": "x" * 32, "url": web.url}])
    visit(stranger, "")
    shoot(stranger, "errors-500")


def embed() -> None:
    """Write the pictures into docs/console.md: those of a page at the end of its section."""
    page = ROOT / "docs" / "console.md"
    bare = PICTURES.sub("\n\n", page.read_text(encoding="utf-8"))
    parts = re.split(r"(?m)^(?=## )", bare)
    page.write_text("".join(_with_pictures(part) for part in parts).rstrip("\n") + "\n", encoding="utf-8")


def _with_pictures(part: str) -> str:
    section = part.split("\n", 1)[0].removeprefix("## ")
    names = {"On every page": ("palette", "keys")}.get(section, (slug(section),))
    states = "full", "open", "empty", "loading", "error", "phone", *ERRORS, "500"
    files = [
        IMAGES / f"{name}-{state}-{theme}.webp" for name in names for state in states for theme in ("light", "dark")
    ]
    shown = [f"![{section}: {one.stem}](images/console/{one.name})" for one in files if one.exists()]
    if not shown:
        return part
    return part.rstrip("\n") + "\n\n<!-- pictures -->\n" + "\n".join(shown) + "\n<!-- end -->\n\n"


def test_the_pictures_stand_in_the_document() -> None:
    embed()
