"""The page of one run: what the database knows, as facts; the page's script adds what happens live.

The same facts render the page and answer `facts.json`, which the script reads after a change of state.
"""

import datetime as dt
import uuid
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.files.storage import storages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST
from redis.exceptions import RedisError

from agentops.console.run_times import limit_rows, note_of, waits_for
from quotas.display import NOTHING, TONES, between, credits_of, moment, pretty, pretty_text, short, span, usage_rows
from quotas.ledger import lines_about
from quotas.models import AuditEntry, Hold
from quotas.standing import Standing
from runs import tickets
from runs.downloads import send_file
from runs.models import Artifact, Run
from runs.outcomes import Cause, ErrorClass
from runs.selectors import estimate_at_submit
from runs.states import TERMINAL, RunState
from workers.models import DeadLetter

Facts = dict[str, Any]
COLUMNS = Run._meta.concrete_fields  # noqa: SLF001  as documented by Django
ROWS = 100  # of attempts, transitions, artifacts, audit: more is in the API
TABLES = (
    (
        "attempts",
        "Attempts",
        ("No.", "Fence", "Worker", "Outcome", "Ran", "Cost", "Error", "Message"),
    ),
    ("usage", "Usage", ("Model", "Kind", "Tokens")),
    ("limits", "Limits", ("Of what", "Limit")),
    ("transitions", "Changes of state", ("Fence", "Event", "At", "By")),
    ("audit", "Audit", ("At", "Who", "Act", "Reason")),
)
CAUSES: dict[str, str] = {
    Cause.EXHAUSTED: "Its last attempt failed as well.",
    Cause.FATAL: "Another attempt would not mend it.",
    Cause.CRASH_LOOP: "It lost its worker, and no attempt was left.",
    Cause.POISON: "It was delivered again and again and never begun.",
    Cause.UNKNOWN_AGENT: "No worker knows its agent.",
    Cause.QUEUE_TIMEOUT: "Nobody began it in time.",
    Cause.QUOTA: "The account had no room for it any more.",
    Cause.BUDGET: "It spent more than was reserved for it.",
}
SEE = "runs.view_run"
SEE_PAYLOAD = "runs.view_payload"
CANCEL = "runs.cancel_run"
REQUEUE = "runs.requeue_run"


class RunPage:
    """The page itself, drawn with a site's frame."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def handle(self, request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
        run = _run(request, run_id)
        facts = facts_of(run, request.user)
        context = {
            **self._site.each_context(request),
            "title": f"Run {run.pk}",
            "crumb": f"Run {short(run.pk)}",
            "opts": Run._meta,  # noqa: SLF001  the public way to a model's options, Django says
            "run": run,
            "facts": facts,
            "tables": [
                {"id": f"run-{key}", "heading": heading, "columns": columns, "rows": facts[key]}
                for key, heading, columns in TABLES
            ],
            "config": _config(run, request.user),
            "session_url": _session_url(run),
        }
        if facts["payload"]:
            context |= {
                "input": pretty_text(run.input_json),
                "metadata": pretty(run.metadata) if run.metadata else "",
                "tags": run.tags if isinstance(run.tags, list) else [run.tags],
            }
        return TemplateResponse(request, "admin/runs/run/change_form.html", context)


def facts_view(request: HttpRequest, run_id: uuid.UUID) -> JsonResponse:
    """Answer the run's facts as JSON."""
    return JsonResponse(facts_of(_run(request, run_id), request.user))


