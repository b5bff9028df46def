"""The list of runs. The page of one run shows money and dead letters too: agentops/console/run_page.py."""

import uuid
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_GET

from quotas.admin_base import ReadOnlyAdmin
from quotas.errors import Refusal
from runs.admin import saved_views
from runs.admin.change_list import RunChangeList, asked_for, hidden_from
from runs.admin.rows import HEADINGS, rows_json
from runs.models import Run
from runs.services.saved_views import views_for


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """Filters, search and pages are those of RunChangeList."""

    change_list_template = "admin/runs/run/change_list.html"
    ordering = ["-id"]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:  # noqa: ARG002
        return RunChangeList

    def is_row(self, selected: str) -> bool:
        try:
            uuid.UUID(selected)
        except ValueError:
            return False
        return True

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("rows.json", view(rows_view), name="runs_run_rows"),
            path("views/save/", view(saved_views.save), name="runs_view_save"),
            path("views/<int:pk>/rename/", view(saved_views.rename), name="runs_view_rename"),
            path("views/<int:pk>/delete/", view(saved_views.delete), name="runs_view_delete"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list with its views."""
        views = list(views_for(request.user))
        context = {
            "may_submit": request.user.has_perm("runs.submit_run"),
            "may_save": request.user.has_perm(saved_views.SAVE),
            "may_share": request.user.has_perm(saved_views.SHARE),
            "headings": HEADINGS.values(),
            "shipped_views": saved_views.shipped(),
            "views": views,
            **(extra_context or {}),
        }
        answer = super().changelist_view(request, context)
        if isinstance(answer, TemplateResponse) and answer.context_data is not None:
            changes = answer.context_data["cl"]
            query = urlencode(changes.asked)
            mine = (view for view in views if view.query == query and view.owner_id == request.user.pk)
            answer.context_data |= {"query": query, "my_view": next(mine, None)}
        return answer

    def tell_refusal(self, request: HttpRequest, sentence: str) -> None:
        """The list's own template says it, below the search."""


@require_GET
def rows_view(request: HttpRequest) -> HttpResponse:
    """Answer what the list shows of the runs on the page now, and how many are newer (runs/admin/rows.py)."""
    if not request.user.has_perm("runs.view_run"):
        raise PermissionDenied
    query = asked_for(request)
    hidden = hidden_from(request.user, query)
    if hidden:
        return JsonResponse({"error": hidden}, status=403)
    try:
        return JsonResponse(rows_json(query))
    except Refusal as refusal:
        return JsonResponse({"error": refusal.message}, status=refusal.status)
