"""Every page of the console: it renders, it is closed to who may not see it, and it shows hostile or odd rows inert."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.utils import timezone
from django.views import defaults

from quotas.models import Account, AuditEntry, Hold, LedgerEntry
from runs.models import Artifact, Run
from tests import builders

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7|add:7 }}\u202e"
LISTS = [
    "/admin/",
    "/admin/overview.json",
    *("/admin/submit/", "/admin/streams/", "/admin/agents/", "/admin/agents/?agent=probe.ret"),
    *(f"/admin/{name}/" for name in ("runs/run", "workers/deadletter", "workers/workerprocess")),
    "/admin/quotas/account/",
    "/admin/quotas/account/add/",
    *(f"/admin/quotas/membership/{page}" for page in ("", "add/")),
    "/admin/quotas/hold/",
    "/admin/quotas/ledgerentry/",
    *(f"/admin/spending/?by={by}&account=acme" for by in ("agent", "session", "tag", "day", "run", "attempt")),
    "/admin/quotas/price/",
    "/admin/quotas/price/set/",
    "/admin/quotas/apikey/",
    "/admin/quotas/apikey/add/",
    "/admin/quotas/auditentry/",
    "/admin/auth/user/",
    "/admin/auth/user/add/",
    "/admin/auth/group/",
    "/admin/axes/accessattempt/",
]


class Inline(HTMLParser):
    """Collects what a strict content security policy would block."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        data_block = given.get("type") == "application/json"
        if tag == "style" or (tag == "script" and "src" not in given and not data_block):
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name in given if name == "style" or re.match(r"on[a-z]", name)]
        if str(given.get("href", "")).lower().startswith("javascript:"):
            self.found.append(f"{tag} javascript:")


