"""Worker processes: the list, the page of one with what it runs, and the acts on it."""

import datetime as dt
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.defaultfilters import filesizeformat
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from redis.exceptions import RedisError

from quotas.admin_base import ReadOnlyAdmin, actor_of, reason_of, request_id_of
from quotas.display import NOTHING, age_of, pill, pretty
from quotas.errors import Refusal
from workers.drains import recall_drain, request_drain, take_over_from
from workers.heartbeat import alive_seconds
from workers.models import WorkerProcess
from workers.selectors import runs_at_work

PERMISSION = "workers.drain_workerprocess"
RUNS = 100  # of a worker that are shown
DRAIN, UNDRAIN, TAKE_OVER = "drain", "undrain", "take-over"


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnlyAdmin):
    change_form_template = "admin/workers/workerprocess/change_form.html"
    list_display = [
        "name",
        "state",
        "heartbeat_age",
        "queues_shown",
        "running",
        "memory",
        "version",
        "host",
        "pid",
        "started_at",
    ]
    list_filter = ["heartbeat_at"]
    search_fields = ["name", "host"]
    ordering = ["-heartbeat_at"]
    fields = [
        "name",
        "state",
        "heartbeat_at",
        "heartbeat_age",
        "queues_shown",
        "agents_shown",
        "running",
        "memory",
        "version",
        "host",
        "pid",
        "port",
        "started_at",
        "drain_requested_at",
        "drain_requested_by",
        "draining_since",
        "leaving_at",
        "stopped_at",
    ]
    readonly_fields = ["state", "heartbeat_age", "queues_shown", "agents_shown", "running", "memory"]

    @admin.display(description="State")
    def state(self, obj: WorkerProcess) -> SafeString:
        return pill(state_of(obj))

    @admin.display(description="Heartbeat age", ordering="heartbeat_at")
    def heartbeat_age(self, obj: WorkerProcess) -> str:
        return age_of(obj.heartbeat_at)

    @admin.display(description="Queues")
    def queues_shown(self, obj: WorkerProcess) -> str:
        return _words(obj.queues)

    @admin.display(description="Agents")
    def agents_shown(self, obj: WorkerProcess) -> str:
        return _words(obj.agents)

    @admin.display(description="Places in use")
    def running(self, obj: WorkerProcess) -> str:
        return f"{obj.running_count} of {obj.concurrency}"

    @admin.display(description="Memory", ordering="memory_bytes")
    def memory(self, obj: WorkerProcess) -> str:
        return NOTHING if obj.memory_bytes is None else filesizeformat(obj.memory_bytes)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        ours = [
            path(f"<int:pk>/{verb}/", view(self._act_view(act)), name=f"workers_workerprocess_{verb}")
            for verb, act in ((DRAIN, _drain), (UNDRAIN, _undrain), (TAKE_OVER, _take_over))
        ]
        return ours + super().get_urls()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        worker = self.get_object(request, object_id)
        context: dict[str, Any] = {"current_runs": [], **(extra_context or {})}
        if isinstance(worker, WorkerProcess):
            if request.user.has_perm("runs.view_run"):
                context["current_runs"] = runs_at_work(worker.name, RUNS)
            acts = _acts_on(worker) if request.user.has_perm(PERMISSION) else []
            route = "admin:workers_workerprocess_{}"
            context["acts"] = [(reverse(route.format(verb), args=[worker.pk]), verb, *said) for verb, *said in acts]
        return super().change_view(request, object_id, form_url, context)

    def _act_view(self, act: Callable[[HttpRequest, str, str], str]) -> Callable[..., HttpResponse]:
        def view(request: HttpRequest, pk: int) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            if not request.user.has_perm(PERMISSION):
                raise PermissionDenied
            worker = WorkerProcess.objects.filter(pk=pk).first()
            if worker is None:
                raise Http404
            reason = reason_of(request)
            if not reason:
                self.message_user(request, "Say why; nothing was done.", messages.ERROR)
            else:
                self._do(request, act, worker.name, reason)
            return HttpResponseRedirect(reverse("admin:workers_workerprocess_change", args=[pk]))

        return view

    def _do(self, request: HttpRequest, act: Callable[[HttpRequest, str, str], str], name: str, reason: str) -> None:
        try:
            self.message_user(request, act(request, name, reason), messages.SUCCESS)
        except Refusal as refusal:
            self.message_user(request, refusal.message, messages.ERROR)
        except RedisError as error:
            self.message_user(request, f"Redis does not answer, so this was not finished: {error}", messages.ERROR)


def state_of(row: WorkerProcess) -> str:
    """Return the state of a worker process in one word."""
    if row.stopped_at is not None:
        return "stopped"
    if row.heartbeat_at < timezone.now() - dt.timedelta(seconds=alive_seconds()):
        return "lost"
    return "draining" if row.draining_since or row.drain_requested_at else "alive"


def _acts_on(row: WorkerProcess) -> list[tuple[str, str, str]]:
    """Return (verb, button, what it does) of the acts that fit the worker's state."""
    state = state_of(row)
    if state == "alive":
        return [(DRAIN, "Drain", "It takes nothing more, finishes what runs within its grace, and stops.")]
    if state == "draining" and row.leaving_at is None and row.drain_requested_at is not None:
        return [(UNDRAIN, "Undrain", "It goes on working. Possible until its last run has ended.")]
    if state == "lost":
        what = "Its runs get their next state now, without waiting for their leases, if its end can be proved here."
        return [(TAKE_OVER, "Take over its runs", what)]
    return []


def _drain(request: HttpRequest, name: str, reason: str) -> str:
    request_drain(name=name, actor=actor_of(request), reason=reason, request_id=request_id_of(request))
    return "Asked to drain: it takes nothing more, and stops when its runs have ended."


def _undrain(request: HttpRequest, name: str, reason: str) -> str:
    recall_drain(name=name, actor=actor_of(request), reason=reason, request_id=request_id_of(request))
    return "The drain is recalled: it goes on working."


def _take_over(request: HttpRequest, name: str, reason: str) -> str:
    taken = take_over_from(name=name, actor=actor_of(request), reason=reason, request_id=request_id_of(request))
    return f"The worker is gone. Runs that were taken over: {taken}."


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else pretty(value)
