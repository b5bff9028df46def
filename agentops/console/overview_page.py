"""The overview: its first drawing, the parts that are read again now and then, and the series of its charts."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, JsonResponse
from django.template.loader import render_to_string
from django.utils import timezone

from agentops.console import ended
from agentops.console.latest import Latest
from agentops.console.overview import CAP, numbers_for, recent_runs
from agentops.console.problems import MONEY, RUNS, WORKERS
from quotas.models import Account, AuditEntry
from quotas.selectors import spent_by_account
from runs.models import Run
from runs.states import RunState
from workers.cases import top_cases
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess

AUDIT, CASES = "quotas.view_auditentry", "workers.view_case"
WORKERS_SHOWN, ACCOUNTS_SHOWN, CASES_SHOWN, ACTS_SHOWN = 20, 5, 5, 5
LEASES_SEEN = 2_000
ACTS_SEEN = 200
FRESH_SECONDS = 5.0


def context_for(user: Any) -> dict[str, Any]:
    """Return what the page is drawn with."""
    sees_runs = user.has_perm(RUNS)
    return {"numbers": numbers_for(user), "charts": ended.charts.get() if sees_runs else None, **parts_for(user)}


def charts_view(request: HttpRequest) -> JsonResponse:
    """Answer the series of the last hour."""
    if not request.user.has_perm(RUNS):
        raise PermissionDenied
    return JsonResponse(ended.charts.get())


def parts_view(request: HttpRequest) -> JsonResponse:
    """Answer the lower part of the page, drawn: {html, at}."""
    html = render_to_string("console/_overview_parts.html", parts_for(request.user), request)
    return JsonResponse({"html": html, "at": timezone.now().isoformat()})


def parts_for(user: Any) -> dict[str, Any]:
    """Return {workers, accounts, cases, acts, recent}; what the user may not see is None."""

    def if_allowed(permission: str, read: Latest[Any]) -> Any:
        return read.get() if user.has_perm(permission) else None

    return {
        "workers": if_allowed(WORKERS, workers),
        "accounts": if_allowed(MONEY, accounts),
        "cases": if_allowed(CASES, cases),
        "acts": if_allowed(AUDIT, acts),
        "recent": list(recent_runs()) if user.has_perm(RUNS) else None,
    }


def _workers() -> dict[str, Any]:
    """Return {rows: [{worker, state, beat, lease}], more}: seconds since its heartbeat, and left of its next lease."""
    now = timezone.now()
    found = list(WorkerProcess.objects.filter(stopped_at=None).order_by("-heartbeat_at")[: WORKERS_SHOWN + 1])
    owned = Run.objects.filter(state=RunState.RUNNING, lease_expires_at__isnull=False).order_by("lease_expires_at")
    first: dict[str, float] = {}
    for name, at in owned.values_list("worker", "lease_expires_at")[:LEASES_SEEN]:
        first.setdefault(name, 0.0 if at is None else (at - now).total_seconds())
    rows = [
        {
            "worker": worker,
            "state": _state_of(worker, (now - worker.heartbeat_at).total_seconds()),
            "beat": (now - worker.heartbeat_at).total_seconds(),
            "lease": first.get(worker.name),
        }
        for worker in found[:WORKERS_SHOWN]
    ]
    return {"rows": rows, "more": len(found) > WORKERS_SHOWN}


def _state_of(worker: WorkerProcess, silent: float) -> str:
    if silent > alive_seconds():
        return "lost"
    return "draining" if worker.draining_since or worker.drain_requested_at else "alive"


def _accounts() -> list[dict[str, Any]]:
    """Return the accounts that used most of their limit: [{account, spent, share}]; the share is in thousandths."""
    every = list(Account.objects.order_by("pk")[:CAP])
    spent = spent_by_account(every, timezone.now())

    def share(one: Account) -> int:
        return max(0, spent[one.pk] + one.held) * 1000 // one.limit if one.limit > 0 else 1000

    top = sorted(every, key=lambda one: -share(one))[:ACCOUNTS_SHOWN]
    return [{"account": one, "spent": spent[one.pk], "share": min(1000, share(one))} for one in top]


def _acts() -> list[AuditEntry]:
    """Return the last acts of people, of the newest ACTS_SEEN lines."""
    newest = AuditEntry.objects.order_by("-id")[:ACTS_SEEN]
    return [one for one in newest if one.actor != "system"][:ACTS_SHOWN]


workers = Latest(_workers, FRESH_SECONDS)
accounts = Latest(_accounts, FRESH_SECONDS)
cases = Latest(lambda: top_cases(CASES_SHOWN), FRESH_SECONDS)
acts = Latest(_acts, FRESH_SECONDS)
