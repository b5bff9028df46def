"""The list of runs. The page of one run shows money and dead letters too: agentops/console/run_page.py."""

import json
import uuid
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from quotas.admin_base import ReadOnlyAdmin
from quotas.admin_filters import TextFilter
from quotas.display import between, credits_of, moment, pill, short, span
from runs.agents import list_agents
from runs.models import Run
from runs.states import RunState

LARGE = ("input_json", "result_json", "error", "usage", "metadata", "tags")


class SessionFilter(TextFilter):
    title = "session"
    parameter_name = "session_is"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:  # noqa: ARG002
        return queryset.filter(session=self.value()) if self.value() else queryset


class TagFilter(TextFilter):
    title = "tag"
    parameter_name = "tagged"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:  # noqa: ARG002
        tag = self.value()
        if not tag:
            return queryset
        # SQLite cannot look into a JSON list; servers differ in whether they keep \u escapes in its text.
        written = [json.dumps(tag), json.dumps(tag, ensure_ascii=False)]
        return queryset.annotate(tags_text=Cast("tags", TextField())).filter(
            Q(tags_text__contains=written[0]) | Q(tags_text__contains=written[1])
        )


class AgentFilter(admin.SimpleListFilter):
    """The registered agents: asking the table for its distinct names would read all of it."""

    title = "agent"
    parameter_name = "agent_is"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        names = [spec.name for spec in list_agents()]
        asked = request.GET.get(self.parameter_name)
        if asked and asked not in names:
            names.append(asked)
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:  # noqa: ARG002
        return queryset.filter(agent=self.value()) if self.value() else queryset


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    change_list_template = "admin/runs/run/change_list.html"
    list_display = [
        "id_shown",
        "state_shown",
        "agent",
        "account",
        "attempt_shown",
        "cost_shown",
        "submitted",
        "duration",
        "worker",
    ]
    list_filter = ["state", AgentFilter, "account", SessionFilter, TagFilter, "submitted_at"]
    list_select_related = ["account"]
    search_fields = ["id"]  # shows the search field; get_search_results says what it does
    search_help_text = "Run id, the beginning of one (8 characters or more), or a session"
    sortable_by = ()  # in order of submission: another order would sort the whole table
    ordering = ["-id"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        return super().get_queryset(request).defer(*LARGE)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        """Find by id, by the beginning of an id (a key range), or by session."""
        del request
        term = search_term.strip()
        if not term:
            return queryset, False
        found = Q(session=term)
        first_and_last = _id_range(term)
        if first_and_last is not None:
            found |= Q(id__range=first_and_last)
        return queryset.filter(found), False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        may_submit = request.user.has_perm("runs.submit_run")
        return super().changelist_view(request, {**(extra_context or {}), "may_submit": may_submit})

    @admin.display(description="Run")
    def id_shown(self, obj: Run) -> SafeString:
        return format_html('<span class="run-id" title="{}">{}</span>', obj.pk, short(obj.pk))

    @admin.display(description="State")
    def state_shown(self, obj: Run) -> SafeString:
        if obj.state != RunState.SCHEDULED:
            return pill(obj.state)
        return format_html('{} <span class="quiet">{}</span>', pill(obj.state), _due(obj))

    @admin.display(description="Attempt")
    def attempt_shown(self, obj: Run) -> str:
        return f"{obj.attempt} of {obj.max_attempts}"

    @admin.display(description="Cost")
    def cost_shown(self, obj: Run) -> str:
        return credits_of(obj.cost)

    @admin.display(description="Submitted at")
    def submitted(self, obj: Run) -> str:
        return moment(obj.submitted_at)

    @admin.display(description="Duration")
    def duration(self, obj: Run) -> str:
        return between(obj.started_at, obj.finished_at or timezone.now())


def _due(run: Run) -> str:
    """Return what a scheduled run waits for, as short as a list needs it."""
    if run.blocked_by_session is not None:
        return "behind its session"
    left = (run.not_before - timezone.now()).total_seconds() if run.not_before is not None else 0
    return f"in {span(left)}" if left > 0 else "due"


def _id_range(term: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Return the first and last id that begin with the term, or None if it is no beginning of an id."""
    digits = term.replace("-", "").lower()
    if not 8 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    return uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))
