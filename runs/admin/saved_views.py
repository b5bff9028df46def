"""Saved views of the list of runs: those everybody has, and the POSTs that save, rename and delete one's own."""

from urllib.parse import parse_qsl, urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from quotas.admin_base import request_id_of
from quotas.errors import Refusal
from runs.admin.change_list import NEWER, OLDER
from runs.filters import runs_matching
from runs.services.saved_views import delete_view, rename_view, save_view

SAVE, SHARE = "runs.save_view", "runs.share_view"
NAME_MAX, QUERY_MAX = 60, 2000
SHIPPED = (
    ("Failing now", {"state": "failed", "from": "1h"}),
    ("Running", {"state": "running"}),
    ("Waiting long", {"waiting_over": "60"}),
    ("Expensive today", {"from": "today", "min_cost": "1"}),
    ("Interrupted today", {"state": "interrupted", "from": "today"}),
)


def shipped() -> list[tuple[str, str]]:
    """Return the views that everybody has, as (name, query)."""
    return [(name, urlencode(query)) for name, query in SHIPPED]


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Save the query of the list under a name: `name`, `query`, `shared`."""
    query = _query_of(request.POST.get("query", ""))
    is_shared = "shared" in request.POST
    _check(request, SHARE if is_shared else SAVE)
    name = _name_of(request)
    if not name or len(query) > QUERY_MAX:
        messages.error(request, "A view needs a name, and filters that fit into one.")
        return _list()
    try:
        runs_matching(dict(parse_qsl(query)))
        view = save_view(
            owner=request.user, name=name, query=query, is_shared=is_shared, request_id=request_id_of(request)
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, f"Saved: {view.name}.")
    return _list(query)


@require_POST
def rename(request: HttpRequest, pk: int) -> HttpResponse:
    """Rename one's own view: `name`."""
    _check(request, SAVE)
    name = _name_of(request)
    if not name:
        messages.error(request, "A view needs a name.")
        return _list()
    try:
        view = rename_view(view_id=pk, owner=request.user, name=name, request_id=request_id_of(request))
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return _list()
    messages.success(request, f"Renamed: {view.name}.")
    return _list(view.query)


@require_POST
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Delete one's own view."""
    _check(request, SAVE)
    try:
        delete_view(view_id=pk, owner=request.user, request_id=request_id_of(request))
    except Refusal as refusal:
        messages.error(request, refusal.message)
    else:
        messages.success(request, "The view is deleted.")
    return _list()


def _check(request: HttpRequest, permission: str) -> None:
    if not request.user.has_perms(["runs.view_run", permission]):
        raise PermissionDenied


def _name_of(request: HttpRequest) -> str:
    typed = "".join(c for c in request.POST.get("name", "") if c.isprintable())
    return " ".join(typed.split())[:NAME_MAX]


def _query_of(text: str) -> str:
    """Return a query of the list without its place in it, as addresses are written."""
    pairs = parse_qsl(text.lstrip("?"))
    return urlencode([(key, value) for key, value in pairs if key not in {OLDER, NEWER, "ids"}])


def _list(query: str = "") -> HttpResponseRedirect:
    return HttpResponseRedirect(reverse("admin:runs_run_changelist") + (f"?{query}" if query else ""))