def inline_parts(text: str) -> list[str]:
    parser = Inline()
    parser.feed(text)
    return parser.found


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(builders.make_user("root", is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def nobody(client: Client) -> Client:
    """Staff without any permission."""
    client.force_login(builders.make_user("nobody", is_staff=True))
    return client


@pytest.fixture
def rows(account: Account) -> dict[str, Any]:
    """One row for every page of one thing, with hostile text where people or models write."""
    failed = builders.make_run(
        "failed",
        account=account,
        input={"prompt": HOSTILE},
        session=HOSTILE,
        error={"class": "agent_bug", "type": HOSTILE, "message": HOSTILE, "traceback": HOSTILE},
        metadata={HOSTILE: HOSTILE},
        tags=[HOSTILE],
        usage={HOSTILE: {HOSTILE: 3}},
        cost=1500000,
    )
    Artifact.objects.create(run=failed, name=HOSTILE, content_type="text/html", size=3, path="nowhere", fence=2)
    builders.make_run("succeeded", account=account, result={"text": HOSTILE})
    letter = builders.make_dead_letter(failed, message=HOSTILE, payload=HOSTILE)
    worker = builders.make_worker(name="w<b>1</b>", host=HOSTILE[:100])
    builders.make_run("running", account=account, worker=worker.name)
    entry = AuditEntry.objects.create(
        actor=HOSTILE[:100],
        action="run.cancelled",
        target_type="run",
        target_id=str(failed.pk),
        before={HOSTILE: 1},
        reason=HOSTILE,
    )
    key, _ = builders.make_api_key(account)
    ledger = LedgerEntry.objects.create(account=account, kind="grant", amount=-5, reason=HOSTILE, agent=HOSTILE)
    member = builders.make_user("m<b>1</b>", account=account).memberships.get()
    return {
        "runs/run": failed.pk,
        "workers/deadletter": letter.pk,
        "workers/workerprocess": worker.pk,
        "quotas/account": account.pk,
        "quotas/hold": Hold.objects.get(run_id=failed.pk).pk,
        "quotas/membership": member.pk,
        "quotas/auditentry": entry.pk,
        "quotas/apikey": key.pk,
        "quotas/ledgerentry": ledger.pk,
    }


@pytest.mark.parametrize("path", LISTS)
def test_a_superuser_sees_every_list_and_form(root: Client, rows: dict[str, Any], path: str) -> None:
    answer = root.get(path)

    assert answer.status_code == 200
    assert inline_parts(answer.content.decode()) == []


def test_a_superuser_sees_the_page_of_every_row_and_hostile_text_stays_text(root: Client, rows: dict[str, Any]) -> None:
    for place, pk in rows.items():
        answer = root.get(f"/admin/{place}/{pk}/change/")
        text = answer.content.decode()

        assert answer.status_code == 200, place
        assert "<script>alert" not in text, place
        assert "<img src=x" not in text, place
        assert inline_parts(text) == [], place


def test_the_facts_and_the_raw_row_are_json(root: Client, rows: dict[str, Any]) -> None:
    facts = root.get(f"/admin/runs/run/{rows['runs/run']}/facts.json")
    raw = root.get(f"/admin/runs/run/{rows['runs/run']}/raw.json")

    assert (facts["Content-Type"], facts.json()["state"]) == ("application/json", "failed")
    assert raw["Content-Type"].startswith("application/json")
    assert "claim_token" not in raw.json()


@pytest.mark.parametrize("path", [path for path in LISTS if path not in {"/admin/", "/admin/overview.json"}])
def test_staff_without_permission_are_refused(nobody: Client, rows: dict[str, Any], path: str) -> None:
    assert nobody.get(path).status_code == 403


def test_staff_without_permission_see_no_row(nobody: Client, rows: dict[str, Any]) -> None:
    for place, pk in rows.items():
        assert nobody.get(f"/admin/{place}/{pk}/change/").status_code == 403, place
    for page in ("facts.json", "raw.json", "artifacts/1/"):
        assert nobody.get(f"/admin/runs/run/{rows['runs/run']}/{page}").status_code == 403, page


def test_staff_without_permission_see_an_overview_without_numbers(nobody: Client, rows: dict[str, Any]) -> None:
    page = nobody.get("/admin/")
    numbers = nobody.get("/admin/overview.json").json()

    assert page.status_code == 200
    assert b'data-number="' not in page.content
    assert set(numbers) == {"at", "healthy", "sentence", "problems"}
    assert (numbers["sentence"], numbers["problems"]) == ("Nothing is wrong in what you may see", [])


def test_who_is_not_staff_is_sent_to_the_sign_in(client: Client, owner: Any) -> None:
    client.force_login(owner)

    answer = client.get("/admin/runs/run/")

    assert (answer.status_code, answer["Location"]) == (302, "/admin/login/?next=/admin/runs/run/")


def test_payloads_need_a_permission_of_their_own(client: Client, account: Account) -> None:
    error = {"class": "agent_bug", "type": "T", "message": "PAYLOAD", "traceback": "PAYLOAD"}
    run = builders.make_run(
        "failed",
        account=account,
        input="PAYLOAD",
        error=error,
        result_json='"PAYLOAD"',
        metadata={"k": "PAYLOAD"},
        tags=["PAYLOAD"],
    )
    letter = builders.make_dead_letter(run, payload="PAYLOAD")
    Artifact.objects.create(run=run, name="PAYLOAD", content_type="a/b", size=1, path="x", fence=2)
    client.force_login(builders.make_operator("viewer", permissions=["view_run", "view_deadletter"]))

    pages = [
        f"/admin/runs/run/{run.pk}/change/",
        f"/admin/runs/run/{run.pk}/facts.json",
        f"/admin/runs/run/{run.pk}/raw.json",
        f"/admin/workers/deadletter/{letter.pk}/change/",
        "/admin/workers/deadletter/",
        "/admin/workers/deadletter/?q=PAYLOA",
    ]
    shown = {page: b"PAYLOAD" in client.get(page).content for page in pages}
    artifact = client.get(f"/admin/runs/run/{run.pk}/artifacts/{Artifact.objects.get().pk}/")
    ticket = client.post(f"/admin/runs/run/{run.pk}/ticket/")

    assert shown == dict.fromkeys(pages, False)
    assert (artifact.status_code, ticket.status_code) == (403, 403)


@pytest.mark.parametrize(
    "columns",
    [
        {"input_json": "no json at all"},
        {"input_json": ""},
        {"result_json": "{broken"},
        {"error": "a text"},
        {"error": ["a", "list"]},
        {"error": {"message": None}},
        {"error": {"nothing": "known"}},
        {"usage": {"model": 3, "other": {"input": "many"}}},
        {"usage": ["odd"]},
        {"metadata": [], "tags": {"a": 1}},
        {"metadata": "text", "tags": "text"},
        {"worker": "", "lease_expires_at": None, "started_at": None, "finished_at": None},
        {"state": "unheard-of", "priority": "", "agent": "gone.agent"},
        {"cost": 2**53, "attempt": 0, "fence": 2**62},
    ],
    ids=str,
)
def test_an_odd_row_still_renders(root: Client, account: Account, columns: dict[str, Any]) -> None:
    run = builders.make_run("succeeded", account=account)
    Run.objects.filter(pk=run.pk).update(**{**columns, "state": columns.get("state", "succeeded")[:11]})
    builders.make_dead_letter(run)

    for path in (
        "/admin/",
        "/admin/runs/run/",
        f"/admin/runs/run/{run.pk}/change/",
        f"/admin/runs/run/{run.pk}/facts.json",
        f"/admin/runs/run/{run.pk}/raw.json",
        "/admin/workers/deadletter/",
    ):
        assert root.get(path).status_code == 200, path


def test_a_run_without_hold_attempt_or_transition_still_renders(root: Client, account: Account) -> None:
    run = Run.objects.create(
        account=account,
        agent="x",
        input_json="{}",
        time_limit_seconds=1,
        queue_wait_seconds=1,
        queued_at=timezone.now(),
    )

    assert root.get(f"/admin/runs/run/{run.pk}/change/").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/admin/runs/run/?q=%00",
        "/admin/runs/run/?session=%00",
        "/admin/runs/run/?tag=a%00b",
        "/admin/runs/run/?state=%00",
        "/admin/runs/run/?submitted_at__gte=nonsense",
        "/admin/runs/run/?account__id__exact=99999999999999999999999",
        "/admin/runs/run/?p=99999999999",
        "/admin/runs/run/?q=" + "x" * 3000,
        "/admin/runs/run/00000000-0000-0000-0000-000000000000/change/",
        "/admin/runs/run/nonsense/change/",
        "/admin/workers/deadletter/99999999999999999999999/change/",
        "/admin/workers/deadletter/?q=%F0%9F%92%A5",
        "/admin/quotas/hold/?q=no-uuid",
        "/admin/quotas/ledgerentry/?q=no-uuid",
        "/admin/quotas/price/set/?model=%00",
        "/admin/submit/?agent=%00",
        "/admin/submit/?agent=no.such",
    ],
)
def test_no_address_breaks_a_page(root: Client, rows: dict[str, Any], path: str) -> None:
    assert root.get(path).status_code < 500


