"""A run's log as JSON for its page: what is needed once the run has ended, and where no socket can be opened."""

import uuid

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, JsonResponse

from agentops.console.run_facts import SEE_PAYLOAD
from agentops.console.run_page import SEE
from quotas.errors import Refusal
from runs.reader import read_events


def events_view(request: HttpRequest, run_id: uuid.UUID) -> JsonResponse:
    """Answer a page of events after `?after=`: {events, next, ended}. Redis may be away."""
    if not (request.user.has_perm(SEE) and request.user.has_perm(SEE_PAYLOAD)):
        raise PermissionDenied
    try:
        page = read_events(run_id, request.GET.get("after", ""))
    except Refusal as refusal:
        return JsonResponse({"code": refusal.code, "detail": refusal.message}, status=refusal.status)
    return JsonResponse({"events": page.events, "next": page.next, "ended": page.ended})
