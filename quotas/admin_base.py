"""What the admin pages of all apps share: read-only pages, lists that refuse what is no filter, who acts."""

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from quotas.api_view import REQUEST_ID
from quotas.display import NOTHING, short
from quotas.standing import Standing

PAGE = 50
COUNT_CAP = 10_000
REASON_MAX = 500
AT_ONCE = 200  # rows of a selection that one request works on
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


class StrictChangeList(ChangeList):
    """A list that shows no row where its address says what is no filter of it; `refused` is the sentence for that.

    Django would redirect to the list without any filter, and take every column of the model for one.
    """

    refused = ""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        for key in self.get_filters_params():
            if not any(_takes(one, key) for one in self.list_filter):
                self.refused = f"This list has no filter {key[:60]!a}. {self._known_filters()}"
                self.params.pop(key, None)
                self.filter_params.pop(key, None)
        try:
            rows: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
            self.refused = self.refused or next(filter(None, map(_wrong_choice, self.filter_specs)), "")
        except IncorrectLookupParameters as error:
            told = error.args[0] if error.args else None
            self.refused = told if isinstance(told, str) else "A filter of this list does not take such a value."
            rows = self.root_queryset
        return rows.none() if self.refused else rows

    def _known_filters(self) -> str:
        keys = ["q"] if self.search_fields else []
        filters: list[Any] = list(self.list_filter)
        for one in filters:
            names = [one] if isinstance(one, str) else [one.parameter_name, getattr(one, "end_name", "")]
            keys += filter(None, names)
        return f"It has: {', '.join(keys)}." if keys else "It has none."

    def get_results(self, request: HttpRequest) -> None:
        try:
            super().get_results(request)
        except IncorrectLookupParameters:
            self.refused = "This list has no such page."
            self.queryset, self.page_num = self.queryset.none(), 1
            super().get_results(request)


def _wrong_choice(spec: Any) -> str:
    """Return what is wrong with the value of a filter that offers choices, or nothing."""
    if getattr(spec, "is_typed", False) or not isinstance(spec, admin.SimpleListFilter):
        return ""
    known = [str(value) for value, _ in spec.lookup_choices]
    is_known = spec.value() in {None, "", *known}
    return "" if is_known else f"The filter by {spec.title} takes one of {', '.join(known)}."


def _takes(list_filter: Any, key: str) -> bool:
    """Whether a query parameter is one of a filter's."""
    if isinstance(list_filter, str):
        return key.partition("__")[0] == list_filter
    return key in {list_filter.parameter_name, getattr(list_filter, "end_name", "")}


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A list and a page to look at: what services write, no form may change."""

    list_per_page = PAGE
    list_max_show_all = PAGE
    show_full_result_count = False
    paginator = BoundedPaginator
    show_facets = admin.ShowFacets.NEVER  # a facet is a full count
    actions: Any = None

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Refuse a selection that names no rows: Django would look it up and fail. 400 where the filter is none."""
        for selected in request.POST.getlist(ACTION_CHECKBOX_NAME):
            if not self.is_row(selected):
                raise BadRequest("This is no selection of rows.")
        answer = super().changelist_view(request, extra_context)
        context = answer.context_data if isinstance(answer, TemplateResponse) else None
        refused: str = getattr((context or {}).get("cl"), "refused", "")
        if refused:
            answer.status_code = 400
            self.tell_refusal(request, refused)
        return answer

    def tell_refusal(self, request: HttpRequest, sentence: str) -> None:
        """Say on the page of the list why it shows no row."""
        self.message_user(request, sentence, messages.ERROR)

    def rows_listed(self, request: HttpRequest) -> QuerySet[Any]:
        """Return all rows of the list with its filters and search, for a file of them. Raises BadRequest."""
        changelist: Any = self.get_changelist_instance(request)
        if changelist.refused:
            raise BadRequest(changelist.refused)
        rows: QuerySet[Any] = changelist.queryset
        return rows

    def is_row(self, selected: str) -> bool:
        """Whether a selected value can be the id of a row."""
        return selected.isascii() and selected.isdigit() and len(selected) <= ID_DIGITS

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:  # noqa: ARG002
        return StrictChangeList

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Leave the action bar out where there is nothing to select; do nothing to all that match what is no filter."""
        changelist: Any = super().get_changelist_instance(request)
        if changelist.refused and request.method == "POST":
            raise BadRequest(changelist.refused)
        changelist.show_admin_actions = bool(changelist.result_count)
        return changelist  # type: ignore[no-any-return]

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


class RunSearch(ReadOnlyAdmin):
    """A list whose rows name a run and an account: searched by the whole id of the one or the whole name of the other.

    Django's own look-up would compare the ids as texts, which no index knows and no two databases write alike.
    """

    search_fields = ["run_id"]  # shows the search field
    search_help_text = "Run id or account name"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        del request
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(run_id=UUID(term)), False
        except ValueError:
            return queryset.filter(account__name=term), False


def actor_of(request: HttpRequest) -> str:
    """Return the name written to audit and transitions for the signed-in user."""
    return request.user.get_username()


def request_id_of(request: HttpRequest) -> str:
    """Return the id the middleware gave this request."""
    return str(request.META.get(REQUEST_ID, ""))


def standing_of_staff(request: HttpRequest, *permissions: str) -> Standing:
    """Return how the signed-in user is looked up again while something is sent to them for longer."""
    return Standing(user_id=request.user.pk, session_key=request.session.session_key or "", permissions=permissions)


def reason_of(request: HttpRequest) -> str:
    """Return the typed reason: cut to its column, without characters that no database stores."""
    typed = "".join(c for c in request.POST.get("reason", "") if c.isprintable() or c.isspace())
    return typed.strip()[:REASON_MAX]


def tell_left(model_admin: Any, request: HttpRequest, left: int) -> None:
    """Say how many rows of a selection were not worked on, if there are any."""
    if left > 0:
        said = f"At most {AT_ONCE} at once. Left: {left}. Select them and act again."
        model_admin.message_user(request, said, messages.WARNING)


def run_link(run_id: UUID | None) -> SafeString | str:
    """Return the end of a run's id, linked to its page."""
    if run_id is None:
        return NOTHING
    address = reverse("admin:runs_run_change", args=[run_id])
    return format_html('<a class="run-id" href="{}" title="{}">{}</a>', address, run_id, short(run_id))
