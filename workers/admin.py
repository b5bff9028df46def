"""Admin pages of the working side: dead letters with their two verbs, and worker processes."""

import datetime as dt
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from quotas.admin_base import ReadOnlyAdmin, actor_of, reason_of, request_id_of
from quotas.display import NOTHING, age_of, pill, pretty, pretty_text, short
from quotas.errors import Refusal
from runs.models import Run
from workers import dead_letters
from workers.heartbeat import alive_seconds
from workers.models import DeadLetter, WorkerProcess
from workers.selectors import running_on

MESSAGE_MAX = 100
REQUEUE = "requeue"
DISCARD = "discard"
PERMISSIONS = {REQUEUE: "workers.requeue_deadletter", DISCARD: "workers.discard_deadletter"}
DONE = {REQUEUE: "Requeued", DISCARD: "Discarded"}


class StateFilter(admin.SimpleListFilter):
    """The state as shown: a dead letter whose run was requeued by anybody counts as requeued."""

    title = "state"
    parameter_name = "state_is"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return list(DeadLetter.State.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:  # noqa: ARG002
        state = self.value()
        return dead_letters.in_state(queryset, state) if state in DeadLetter.State.values else queryset


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    change_form_template = "admin/workers/deadletter/change_form.html"
    list_display = [
        "id",
        "state_shown",
        "reason",
        "error_class",
        "run_link",
        "agent",
        "age",
        "message_shown",
    ]
    list_filter = [StateFilter, "reason", "error_class", "buried_at"]
    search_fields = ["run__id__exact", "message"]
    search_help_text = "Run id or words of the message"
    sortable_by = ()
    ordering = ["-id"]
    actions = ["requeue_selected", "discard_selected"]
    fields = [
        "state_shown",
        "reason",
        "error_class",
        "message",
        "run_link",
        "agent",
        "account",
        "attempts",
        "requeued_as",
        "answer",
        "stream",
        "entry_id",
        "payload_shown",
        "buried_at",
        "resolved_at",
        "resolved_by",
        "resolved_reason",
    ]
    readonly_fields = [
        "state_shown",
        "run_link",
        "agent",
        "account",
        "attempts",
        "requeued_as",
        "answer",
        "payload_shown",
    ]
    payload_fields = frozenset({"message", "message_shown", "answer", "payload_shown"})

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        rows = super().get_queryset(request).select_related("run__account")
        return rows.defer("run__input_json", "run__result_json", "run__error", "run__usage")

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return self._visible(request, self.list_display)

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:  # noqa: ARG002
        return self._visible(request, self.fields)

    def get_search_fields(self, request: HttpRequest) -> list[str]:
        return self._visible(request, self.search_fields)

    def _visible(self, request: HttpRequest, names: list[Any]) -> list[Any]:
        """Leave out what quotes a run's content, unless the user may see payloads."""
        if request.user.has_perm("runs.view_payload"):
            return list(names)
        return [name for name in names if name not in self.payload_fields]

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSIONS[REQUEUE])

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PERMISSIONS[DISCARD])

    @admin.display(description="State")
    def state_shown(self, obj: DeadLetter) -> SafeString:
        return pill(dead_letters.state_of(obj))

    @admin.display(description="Message")
    def message_shown(self, obj: DeadLetter) -> str:
        text = " ".join(obj.message.split())
        return text if len(text) <= MESSAGE_MAX else text[:MESSAGE_MAX] + "…"

    @admin.display(description="Run")
    def run_link(self, obj: DeadLetter) -> str:
        return _run_link(obj.run_id)

    @admin.display(description="Agent")
    def agent(self, obj: DeadLetter) -> str:
        return NOTHING if obj.run is None else obj.run.agent

    @admin.display(description="Account")
    def account(self, obj: DeadLetter) -> str:
        return NOTHING if obj.run is None else obj.run.account.name

    @admin.display(description="Attempts")
    def attempts(self, obj: DeadLetter) -> str:
        return NOTHING if obj.run is None else f"{obj.run.attempt} of {obj.run.max_attempts}"

    @admin.display(description="Last answer, not accepted")
    def answer(self, obj: DeadLetter) -> str:
        text = None if obj.run is None else obj.run.result_json
        return NOTHING if text is None else pretty_text(text)

    @admin.display(description="Requeued as")
    def requeued_as(self, obj: DeadLetter) -> str:
        return _run_link(None if obj.run is None else obj.run.retried_by)

    @admin.display(description="Payload")
    def payload_shown(self, obj: DeadLetter) -> str:
        return pretty_text(obj.payload)

    @admin.display(description="Age")
    def age(self, obj: DeadLetter) -> str:
        return age_of(obj.buried_at)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path(f"<int:pk>/{verb}/", view(self._act_view(verb)), name=f"workers_deadletter_{verb}")
            for verb in (REQUEUE, DISCARD)
        ] + super().get_urls()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        letter = self.get_object(request, object_id)
        is_open = letter is not None and dead_letters.state_of(letter) == DeadLetter.State.OPEN
        has_run = letter is not None and letter.run_id is not None
        context = {
            "may_requeue": is_open and has_run and self.has_requeue_permission(request),
            "may_discard": is_open and self.has_discard_permission(request),
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)

    def _act_view(self, verb: str) -> Callable[..., HttpResponse]:
        def act(request: HttpRequest, pk: int) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            if not request.user.has_perm(PERMISSIONS[verb]):
                raise PermissionDenied
            here = HttpResponseRedirect(reverse("admin:workers_deadletter_change", args=[pk]))
            reason = reason_of(request)
            if verb == DISCARD and not reason:
                self.message_user(request, "Say why it is discarded.", messages.ERROR)
                return here
            self._act(request, verb, [pk], reason)
            return here

        return act

    @admin.action(description="Requeue selected dead letters", permissions=["requeue"])
    def requeue_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        return self._ask_or_act(request, REQUEUE, queryset)

    @admin.action(description="Discard selected dead letters", permissions=["discard"])
    def discard_selected(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        return self._ask_or_act(request, DISCARD, queryset)

    def _ask_or_act(self, request: HttpRequest, verb: str, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Ask for a reason on a page of its own; act when that page comes back."""
        reason = reason_of(request)
        if "confirmed" in request.POST and (reason or verb == REQUEUE):
            self._act(request, verb, list(queryset.values_list("pk", flat=True)), reason)
            return None
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": f"{verb.capitalize()} dead letters",
            "verb": verb,
            "action": f"{verb}_selected",
            "letters": queryset[:200],
            "count": queryset.count(),
            "reason_missing": "confirmed" in request.POST,
            "reason_needed": verb == DISCARD,
            "checkbox": ACTION_CHECKBOX_NAME,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
            "select_across": request.POST.get("select_across", "0"),
        }
        return TemplateResponse(request, "admin/workers/deadletter/act.html", context)

    def _act(self, request: HttpRequest, verb: str, ids: list[int], reason: str) -> None:
        """Call the service for each, each in its own transaction; tell what became of them."""
        act = dead_letters.requeue if verb == REQUEUE else dead_letters.discard
        done = 0
        for pk in ids:
            try:
                answer = act(
                    dead_letter_id=pk,
                    actor=actor_of(request),
                    reason=reason,
                    request_id=request_id_of(request),
                )
            except Refusal as refusal:
                self.message_user(request, f"Dead letter {pk}: {refusal.message}", messages.WARNING)
                continue
            done += 1
            if isinstance(answer, Run) and len(ids) == 1:
                text = format_html("Requeued as run {}.", _run_link(answer.pk))
                self.message_user(request, text, messages.SUCCESS)
                return
        if done:
            self.message_user(request, f"{DONE[verb]}: {done}.", messages.SUCCESS)


def _run_link(run_id: object) -> str:
    if run_id is None:
        return NOTHING
    url = reverse("admin:runs_run_change", args=[run_id])
    return format_html('<a class="run-id" href="{}" title="{}">{}</a>', url, run_id, short(run_id))


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnlyAdmin):
    change_form_template = "admin/workers/workerprocess/change_form.html"
    list_display = [
        "name",
        "alive",
        "heartbeat_age",
        "queues_shown",
        "running",
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
        "alive",
        "heartbeat_at",
        "heartbeat_age",
        "queues_shown",
        "agents_shown",
        "running",
        "version",
        "host",
        "pid",
        "port",
        "started_at",
        "draining_since",
        "stopped_at",
    ]
    readonly_fields = ["alive", "heartbeat_age", "queues_shown", "agents_shown", "running"]

    @admin.display(description="State")
    def alive(self, obj: WorkerProcess) -> SafeString:
        if obj.stopped_at is not None:
            return pill("stopped")
        if obj.heartbeat_at < timezone.now() - dt.timedelta(seconds=alive_seconds()):
            return pill("lost")
        return pill("draining" if obj.draining_since else "alive")

    @admin.display(description="Heartbeat age", ordering="heartbeat_at")
    def heartbeat_age(self, obj: WorkerProcess) -> str:
        return age_of(obj.heartbeat_at)

    @admin.display(description="Queues")
    def queues_shown(self, obj: WorkerProcess) -> str:
        return _words(obj.queues)

    @admin.display(description="Agents")
    def agents_shown(self, obj: WorkerProcess) -> str:
        return _words(obj.agents)

    @admin.display(description="Running")
    def running(self, obj: WorkerProcess) -> str:
        return f"{obj.running_count} of {obj.concurrency}"

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        worker = self.get_object(request, object_id)
        rows: Any = []
        if isinstance(worker, WorkerProcess) and request.user.has_perm("runs.view_run"):
            rows = running_on(worker.name)[:100]
        return super().change_view(request, object_id, form_url, {"current_runs": rows, **(extra_context or {})})


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else pretty(value)
