"""The switches: pause and resume of a queue, maintenance. Each is a POST, a permission, one service call."""

from collections.abc import Callable

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from quotas.admin_base import actor_of, reason_of, request_id_of
from quotas.errors import Refusal
from runs.controls import begin_maintenance, end_maintenance, pause_queue, resume_queue
from runs.errors import InvalidRequest

PAUSE, MAINTENANCE = "runs.pause_queue", "runs.set_maintenance"
PAGES = {"streams": "admin:streams"}  # where a switch leads back to; the overview from everywhere else
NUMBER_MAX = 9  # digits of a number that is read at all


def _act(permission: str, act: Callable[[HttpRequest], str]) -> Callable[..., HttpResponse]:
    """Return the view of a switch. `act` does it and answers what is said then."""

    @require_POST
    def view(request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(permission):
            raise PermissionDenied
        try:
            messages.success(request, act(request))
        except Refusal as refusal:
            messages.error(request, refusal.message)
        return HttpResponseRedirect(reverse(PAGES.get(request.POST.get("page", ""), "admin:index")))

    return view


def _queue(request: HttpRequest) -> str:
    return request.POST.get("queue", "").replace("\0", "")


def _pause(request: HttpRequest) -> str:
    row, is_new = pause_queue(
        queue=_queue(request),
        actor=actor_of(request),
        reason=reason_of(request),
        request_id=request_id_of(request),
    )
    if is_new:
        return f"The queue {row.queue} is paused. Workers know within about a second; what runs goes on."
    return f"The queue {row.queue} was paused before, by {row.paused_by}: {row.reason}"


def _resume(request: HttpRequest) -> str:
    queue = _queue(request)
    ended = resume_queue(
        queue=queue, actor=actor_of(request), reason=reason_of(request), request_id=request_id_of(request)
    )
    return f"The queue {queue[:60]} is resumed." if ended else f"The queue {queue[:60]} was not paused."


def _begin(request: HttpRequest) -> str:
    typed = request.POST.get("retry_after", "").strip()
    if not (typed.isascii() and typed.isdigit() and len(typed) <= NUMBER_MAX):
        raise InvalidRequest(field="retry_after", problem="a number of seconds is needed")
    begin_maintenance(
        message=request.POST.get("message", ""),
        retry_after_seconds=int(typed),
        actor=actor_of(request),
        request_id=request_id_of(request),
    )
    return "Maintenance is on: new runs are refused within about a second."


def _end(request: HttpRequest) -> str:
    ended = end_maintenance(actor=actor_of(request), reason=reason_of(request), request_id=request_id_of(request))
    return "Maintenance is off: new runs are accepted." if ended else "Maintenance was off already."


pause = _act(PAUSE, _pause)
resume = _act(PAUSE, _resume)
begin = _act(MAINTENANCE, _begin)
end = _act(MAINTENANCE, _end)
