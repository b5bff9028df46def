"""The acts on a run's page: cancel and another priority. A POST, a permission, a service call, a message each.

A requeue is planned first, on a page of its own (plan_page).
"""

import uuid
from collections.abc import Callable

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from agentops.console.run_facts import CANCEL, REPRIORITISE
from quotas.admin_base import actor_of, reason_of, request_id_of
from quotas.errors import Refusal
from runs.services import cancel_run, reprioritise

CANCEL_SAID = {
    "cancelled": "The run is cancelled.",
    "requested": "Cancel requested: the worker stops the run.",
    "ended": "The run had ended already; nothing was changed.",
}


def _act(permission: str, act: Callable[[HttpRequest, uuid.UUID, str], str]) -> Callable[..., HttpResponse]:
    """Return the view of an act. `act` answers the address to go to."""

    @require_POST
    def view(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
        if not request.user.has_perm(permission):
            raise PermissionDenied
        try:
            address = act(request, run_id, reason_of(request))
        except Refusal as refusal:
            messages.error(request, _told(refusal))
            address = page_of(run_id)
        return HttpResponseRedirect(address)

    return view


def _cancel(request: HttpRequest, run_id: uuid.UUID, reason: str) -> str:
    verdict = cancel_run(run_id=run_id, actor=actor_of(request), reason=reason, request_id=request_id_of(request))
    messages.success(request, CANCEL_SAID.get(verdict.what, verdict.what))
    return page_of(run_id)


def _priority(request: HttpRequest, run_id: uuid.UUID, reason: str) -> str:
    priority = request.POST.get("priority", "")[:20]
    run = reprioritise(run_id, priority, actor_of(request), reason=reason, request_id=request_id_of(request))
    messages.success(request, f"The priority is {run.priority} now.")
    return page_of(run_id)


def page_of(run_id: object) -> str:
    """Return the address of a run's page."""
    return reverse("admin:runs_run_change", args=[run_id])


def _told(refusal: Refusal) -> str:
    """Return the refusal's message, with a link to the run that was there first."""
    first = refusal.facts.get("retried_by")
    if not first:
        return refusal.message
    return format_html('{} <a href="{}">Open it</a>.', refusal.message, page_of(first))


cancel = _act(CANCEL, _cancel)
priority = _act(REPRIORITISE, _priority)
