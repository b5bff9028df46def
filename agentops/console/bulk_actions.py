"""What the lists of runs and dead letters offer for a selection: the way to the plan of a bulk operation.

Selected rows are named in the plan's address; all that match, by the list's own filter.
"""

from collections.abc import Callable
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ERROR_FLAG, IGNORED_PARAMS, PAGE_VAR, SEARCH_VAR
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from runs.admin.change_list import NEWER, OLDER
from runs.admin.runs import RunAdmin
from workers.admin.letters import DeadLetterAdmin
from workers.bulk.options import ACTS, NEEDS, RUN_BULK, Kind, Source

# What a list's address says beside its filter: which page is looked at, and how.
PLACES = {
    Source.RUNS: frozenset({OLDER, NEWER}),
    Source.LETTERS: frozenset({PAGE_VAR, ERROR_FLAG, *IGNORED_PARAMS}) - {SEARCH_VAR},
}
OWN = frozenset({"kind", "source"})  # of the plan's address: no filter takes their place
LISTS: dict[Source, Any] = {Source.RUNS: RunAdmin, Source.LETTERS: DeadLetterAdmin}
Action = Callable[[Any, HttpRequest, Any], HttpResponse]


def attach() -> None:
    """Give both lists their actions, each for whom may do it."""
    for source in Source:
        kinds = ACTS[source]
        made = [_action(source, kind) for kind in kinds]
        LISTS[source].actions = [*(LISTS[source].actions or ()), *made]
        for kind in kinds:
            setattr(LISTS[source], f"has_bulk_{kind}_permission", _permission(source, kind))


def _permission(source: Source, kind: Kind) -> Callable[[Any, HttpRequest], bool]:
    def allowed(_: Any, request: HttpRequest) -> bool:
        return request.user.has_perms([RUN_BULK, NEEDS[source, kind]])

    return allowed


def _action(source: Source, kind: Kind) -> Action:
    def plan(model_admin: Any, request: HttpRequest, queryset: Any) -> HttpResponse:
        del model_admin, queryset
        return HttpResponseRedirect(plan_address(source, kind, query_of(request, source)))

    plan.__name__ = f"plan_{kind}"
    made: Any = plan
    made.short_description = f"Plan: {kind} …"
    made.allowed_permissions = [f"bulk_{kind}"]
    return plan


def query_of(request: HttpRequest, source: Source) -> dict[str, str]:
    """Return the filter that means what was selected on a list.

    Also what is no filter goes along, for the plan to refuse: left out, all that match would be more than was shown.
    """
    if request.POST.get("select_across", "0") == "1":
        asked = ((key, str(value)) for key, value in request.GET.items() if key not in PLACES[source])
        return {f"list.{key}" if key in OWN else key: value for key, value in asked if value.strip()}
    return {"ids": ",".join(request.POST.getlist(ACTION_CHECKBOX_NAME))}


def plan_address(source: Source, kind: Kind, query: dict[str, str]) -> str:
    """Return the address of the plan of an act on what a filter matches."""
    return reverse("admin:bulk_plan", query={"kind": str(kind), "source": str(source), **query})
