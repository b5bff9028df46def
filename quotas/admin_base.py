"""What the admin pages of all apps share: read-only pages, a paginator that counts no whole table, who acts."""

from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from quotas.api_view import REQUEST_ID

PAGE = 50
COUNT_CAP = 10_000
REASON_MAX = 500
ID_DIGITS = 18  # a selected row's id, under 2^63


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts at most COUNT_CAP rows: a list of a million rows opens as fast as one of a thousand.

    Older rows are reached by the filters and the search, not by paging.
    """

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[:COUNT_CAP].count()
        return len(rows)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A list and a page to look at: what services write, no form may change."""

    list_per_page = PAGE
    list_max_show_all = PAGE
    show_full_result_count = False
    paginator = BoundedPaginator
    show_facets = admin.ShowFacets.NEVER  # a facet is a full count
    actions: Any = None

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Refuse a selection that names no rows: Django would look it up and fail."""
        for selected in request.POST.getlist(ACTION_CHECKBOX_NAME):
            if not (selected.isascii() and selected.isdigit() and len(selected) <= ID_DIGITS):
                raise BadRequest("This is no selection of rows.")
        return super().changelist_view(request, extra_context)

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Leave the action bar out where there is nothing to select."""
        changelist = super().get_changelist_instance(request)
        changelist.show_admin_actions = bool(changelist.result_count)
        return changelist

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002  Django's signature
        return False

    def has_change_permission(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: Model | None = None,  # noqa: ARG002
    ) -> bool:
        return False

    def has_delete_permission(
        self,
        request: HttpRequest,  # noqa: ARG002
        obj: Model | None = None,  # noqa: ARG002
    ) -> bool:
        return False


def actor_of(request: HttpRequest) -> str:
    """Return the name written to audit and transitions for the signed-in user."""
    return request.user.get_username()


def request_id_of(request: HttpRequest) -> str:
    """Return the id the middleware gave this request."""
    return str(request.META.get(REQUEST_ID, ""))


def reason_of(request: HttpRequest) -> str:
    """Return the typed reason: cut to its column, without characters that no database stores."""
    typed = "".join(c for c in request.POST.get("reason", "") if c.isprintable() or c.isspace())
    return typed.strip()[:REASON_MAX]