def raw_view(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Answer the run's row as JSON text, for reports and for people who want all of it."""
    run = _run(request, run_id)
    hidden = {"claim_token"}  # whoever knows it could write as the owner
    if not request.user.has_perm(SEE_PAYLOAD):
        hidden |= {"input_json", "result_json", "error", "metadata", "tags"}
    row = {f.attname: getattr(run, f.attname) for f in COLUMNS if f.attname not in hidden}
    return HttpResponse(pretty(row), content_type="application/json; charset=utf-8")


@require_POST
def ticket_view(request: HttpRequest, run_id: uuid.UUID) -> JsonResponse:
    """Answer a ticket for the run's events, for operators who are no members of its account."""
    run = _run(request, run_id)
    if not request.user.has_perm(SEE_PAYLOAD):
        raise PermissionDenied
    key = request.session.session_key or ""
    standing = Standing(user_id=request.user.pk, session_key=key, permissions=(SEE, SEE_PAYLOAD))
    try:
        return JsonResponse({"ticket": tickets.issue(run.pk, run.account_id, standing)})
    except RedisError:
        return JsonResponse({"ticket": ""}, status=503)


def artifact_view(request: HttpRequest, run_id: uuid.UUID, pk: int) -> HttpResponseBase:
    """Send an artifact's bytes, always as a download: what an agent made is never shown as a page of ours."""
    _run(request, run_id)
    if not request.user.has_perm(SEE_PAYLOAD):
        raise PermissionDenied
    artifact = get_object_or_404(Artifact, pk=pk, run_id=run_id)
    try:
        body = storages["artifacts"].open(artifact.path)
    except (OSError, SuspiciousOperation) as error:
        raise Http404("The file of this artifact is gone.") from error
    return send_file(request, body, name=artifact.name, content_type=artifact.content_type, size=artifact.size)


def _run(request: HttpRequest, run_id: uuid.UUID) -> Run:
    if not request.user.has_perm(SEE):
        raise PermissionDenied
    return get_object_or_404(Run.objects.select_related("account"), pk=run_id)


def facts_of(run: Run, user: Any) -> Facts:
    """Return what changes in a run's life, ready to show: texts, rows of texts, and links."""
    now = timezone.now()
    payload = user.has_perm(SEE_PAYLOAD)
    return {
        "state": run.state,
        "when": waits_for(run, now),
        "terminal": run.state in TERMINAL,
        "payload": payload,
        "head": _head(run, now),
        "money": _money(run) if user.has_perm("quotas.view_hold") else [],
        "attempts": _attempts(run, now, payload=payload),
        "usage": usage_rows(run.usage),
        "limits": limit_rows(run),
        "transitions": _transitions(run),
        "audit": _audit(run) if user.has_perm("quotas.view_auditentry") else [],
        "artifacts": _artifacts(run) if payload else [],
        "links": _links(run, user),
        "result": pretty_text(run.result_json) if payload else "",
        "result_name": _result_name(run),
        "error": _error_text(run.error) if payload else "",
        "error_class": run.error_class,
        "note": note_of(run),
        "may_cancel": run.state not in TERMINAL and user.has_perm(CANCEL),
        "may_requeue": run.state in TERMINAL
        and run.retried_by is None
        and not run.payload_pruned
        and user.has_perm(REQUEUE),
    }


def _result_name(run: Run) -> str:
    if run.state != RunState.FAILED:
        return "Result"
    return "Partial output" if run.error_class == ErrorClass.BUDGET else "Last answer, not accepted"


def _head(run: Run, now: dt.datetime) -> list[list[str]]:
    running = run.state == RunState.RUNNING
    lease = (run.lease_expires_at - now).total_seconds() if running and run.lease_expires_at else None
    lease_text = NOTHING if lease is None else span(lease) if lease > 0 else "lapsed"
    begun = run.started_at or run.finished_at
    return [
        ["Attempt", f"{run.attempt} of {run.max_attempts}"],
        ["Fence", str(run.fence)],
        ["Worker" if running or not run.worker else "Last worker", run.worker or NOTHING],
        ["Lease left", lease_text],
        ["First start after", between(run.submitted_at, begun or now) + ("" if begun else " so far")],
        ["Since its first start", between(run.started_at, run.finished_at or now)],
    ]


def _money(run: Run) -> list[list[str]]:
    hold = Hold.objects.filter(run_id=run.pk).first()
    rows = [["Cost", credits_of(run.cost)]]
    rows += [["Estimate", credits_of(estimate_at_submit(run))], ["Budget", credits_of(run.budget)]]
    if hold is None:
        return [*rows, ["Hold", "none"]]
    raised = f", raised {hold.extensions} times" if hold.extensions else ""
    held = f"{credits_of(hold.amount)} ({hold.state}{raised})"
    return [*rows, ["Hold", held], ["Settled at", credits_of(hold.actual)], ["Paid by", run.account.name]]


def _attempts(run: Run, now: dt.datetime, *, payload: bool) -> list[list[str]]:
    rows = run.attempts.defer("result_json", "usage", "progress").order_by("-fence")[:ROWS]
    return [
        [
            str(a.number),
            str(a.fence),
            a.worker,
            a.outcome or "running",
            between(a.started_at, a.ended_at or now),
            credits_of(a.cost),
            a.error_class,
            _error_line(a.error) if payload else "",
        ]
        for a in rows
    ]


def _transitions(run: Run) -> list[list[str]]:
    rows = run.transitions.order_by("-fence").only("fence", "kind", "at", "actor")[:ROWS]
    return [[str(t.fence), t.kind, moment(t.at), t.actor] for t in rows]


def _audit(run: Run) -> list[list[str]]:
    rows = AuditEntry.objects.filter(target_id=str(run.pk)).order_by("-id")[:ROWS]
    return [[moment(e.at), e.actor, e.action, e.reason] for e in rows]


def _artifacts(run: Run) -> list[list[str]]:
    rows = run.artifacts.order_by("name")[:ROWS]
    return [[a.name, a.content_type, f"{a.size:,}", reverse("admin:run_artifact", args=[run.pk, a.pk])] for a in rows]


def _links(run: Run, user: Any) -> list[list[str]]:
    """Return the linked rows as [what, text, address]."""
    links = [
        ["Waits for the session's run", _session_holder(run)],
        ["Requeued from", str(run.retry_of_id or "")],
        ["Requeued as", str(run.retried_by or "")],
    ]
    found = [[what, i, reverse("admin:runs_run_change", args=[i])] for what, i in links if i]
    if user.has_perm("quotas.view_ledgerentry"):
        found += [
            ["Ledger line", f"{pk}: {kind} {credits_of(amount)}", reverse("admin:quotas_ledgerentry_change", args=[pk])]
            for pk, kind, amount in lines_about(run.pk)
        ]
    if user.has_perm("workers.view_deadletter"):
        letter = DeadLetter.objects.filter(run_id=run.pk).only("id", "reason", "state").first()
        if letter is not None:
            address = reverse("admin:workers_deadletter_change", args=[letter.pk])
            found.append(["Dead letter", f"{letter.pk}: {letter.reason}", address])
    return found


def _session_holder(run: Run) -> str:
    """Return the id of the run whose end a blocked run waits for, or nothing."""
    if run.blocked_by_session is None:
        return ""
    rows = Run.objects.filter(account=run.account_id, session_slot=run.blocked_by_session)
    return str(rows.values_list("pk", flat=True).first() or "")


def _config(run: Run, user: Any) -> Facts:
    """Return what the page's script needs to know; read by it from a JSON script block."""
    return {
        "run": str(run.pk),
        "account": run.account.name,
        "stream": user.has_perm(SEE_PAYLOAD),
        "terminal": run.state in TERMINAL,
        "tones": TONES,
        "facts": reverse("admin:run_facts", args=[run.pk]),
        "events": reverse("admin:run_events", args=[run.pk]),
        "ticket": "" if _is_member(run, user) else reverse("admin:run_ticket", args=[run.pk]),
    }


def _is_member(run: Run, user: Any) -> bool:
    """Whether the session itself may open the run's events."""
    return bool(user.is_superuser or user.memberships.filter(account=run.account_id).exists())


def _session_url(run: Run) -> str:
    if not run.session:
        return ""
    return reverse("admin:runs_run_changelist", query={"session_is": run.session})


def _error_line(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message", ""))[:300]
    return "" if error is None else str(error)[:300]


def _error_text(error: Any) -> str:
    """Return an error for people: type and message, cause, then the traceback. Odd shapes are shown as they are."""
    if error is None:
        return ""
    if not isinstance(error, dict) or "message" not in error:
        return pretty(error)
    head = ": ".join(filter(None, (str(error.get("type") or ""), str(error["message"]))))
    cause = CAUSES.get(str(error.get("cause") or ""), "")
    return "\n\n".join(filter(None, (head, cause, str(error.get("traceback") or ""))))
