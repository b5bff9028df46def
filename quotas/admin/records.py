"""What is written once and looked at: holds, ledger entries, audit entries."""

import datetime as dt
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString

from quotas.admin_base import ReadOnlyAdmin
from quotas.display import age_of, credits_of, pill, pretty
from quotas.models import AuditEntry, Hold, LedgerEntry


class OpenForAtLeast(admin.SimpleListFilter):
    """Open holds by age: an old one is a run nobody looks after."""

    title = "open for"
    parameter_name = "open_for"
    steps = {"600": "more than 10 minutes", "3600": "more than 1 hour", "86400": "more than 1 day"}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return list(self.steps.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Hold]) -> QuerySet[Hold]:  # noqa: ARG002
        if self.value() not in self.steps:
            return queryset
        before = timezone.now() - dt.timedelta(seconds=int(self.value() or 0))
        return queryset.filter(state=Hold.State.ACTIVE, created_at__lt=before)


@admin.register(Hold)
class HoldAdmin(ReadOnlyAdmin):
    list_display = ["run_id", "account", "amount_shown", "actual_shown", "state_shown", "age", "expires_at"]
    list_filter = ["state", OpenForAtLeast]
    list_select_related = ["account"]
    search_fields = ["run_id__exact"]
    search_help_text = "Run id"
    ordering = ["-id"]
    fields = [
        "run_id",
        "account",
        "amount_shown",
        "actual_shown",
        "state_shown",
        "created_at",
        "expires_at",
        "closed_at",
    ]
    readonly_fields = ["amount_shown", "actual_shown", "state_shown"]

    @admin.display(description="Amount", ordering="amount")
    def amount_shown(self, obj: Hold) -> str:
        return credits_of(obj.amount)

    @admin.display(description="Actual", ordering="actual")
    def actual_shown(self, obj: Hold) -> str:
        return credits_of(obj.actual)

    @admin.display(description="State", ordering="state")
    def state_shown(self, obj: Hold) -> SafeString:
        return pill(obj.state)

    @admin.display(description="Age", ordering="created_at")
    def age(self, obj: Hold) -> str:
        return age_of(obj.created_at)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnlyAdmin):
    list_display = ["id", "at", "account", "kind", "amount_shown", "overdraft_shown", "run_id", "actor", "reason"]
    list_filter = ["kind", "overdraft", "at"]
    list_select_related = ["account"]
    search_fields = ["run_id__exact", "account__name__exact"]
    search_help_text = "Run id or account name"
    ordering = ["-id"]
    fields = [
        "at",
        "account",
        "kind",
        "amount_shown",
        "overdraft_shown",
        "run_id",
        "price_book",
        "actor",
        "reason",
    ]
    readonly_fields = ["amount_shown", "overdraft_shown"]

    @admin.display(description="Amount", ordering="amount")
    def amount_shown(self, obj: LedgerEntry) -> str:
        return credits_of(obj.amount)

    @admin.display(description="Overdraft")
    def overdraft_shown(self, obj: LedgerEntry) -> SafeString | str:
        return pill("overdraft") if obj.overdraft else ""


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ["id", "at", "actor", "action", "target_type", "target_id", "reason"]
    list_filter = ["action", "at"]
    search_fields = ["target_id__exact", "actor__exact"]
    search_help_text = "Target id or actor"
    ordering = ["-id"]
    fields = [
        "at",
        "actor",
        "action",
        "target_type",
        "target_id",
        "before_shown",
        "after_shown",
        "reason",
        "request_id",
    ]
    readonly_fields = ["before_shown", "after_shown"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        """Leave the two JSON columns out of lists."""
        rows = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and match.url_name == "quotas_auditentry_changelist"
        return rows.defer("before", "after") if is_list else rows

    @admin.display(description="Before")
    def before_shown(self, obj: AuditEntry) -> str:
        return pretty(obj.before)

    @admin.display(description="After")
    def after_shown(self, obj: AuditEntry) -> str:
        return pretty(obj.after)
