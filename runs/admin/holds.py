"""Holds with the runs they are for: open ones first, the oldest on top; a leaked one is released by proof alone."""

import datetime as dt
from typing import Any

from django.contrib import admin, messages
from django.db.models import CharField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from quotas.admin_base import AT_ONCE, RunSearch, actor_of, request_id_of, run_link, tell_left
from quotas.admin_filters import AccountFilter
from quotas.display import age_of, credits_of, pill
from quotas.models import Hold
from runs.models import Run
from runs.services.leaks import release_leaked
from runs.states import OPEN

GONE = "gone"  # there is no such run


class HoldStateFilter(admin.SimpleListFilter):
    """The state; without a choice the holds that are open."""

    title = "state"
    parameter_name = "state_is"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [*Hold.State.choices, ("all", "All")]

    def choices(self, changelist: Any) -> Any:
        """Yield the choices, the first one named by what it shows."""
        first, *others = super().choices(changelist)
        yield {**first, "display": "Open"}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Hold]) -> QuerySet[Hold]:  # noqa: ARG002
        match self.value():
            case "all":
                return queryset
            case state if state in Hold.State.values:
                return queryset.filter(state=state)
            case _:
                return queryset.filter(state__in=Hold.OPEN)


class OpenForAtLeast(admin.SimpleListFilter):
    """By age: an old one is a run nobody looks after, or one that takes its time."""

    title = "age"
    parameter_name = "open_for"
    steps = {"600": "more than 10 minutes", "3600": "more than 1 hour", "86400": "more than 1 day"}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return list(self.steps.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Hold]) -> QuerySet[Hold]:  # noqa: ARG002
        if self.value() not in self.steps:
            return queryset
        return queryset.filter(created_at__lt=timezone.now() - dt.timedelta(seconds=int(self.value() or 0)))


@admin.register(Hold)
class HoldAdmin(RunSearch):
    list_display = [
        "run_shown",
        "run_state_shown",
        "account",
        "amount_shown",
        "actual_shown",
        "state_shown",
        "age",
        "expires_at",
    ]
    list_display_links = ["amount_shown"]
    list_filter = [HoldStateFilter, OpenForAtLeast, AccountFilter]
    list_select_related = ["account"]
    sortable_by = ()
    actions = ["release_selected"]
    fields = [
        "run_shown",
        "run_state_shown",
        "account",
        "amount_shown",
        "actual_shown",
        "state_shown",
        "extensions",
        "created_at",
        "expires_at",
        "closed_at",
    ]
    readonly_fields = ["run_shown", "run_state_shown", "amount_shown", "actual_shown", "state_shown"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Hold]:
        state = Run.objects.filter(pk=OuterRef("run_id")).values("state")[:1]
        told = Coalesce(Subquery(state), Value(GONE), output_field=CharField())
        holds: QuerySet[Hold] = super().get_queryset(request).annotate(run_state=told)
        return holds

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Open ones from the oldest; among all, which may be a million, the newest first."""
        is_open = request.GET.get("state_is", "") in {"", *Hold.OPEN}
        return ("created_at", "id") if is_open else ("-id",)

    def has_release_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("quotas.change_hold")

    @admin.action(description="Release leaked holds: those whose run is over", permissions=["release"])
    def release_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        by = {"actor": actor_of(request), "request_id": request_id_of(request)}
        leaked = queryset.filter(state__in=Hold.OPEN).exclude(run_state__in=[str(state) for state in OPEN])
        chosen = list(leaked.values_list("account_id", "run_id")[:AT_ONCE])
        left = leaked.count() - len(chosen)
        others = queryset.count() - left
        released = sum(release_leaked(account_id, run_id, **by) is not None for account_id, run_id in chosen)
        if released:
            self.message_user(request, f"Released: {released}.", messages.SUCCESS)
        if released < others:
            said = f"Left as they are: {others - released}. Their runs are not over, or they were closed before."
            self.message_user(request, said, messages.WARNING)
        tell_left(self, request, left)

    @admin.display(description="Run")
    def run_shown(self, obj: Hold) -> SafeString | str:
        return run_link(obj.run_id)

    @admin.display(description="Its state")
    def run_state_shown(self, obj: Any) -> SafeString:
        is_leak = obj.state in Hold.OPEN and obj.run_state not in OPEN
        return pill(obj.run_state) + (SafeString(" ") + pill("leaked") if is_leak else SafeString(""))

    @admin.display(description="Credits")
    def amount_shown(self, obj: Hold) -> str:
        return credits_of(obj.amount)

    @admin.display(description="Actual")
    def actual_shown(self, obj: Hold) -> str:
        return credits_of(obj.actual)

    @admin.display(description="Hold")
    def state_shown(self, obj: Hold) -> SafeString:
        return pill(obj.state)

    @admin.display(description="Age")
    def age(self, obj: Hold) -> str:
        return age_of(obj.created_at)
