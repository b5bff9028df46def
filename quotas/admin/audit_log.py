"""The audit log: searched by who, what, to which, in which request and when; the same entries as files."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from quotas import audit, audit_log
from quotas.admin_base import ReadOnlyAdmin, actor_of, request_id_of, standing_of_staff
from quotas.admin_filters import DaysFilter, TextFilter
from quotas.csv_export import csv_response, file_response
from quotas.display import NOTHING, pretty
from quotas.models import AuditEntry

EXPORT = "quotas.export_audit"
CHANGES = """<div class="scroll"><table class="plain"><thead><tr>
<th scope="col">What</th><th scope="col">Before</th><td></td><th scope="col">After</th>
</tr></thead><tbody>{}</tbody></table></div>"""
NEWEST = 20_000  # entries whose reasons are looked through: no index knows words


class ActorFilter(TextFilter):
    title = "actor"
    parameter_name = "actor_is"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        return queryset.filter(actor=self.value()) if self.value() else queryset


class ActionFilter(TextFilter):
    """A whole action, or its first word with a dot: all that is done to ledgers, queues, cases."""

    title = "action"
    parameter_name = "action_is"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        action = self.value()
        if not action:
            return queryset
        return queryset.filter(action__startswith=action) if action.endswith(".") else queryset.filter(action=action)


class ReasonFilter(TextFilter):
    title = f"words of the reason, in the newest {NEWEST:,}"
    parameter_name = "reason_has"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        if not self.value():
            return queryset
        ids = AuditEntry.objects.order_by("-id").values_list("pk", flat=True)
        oldest = next(iter(ids[NEWEST - 1 : NEWEST]), 0)
        return queryset.filter(pk__gte=oldest, reason__icontains=self.value())


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    change_list_template = "admin/quotas/auditentry/change_list.html"
    list_display = ["id", "at", "actor", "action", "target_type", "target_id", "reason"]
    list_filter = [ActorFilter, ActionFilter, DaysFilter, ReasonFilter]
    search_fields = ["target_id"]  # shows the search field; get_search_results says what it does
    search_help_text = "Id of a target or of a request, actor, or action"
    sortable_by = ()  # as they were written: another order would sort the whole table
    ordering = ["-id"]
    fields = ["at", "actor", "action", "target_type", "target_id", "changes_shown", "reason", "request_shown"]
    readonly_fields = ["changes_shown", "request_shown"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[AuditEntry]:
        """Leave the two JSON columns out of lists."""
        rows = super().get_queryset(request)
        match = request.resolver_match
        is_list = match is not None and match.url_name == "quotas_auditentry_changelist"
        return rows.defer("before", "after") if is_list else rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find what is exactly so: each of the columns has its index."""
        del request
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(Q(target_id=term) | Q(request_id=term) | Q(actor=term) | Q(action=term)), False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("export.csv", view(self.csv_view), name="quotas_auditentry_csv"),
            path("export.jsonl", view(self.json_lines_view), name="quotas_auditentry_json_lines"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"query": request.GET.urlencode(), "may_export": request.user.has_perm(EXPORT)}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def csv_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Send the entries of the list with its filters and search, all of them, as CSV."""
        pieces, columns = audit_log.csv_rows(self._exported(request, "csv")), audit_log.COLUMNS
        return csv_response(request, name="audit", columns=columns, pieces=pieces, standing=_standing(request))

    def json_lines_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Send them as JSON objects, one a line."""
        return file_response(
            request,
            name="audit.jsonl",
            content_type="application/x-ndjson; charset=utf-8",
            texts=audit_log.json_lines(self._exported(request, "json lines")),
            standing=_standing(request),
        )

    def _exported(self, request: HttpRequest, form: str) -> QuerySet[AuditEntry]:
        """Return what is asked for, after the line that says who took it."""
        if not (self.has_view_permission(request) and request.user.has_perm(EXPORT)):
            raise PermissionDenied
        entries = self.rows_listed(request)
        audit.record(
            actor=actor_of(request),
            action="audit.export",
            target_type="audit",
            target_id=form,
            after={"query": request.GET.urlencode()[:1000]},
            request_id=request_id_of(request),
        )
        return entries

    @admin.display(description="Changes")
    def changes_shown(self, obj: AuditEntry) -> SafeString | str:
        rows = audit_log.changes(obj.before, obj.after)
        if not rows:
            return NOTHING
        shown = ((name, _shown(was), "→" if was != now else "=", _shown(now)) for name, was, now in rows)
        lines = format_html_join("", '<tr><th scope="row">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>', shown)
        return format_html(CHANGES, lines)

    @admin.display(description="Request")
    def request_shown(self, obj: AuditEntry) -> SafeString | str:
        """Lead to all that was done in the same request."""
        if not obj.request_id:
            return NOTHING
        address = reverse("admin:quotas_auditentry_changelist", query={"q": obj.request_id})
        return format_html('<a href="{}">{}</a>', address, obj.request_id)


def _standing(request: HttpRequest) -> Any:
    return standing_of_staff(request, "quotas.view_auditentry", EXPORT)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else pretty(value)
