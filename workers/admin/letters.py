"""Dead letters: the list with its filters, and the page of one, where it is discarded or restored.

A requeue is planned first, as everything that is done to many is (agentops/console/plan_page.py).
"""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from quotas.admin_base import (
    ReadOnlyAdmin,
    actor_of,
    reason_of,
    request_id_of,
    run_link,
)
from quotas.display import NOTHING, age_of, pill, pretty_text
from quotas.errors import Refusal
from workers import dead_letters
from workers.admin.letter_lists import FILTERS, is_run_id, narrowed_or_told
from workers.models import DeadLetter

MESSAGE_MAX = 100
REQUEUE = "workers.requeue_deadletter"
DISCARD = "discard"
RESTORE = "restore"
RESOLVE = "workers.discard_deadletter"
DONE = {DISCARD: "Discarded", RESTORE: "Restored"}
ACTS: dict[str, Callable[..., object]] = {DISCARD: dead_letters.discard, RESTORE: dead_letters.restore}


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
        "case_link",
        "message_shown",
    ]
    list_filter = FILTERS
    search_fields = ["run__id__exact", "message"]  # shows the field; `letter_filters` says what it finds
    search_help_text = "Run id, or words of the message of the newest 20,000"
    sortable_by = ()
    ordering = ["-id"]
    fields = [
        "state_shown",
        "reason",
        "error_class",
        "message",
        "case_link",
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
        "version",
    ]
    readonly_fields = [
        "state_shown",
        "case_link",
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
        return rows.defer("payload", "run__input_json", "run__result_json", "run__error", "run__usage")

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        return self._visible(request, self.list_display)

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:  # noqa: ARG002
        return self._visible(request, self.fields)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter], search_term: str
    ) -> tuple[QuerySet[DeadLetter], bool]:
        """Search as `letter_filters` does; who may not see payloads finds runs by their id only."""
        if not request.user.has_perm("runs.view_payload") and not is_run_id(search_term):
            return (queryset.none() if search_term.strip() else queryset), False
        return narrowed_or_told(queryset, "q", search_term), False

    def _visible(self, request: HttpRequest, names: list[Any]) -> list[Any]:
        """Leave out what quotes a run's content, unless the user may see payloads."""
        if request.user.has_perm("runs.view_payload"):
            return list(names)
        return [name for name in names if name not in self.payload_fields]

    @admin.display(description="State")
    def state_shown(self, obj: DeadLetter) -> SafeString:
        return pill(dead_letters.state_of(obj))

    @admin.display(description="Message")
    def message_shown(self, obj: DeadLetter) -> str:
        text = " ".join(obj.message.split())
        return text if len(text) <= MESSAGE_MAX else text[:MESSAGE_MAX] + "…"

    @admin.display(description="Run")
    def run_link(self, obj: DeadLetter) -> str:
        return run_link(obj.run_id)

    @admin.display(description="Case")
    def case_link(self, obj: DeadLetter) -> str:
        if obj.case_id is None:
            return NOTHING
        return format_html('<a href="{}">{}</a>', reverse("admin:workers_case_change", args=[obj.case_id]), obj.case_id)

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
        return run_link(None if obj.run is None else obj.run.retried_by)

    @admin.display(description="Payload")
    def payload_shown(self, obj: DeadLetter) -> str:
        return pretty_text(obj.payload)

    @admin.display(description="Age")
    def age(self, obj: DeadLetter) -> str:
        return age_of(obj.buried_at)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path(f"<int:pk>/{verb}/", view(self._act_view(verb)), name=f"workers_deadletter_{verb}") for verb in ACTS
        ] + super().get_urls()

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        letter = self.get_object(request, object_id)
        if letter is None:
            raise Http404(f"There is no dead letter {object_id[:40]}. Retention may have deleted it.")
        is_open = dead_letters.state_of(letter) == DeadLetter.State.OPEN
        has_run = letter.run_id is not None
        may_resolve = request.user.has_perm(RESOLVE)
        context = {
            "may_requeue": is_open and has_run and request.user.has_perm(REQUEUE),
            "may_discard": is_open and may_resolve,
            "may_restore": may_resolve and dead_letters.restorable(DeadLetter.objects.filter(pk=letter.pk)).exists(),
            **(extra_context or {}),
        }
        return super().change_view(request, object_id, form_url, context)

    def _act_view(self, verb: str) -> Callable[..., HttpResponse]:
        def act(request: HttpRequest, pk: int) -> HttpResponse:
            if request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            if not request.user.has_perm(RESOLVE):
                raise PermissionDenied
            here = HttpResponseRedirect(reverse("admin:workers_deadletter_change", args=[pk]))
            reason = reason_of(request)
            if reason:
                self._act(request, verb, pk, reason)
            else:
                self.message_user(request, f"Say why it is {DONE[verb].lower()}.", messages.ERROR)
            return here

        return act

    def _act(self, request: HttpRequest, verb: str, pk: int, reason: str) -> None:
        by = {"actor": actor_of(request), "reason": reason, "request_id": request_id_of(request)}
        try:
            ACTS[verb](dead_letter_id=pk, **by)
        except Refusal as refusal:
            self.message_user(request, f"Dead letter {pk}: {refusal.message}", messages.WARNING)
        else:
            self.message_user(request, f"{DONE[verb]}.", messages.SUCCESS)
