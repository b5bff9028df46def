"""The pages that are opened on a full instance, by their names."""

from collections.abc import Iterator
from urllib.parse import urlencode
from uuid import uuid4

from django.urls import reverse

from agentops.benchmark.fill import accounts
from agentops.benchmark.made_up import MARK
from quotas.models import Account, ApiKey, Hold
from runs.models import Run
from runs.states import RunState
from tests import builders
from tests.access import rules
from workers.bulk import operations
from workers.bulk.options import Options
from workers.models import Case, DeadLetter, WorkerProcess

RUNS = reverse("admin:runs_run_changelist")
LETTERS = reverse("admin:workers_deadletter_changelist")
DEEP = 50_000  # rows before page 1,000
OF_RUNS = [
    {}, *({"state": state} for state in RunState.values), {"state": "queued,scheduled"}, {"agent": f"{MARK}.agent00"},
    {"agent": f"{MARK}.agent19"}, {"agent": "no.such"}, {"account": f"{MARK}-00"}, {"account": f"{MARK}-49"},
    {"account": f"{MARK}-01", "agent": f"{MARK}.agent03", "state": "failed"}, {"queue": MARK},
    {"queue": f"{MARK}-rare"}, {"queue": "none"}, {"priority": "critical"}, {"priority": "normal"},
    {"session": f"{MARK}-session-3"}, {"session": "none"}, {"tag": "vip"}, {"tag": "nightly"}, {"tag": "none"},
    {"metadata": "customer=c77"}, {"metadata": "plan=pro"}, {"metadata": "none"}, {"metadata": "customer"},
    {"from": "24h"}, {"from": "7d", "to": "6d"}, {"from": "20d", "to": "19d", "state": "interrupted"},
    {"min_cost": "5"}, {"min_cost": "0.01"}, {"min_cost": "100000"}, {"from": "today", "min_cost": "1"},
    {"error_class": "timeout"}, {"error_class": "poison"}, {"error": "parse the invoice"}, {"error": "no such words"},
    {"worker": f"{MARK}-worker-03"}, {"worker": "none"}, {"waiting_over": "60"}, {"q": "no such words"},
    {"q": f"{MARK}-session-3"}, {"q": "vip"}, {"q": "customer=c77"}, {"state": "failed", "from": "1h"},
]  # fmt: skip
OF_LETTERS = [
    {}, {"state_is": "open"}, {"state_is": "requeued"}, {"state_is": "discarded"}, {"reason": "fatal"},
    {"reason": "poison"}, {"error_class": "timeout"}, {"error_class": "none"}, {"agent_is": f"{MARK}.agent00"},
    {"agent_is": "none"}, {"account": f"{MARK}-49"}, {"since": "2026-01-01"}, {"q": "invoice"}, {"q": "no such words"},
]  # fmt: skip


def console() -> Iterator[tuple[str, str]]:
    """Yield (name, address) of the console's pages: each list, its filters, deep pages, the page of one thing."""
    for page, rule in rules.PAGES.items():
        is_page = rule not in {rules.NEVER, rules.PUBLIC} and page not in rules.POSTS and not set("<(^") & set(page)
        if is_page and not page.endswith(".csv"):  # a file of all there is
            yield page or "overview", f"/admin/{page}"
    for query in OF_RUNS:
        yield _name("runs", query), f"{RUNS}?{urlencode(query)}"
    for query in OF_LETTERS:
        yield _name("dead letters", query), f"{LETTERS}?{urlencode(query)}"
    yield from _deep()
    yield from _single()
    yield from _plans()


def _name(what: str, query: dict[str, str]) -> str:
    return f"{what} {' '.join(f'{key}={value}' for key, value in query.items())}".strip()