def test_runs_are_found_by_id_by_its_beginning_and_by_session(root: Client, account: Account) -> None:
    run = builders.make_run(account=account, session="s-7")

    for term in (str(run.pk), str(run.pk)[:13], run.pk.hex[:12], "s-7"):
        assert f"/admin/runs/run/{run.pk}/change/" in root.get("/admin/runs/run/", {"q": term}).content.decode(), term
    assert f"/admin/runs/run/{run.pk}/change/" not in root.get("/admin/runs/run/", {"q": "s-9"}).content.decode()


@pytest.mark.parametrize(
    ("query", "hit"),
    [
        ({"tag": "blue"}, True),
        ({"tag": "blu"}, False),
        ({"tag": "grün"}, True),
        ({"session": "s-7"}, True),
        ({"session": "s"}, False),
        ({"agent": "probe.ret"}, True),
        ({"agent": "gone.agent"}, False),
        ({"state": "queued"}, True),
        ({"state": "failed"}, False),
        ({"state": "scheduled"}, False),
    ],
    ids=str,
)
def test_runs_are_filtered(root: Client, account: Account, query: dict[str, str], hit: bool) -> None:
    run = builders.make_run(account=account, session="s-7", tags=["blue", "grün"])

    page = root.get("/admin/runs/run/", query).content.decode()

    assert (f"/admin/runs/run/{run.pk}/change/" in page) is hit


