"""The ledger: every line, filtered by what it says, and the same lines as a CSV file."""

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString

from quotas import ledger
from quotas.admin_base import RunSearch, run_link, standing_of_staff
from quotas.admin_filters import AccountFilter, DaysFilter, LedgerAgentFilter
from quotas.csv_export import csv_response
from quotas.display import credits_of, pill
from quotas.models import LedgerEntry


@admin.register(LedgerEntry)
class LedgerEntryAdmin(RunSearch):
    change_list_template = "admin/quotas/ledgerentry/change_list.html"
    list_display = [
        "id",
        "at",
        "amount_shown",
        "kind",
        "account",
        "agent",
        "run_shown",
        "why",
    ]
    list_filter = ["kind", AccountFilter, LedgerAgentFilter, DaysFilter, "overdraft"]
    list_select_related = ["account"]
    sortable_by = ()  # as they were written: another order would sort the whole table
    ordering = ["-id"]
    fields = [
        "at",
        "account",
        "kind",
        "amount_shown",
        "period",
        "agent",
        "run_shown",
        "price_book",
        "actor",
        "reason",
    ]
    readonly_fields = ["amount_shown", "run_shown"]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("export.csv", view, name="quotas_ledgerentry_export"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return super().changelist_view(request, {"query": request.GET.urlencode(), **(extra_context or {})})

    def export_view(self, request: HttpRequest) -> StreamingHttpResponse:
        """Send the lines of the list with its filters and search, all of them."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        pieces, standing = (
            ledger.csv_rows(self.rows_listed(request)),
            standing_of_staff(request, "quotas.view_ledgerentry"),
        )
        return csv_response(request, name="ledger", columns=ledger.COLUMNS, pieces=pieces, standing=standing)

    @admin.display(description="Credits")
    def amount_shown(self, obj: LedgerEntry) -> SafeString | str:
        amount = credits_of(obj.amount)
        return format_html("{} {}", amount, pill("overdraft")) if obj.overdraft else amount

    @admin.display(description="Who and why")
    def why(self, obj: LedgerEntry) -> str:
        return ": ".join(filter(None, (obj.actor, obj.reason)))

    @admin.display(description="Run")
    def run_shown(self, obj: LedgerEntry) -> SafeString | str:
        return run_link(obj.run_id)