def _deep() -> Iterator[tuple[str, str]]:
    ids = Run.objects.order_by("-pk").values_list("pk", flat=True)
    deep = ids[min(DEEP, ids.count() - 2)]
    yield "runs, page 1000", f"{RUNS}?older_than={deep}"
    yield "runs, newer than page 1000", f"{RUNS}?newer_than={deep}"
    yield "runs of an agent, page 1000", f"{RUNS}?agent={MARK}.agent00&older_than={deep}"
    yield "runs, last page", f"{RUNS}?older_than={ids.reverse()[30]}"
    yield "runs, by id", f"{RUNS}?q={deep}"
    shown = ",".join(map(str, ids[:50]))
    yield "runs, rows.json", f"{reverse('admin:runs_run_rows')}?ids={shown}&newer_than={deep}&state=failed"
    case = Case.objects.order_by("-count").first()
    if case is not None:
        yield "runs of the largest case", f"{RUNS}?case={case.pk}"
        yield "dead letters of the largest case", f"{LETTERS}?case={case.pk}"


def _single() -> Iterator[tuple[str, str]]:
    for state in RunState.values:
        run = Run.objects.filter(state=state).order_by("-pk").first()
        if run is not None:
            yield f"run, {state}", reverse("admin:runs_run_change", args=[run.pk])
    long = Run.objects.filter(metadata={}, state="failed").order_by("-pk").first()
    for name, row in {
        "deadletter": DeadLetter.objects.order_by("-pk").first(), "case": Case.objects.order_by("-count").first(),
        "workerprocess": WorkerProcess.objects.first(), "account": accounts().first(), "hold": Hold.objects.first(),
        "run with a long error": long,
    }.items():  # fmt: skip
        if row is not None:
            opts = row._meta
            yield name, reverse(f"admin:{opts.app_label}_{opts.model_name}_change", args=[row.pk])


def _plans() -> Iterator[tuple[str, str]]:
    """Yield the plans of acts on very many, and of one; then pages that belong to no list."""
    plan, failed = reverse("admin:bulk_plan"), Run.objects.filter(state="failed").order_by("-pk").first()
    for query in (
        {"kind": "requeue", "source": "letters"}, {"kind": "requeue", "source": "letters", "state_is": "open"},
        {"kind": "discard", "source": "letters", "agent_is": f"{MARK}.agent00"},
        {"kind": "requeue", "source": "runs", "state": "failed"}, {"kind": "cancel", "source": "runs"},
        {"kind": "reprioritise", "source": "runs", "state": "queued", "agent": f"{MARK}.agent01"},
    ):  # fmt: skip
        yield _name("plan", query), f"{plan}?{urlencode(query)}"
    if failed is not None:
        yield "requeue plan of a run", f"{reverse('admin:requeue_plan')}?run={failed.pk}"
    operation = operations.start(
        kind="discard", source="letters", query={}, options=Options(), actor="scale", reason="measured", form_id=uuid4()
    )
    operations.abort(operation.pk, actor="scale", reason="measured")
    yield "bulk operation", reverse("admin:workers_bulkoperation_change", args=[operation.pk])
    yield "agent", f"{reverse('admin:agents')}?agent={MARK}.agent00"
    cases, audit = reverse("admin:workers_case_changelist"), reverse("admin:quotas_auditentry_changelist")
    yield "cases, words", f"{cases}?q=invoice"
    yield "audit log, words", f"{audit}?reason_has=measured"


def api() -> Iterator[tuple[str, str]]:
    """Yield (name, address) of the API's lists. `key_of` has the key that sees them."""
    runs = "/api/v1/runs"
    for query in (
        {}, {"state": "failed"}, {"state": "running"}, {"agent": f"{MARK}.agent19"}, {"session": f"{MARK}-session-3"},
        {"tag": "vip"}, {"tag": "none"}, {"metadata": "customer=c77"}, {"from": "2026-01-01"},
        {"fingerprint": "0" * 64},
    ):  # fmt: skip
        yield _name("API runs", query), f"{runs}?{urlencode(query)}"
    deep = Run.objects.filter(account=_largest()).order_by("pk").values_list("pk", flat=True)[100:101].first()
    yield "API runs, last pages", f"{runs}?after={deep}"
    for path in ("dead-letters", "ledger", "quota", "queue/status", "workers", "agents", "spending?by=agent"):
        yield f"API {path}", f"/api/v1/{path}"


def _largest() -> Account:
    return Account.objects.get(name=f"{MARK}-00")


def key_of() -> tuple[ApiKey, str]:
    """Make a key with every scope, of the account with most runs."""
    return builders.make_api_key(_largest(), scopes=["read", "submit", "cancel", "admin"])
