"""What is written once and looked at: audit entries."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from quotas.admin_base import ReadOnlyAdmin
from quotas.display import pretty
from quotas.models import AuditEntry


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
