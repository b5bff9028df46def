"""The page of one run: what the database knows, as facts; the page's script adds what happens live.

The same facts (agentops/console/run_facts.py) render the page and answer `facts.json`, which the script reads again
and again, and after a change of state.
"""

import uuid
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.core.files.storage import storages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_POST
from redis.exceptions import RedisError

from agentops.console.run_facts import SEE_PAYLOAD, Facts, facts_of, priorities_of, requeue_plan_of
from agentops.console.run_tables import TABLES
from quotas.display import TONES, pretty, pretty_text, short
from quotas.standing import Standing
from runs import tickets
from runs.downloads import send_file
from runs.models import Artifact, Run
from runs.states import TERMINAL
from workers.models import BulkItem

COLUMNS = Run._meta.concrete_fields  # noqa: SLF001  as documented by Django
SEE = "runs.view_run"
TRACE_PARTS = 4  # of a traceparent: version, trace, parent, flags


class RunPage:
    """The page itself, drawn with a site's frame."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def handle(self, request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
        run = _run(request, run_id)
        facts = facts_of(run, request.user, request.GET)
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
            "config": _config(run, request),
            "priorities": priorities_of(run),
            "requeue_plan": requeue_plan_of(run),
            "session_url": _session_url(run),
            "trace": _trace_id(run),
            "made_by": BulkItem.objects.filter(new_run=run.pk).first() if run.retry_of_id else None,
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
    return JsonResponse(facts_of(_run(request, run_id), request.user, request.GET))


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


def _config(run: Run, request: HttpRequest) -> Facts:
    """Return what the page's script needs to know; read by it from a JSON script block."""
    chosen = {name: request.GET[name] for name in ("a", "b") if request.GET.get(name)}
    user: Any = request.user
    return {
        "run": str(run.pk),
        "account": run.account.name,
        "stream": user.has_perm(SEE_PAYLOAD),
        "terminal": run.state in TERMINAL,
        "tones": TONES,
        "facts": reverse("admin:run_facts", args=[run.pk], query=chosen or None),
        "events": reverse("admin:run_events", args=[run.pk]),
        "ticket": "" if _is_member(run, user) else reverse("admin:run_ticket", args=[run.pk]),
    }


def _is_member(run: Run, user: Any) -> bool:
    """Whether the session itself may open the run's events."""
    return bool(user.is_superuser or user.memberships.filter(account=run.account_id).exists())


def _session_url(run: Run) -> str:
    if not run.session:
        return ""
    return reverse("admin:runs_run_changelist", query={"session": run.session})


def _trace_id(run: Run) -> str:
    """Return the id of the trace that the submit was part of, as tracing tools look it up; nothing of none."""
    parts = run.traceparent.split("-")
    return parts[1] if len(parts) >= TRACE_PARTS else ""
