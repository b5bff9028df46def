"""The streams: what each holds, the server behind them, the database against Redis, and the repair."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.views.decorators.http import require_POST
from redis.exceptions import RedisError

from quotas.admin_base import actor_of, reason_of, request_id_of
from quotas.errors import Refusal
from runs.metrics import count_store_error
from workers import differences, streams

SEE, REPAIR = "workers.view_workerprocess", "workers.repair_streams"


class StreamsPage:
    """The page, drawn with a site's frame."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def handle(self, request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(SEE):
            raise PermissionDenied
        context = {**self._site.each_context(request), "title": "Streams", "looked_at": differences.PAGE}
        try:
            context |= {
                "streams": streams.list_streams(),
                "waiting_sets": streams.list_waiting_sets(),
                "server": streams.server_facts(),
                "differences": differences.find_differences(),
            }
        except RedisError as error:
            count_store_error(error)
            context["away"] = str(error) or type(error).__name__
        return TemplateResponse(request, "console/streams.html", context, status=503 if "away" in context else 200)


@require_POST
def repair(request: HttpRequest) -> HttpResponse:
    """Have the sweeper's duties on the streams run now."""
    if not request.user.has_perm(REPAIR):
        raise PermissionDenied
    there = HttpResponseRedirect(reverse("admin:streams"))
    reason = reason_of(request)
    if not reason:
        messages.error(request, "Say why the streams are repaired.")
        return there
    try:
        done = streams.repair_streams(actor=actor_of(request), reason=reason, request_id=request_id_of(request))
    except Refusal as refusal:
        messages.warning(request, refusal.message)
    except RedisError as error:
        count_store_error(error)
        messages.error(request, f"Redis does not answer: {error}")
    else:
        for duty, problem in done.failed.items():
            messages.error(request, f"{duty}: {problem}")
        if not done.failed:
            messages.success(request, "Repaired: what is still shown below is left to workers and the next passes.")
    return there