def test_a_list_of_many_runs_loads_no_large_text_and_asks_few_questions(
    root: Client, account: Account, django_assert_max_num_queries: Any
) -> None:
    for _ in range(30):
        builders.make_run(account=account, archived=False)

    with django_assert_max_num_queries(14) as asked:
        root.get("/admin/runs/run/")

    assert not any("input_json" in query["sql"] for query in asked.captured_queries)


def test_no_script_of_ours_turns_data_into_markup() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc")
    ours = [*Path("agentops/console/static").rglob("*.js"), *Path("runs/static").rglob("*.js")]
    scripts = [path for path in ours if "vendor" not in path.parts]

    assert len(scripts) > 10
    assert {str(path): forbidden.findall(path.read_text()) for path in scripts} == {str(p): [] for p in scripts}


@pytest.mark.parametrize(
    ("path", "heading", "way"),
    [
        ("/admin/quotas/account/", "Accounts", "Overview > Accounts"),
        ("/admin/quotas/apikey/", "API keys", "Overview > API keys"),
        ("/admin/quotas/ledgerentry/", "Ledger", "Overview > Ledger"),
        ("/admin/runs/run/", "Runs", "Overview > Runs"),
        ("/admin/workers/deadletter/{}/change/", "Dead letter {}", "Overview > Dead letters > Dead letter {}"),
        ("/admin/quotas/account/add/", "New account", "Overview > Accounts > New account"),
        ("/admin/password_change/", "Password change", "Overview > Password change"),
    ],
)
def test_a_page_is_called_the_same_in_title_heading_and_breadcrumbs(
    root: Client, rows: dict[str, Any], path: str, heading: str, way: str
) -> None:
    number = rows["workers/deadletter"]
    page = html.unescape(root.get(path.format(number)).content.decode())
    crumbs = re.search(r'<div class="breadcrumbs">(.*?)</div>', page, re.DOTALL)

    assert f"<title>{heading.format(number)} | AgentOps</title>" in page
    assert f"<h1>{heading.format(number)}</h1>" in page
    assert crumbs is not None
    assert re.sub(r"<.*?>", "", crumbs[1]).replace("\u203a", ">").strip() == way.format(number)


def test_an_empty_list_has_no_action_bar(root: Client, rows: dict[str, Any]) -> None:
    assert b'name="action"' in root.get("/admin/workers/deadletter/").content
    assert b'name="action"' not in root.get("/admin/workers/deadletter/?state_is=discarded").content


def test_times_are_written_alike(root: Client, rows: dict[str, Any]) -> None:
    for path in ("/admin/quotas/ledgerentry/", "/admin/runs/run/", "/admin/workers/workerprocess/", "/admin/"):
        assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", root.get(path).content.decode()), path


def test_the_log_of_a_run_is_read_as_json_by_who_may_see_payloads(root: Client, rows: dict[str, Any]) -> None:
    path = f"/admin/runs/run/{rows['runs/run']}/events.json"
    log = root.get(path).json()
    rest = root.get(path, {"after": log["next"]}).json()
    root.force_login(builders.make_operator("viewer", permissions=["view_run"]))

    assert (log["events"][0]["kind"], log["events"][-1]["kind"]) == ("run.queued", "run.failed")
    assert (rest["events"], rest["ended"]) == ([], True)
    assert root.get(path).status_code == 403


@pytest.mark.parametrize(("path", "status"), [("/admin/no/such/", 404), ("/admin/runs/run/?q=%00", 400)])
def test_an_error_page_leads_back_to_the_overview(root: Client, path: str, status: int) -> None:
    page = root.get(path)
    text = page.content.decode()

    assert page.status_code == status
    assert '<a href="/admin/">Back to the overview</a>' in text
    assert inline_parts(text) == []


def test_the_page_of_a_broken_view_needs_nothing() -> None:
    text = defaults.server_error(RequestFactory().get("/")).content.decode()

    assert "Back to the overview" in text
    assert inline_parts(text) == []
