"""A page of the list of runs by keys: what is older or newer than a run. No page is counted or skipped to."""

import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from quotas.errors import Refusal
from quotas.models import Priority
from runs.admin.rows import LARGE, Row, row_of
from runs.agents import list_agents
from runs.filters import ERROR_WINDOW, OF_PAYLOAD, needs_payload, runs_matching, searched_as
from runs.models import Run
from runs.states import RunState

SEE_PAYLOAD = "runs.view_payload"
HIDDEN = "Texts of errors, tags and metadata are for those who may see payloads."
OLDER, NEWER = "older_than", "newer_than"
AGENTS_SHOWN = 20
SEARCHED = {
    "id": "the id of a run, or its beginning",
    "session": "a session",
    "tag": "a tag",
    "metadata": "metadata",
    "error": f"words of an error: of the newest {ERROR_WINDOW:,} failed runs that match the other filters",
}
# What one types in, with an example of each.
FIELDS = {
    "account": ("Account", "default"),
    "queue": ("Queue", "default"),
    "worker": ("Worker", ""),
    "session": ("Session", ""),
    "tag": ("Tag", ""),
    "metadata": ("Metadata", "customer=acme"),
    "from": ("Submitted from", "24h, today, 2026-11-29"),
    "to": ("Submitted to", "2026-11-30"),
    "min_cost": ("Cost at least (credits)", "0.5"),
    "waiting_over": ("Waiting over (seconds)", "60"),
    "error_class": ("Error class", ""),
    "error": (f"Words of an error (newest {ERROR_WINDOW:,} failed runs)", ""),
    "case": ("Case (number)", ""),
}


class RunChangeList(ChangeList):
    """Django's list with `runs_matching` for its filters, and keys for its pages.

    `refused` tells what is wrong with the address; `found_as` what the words of the search were taken for.
    """

    refused = ""
    found_as = ""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Run]:  # noqa: ARG002
        asked = asked_for(request)
        self.cursors = {key: _cursor(asked.pop(key, None)) for key in (OLDER, NEWER)}
        self.asked = asked
        self.sees_payload = request.user.has_perm(SEE_PAYLOAD)
        try:
            rows = self._matching(request.user)
        except Refusal as refusal:
            self.refused = refusal.message
            rows = Run.objects.none()
        self.filter_specs: list[Any] = []
        self.has_filters = True
        self.has_active_filters = bool(asked)
        self.clear_all_filters_qs = "?"
        return rows.select_related("account").defer(*LARGE)

    def _matching(self, user: Any) -> QuerySet[Run]:
        rows = runs_matching(self.asked)
        self.refused = hidden_from(user, self.asked)
        if self.refused:
            return rows.none()
        self.found_as = SEARCHED[searched_as(self.asked["q"])] if "q" in self.asked else ""
        return rows

    def get_results(self, request: HttpRequest) -> None:  # noqa: ARG002
        """Read one row more than a page has: it tells whether the page is the last one."""
        page, is_last = self._page()
        now = timezone.now()
        self.result_list = page
        self.rows: list[Row] = [row_of(run, now) for run in page]
        self.result_count = self.full_result_count = len(page) + (not is_last)
        self.show_full_result_count = self.can_show_all = self.multi_page = False
        self.show_admin_actions = bool(page)
        self.is_newest = not any(self.cursors.values())
        self.older = "" if is_last else self.address({OLDER: page[-1].pk})
        self.newer = "" if self.is_newest or not page else self.address({NEWER: page[0].pk})

    def _page(self) -> tuple[list[Run], bool]:
        """Return a page, and whether nothing is older."""
        size = self.list_per_page
        newer, older = self.cursors[NEWER], self.cursors[OLDER]
        if newer is not None:
            found = list(self.queryset.filter(pk__gt=newer).order_by("pk")[: size + 1])
            if len(found) > size:
                return found[size - 1 :: -1], False
            self.cursors = dict.fromkeys(self.cursors)  # these are the newest: a full page of them
        rows = self.queryset if older is None else self.queryset.filter(pk__lt=older)
        found = list(rows[: size + 1])
        return found[:size], len(found) <= size

    def address(self, changes: dict[str, Any] | None = None, without: str = "") -> str:
        """Return the list's query with changes, from its newest page on, or without one of its filters."""
        asked = {key: value for key, value in self.asked.items() if key != without} | (changes or {})
        return f"?{urlencode(asked)}" if asked else "?"

    @property
    def newest(self) -> str:
        """The id above which runs are new to who looks; empty on a page of older ones, and where none are shown."""
        if self.refused or not self.is_newest:
            return ""
        return str(self.result_list[0].pk) if self.result_list else str(uuid.UUID(int=0))

    @property
    def chips(self) -> list[tuple[str, str, str]]:
        """The filters in force as (name, value, address without it)."""
        return [(key.replace("_", " "), value, self.address(without=key)) for key, value in self.asked.items()]

    @property
    def facets(self) -> list[tuple[str, list[tuple[str, str, bool]]]]:
        """What one chooses by a link, as (name, [(value, address, chosen)]). Nothing is counted."""
        agents = [spec.name for spec in list_agents()][:AGENTS_SHOWN]
        choices = {"state": RunState.values, "priority": Priority.values, "agent": agents}
        return [(key, self._links(key, values)) for key, values in choices.items()]

    def _links(self, key: str, values: list[str]) -> list[tuple[str, str, bool]]:
        chosen = self.asked.get(key)
        if chosen and chosen not in values:
            values = [*values, chosen]
        links = [(value, self.address({key: value}), value == chosen) for value in values]
        return [("All", self.address(without=key), chosen is None), *links]

    @property
    def fields(self) -> list[tuple[str, str, str, str]]:
        """What one types, as (key, label, example, value)."""
        shown = {key: rest for key, rest in FIELDS.items() if self.sees_payload or key not in OF_PAYLOAD}
        return [(key, label, example, self.asked.get(key, "")) for key, (label, example) in shown.items()]

    @property
    def untyped(self) -> list[tuple[str, str]]:
        """The other filters: what the form of the fields carries along."""
        return [(key, value) for key, value in self.asked.items() if key not in FIELDS]


def hidden_from(user: Any, asked: Mapping[str, str]) -> str:
    """Return why a user may not be told what matches, or nothing: for the list, and for the JSON of its rows."""
    return "" if user.has_perm(SEE_PAYLOAD) or not needs_payload(asked) else HIDDEN


def asked_for(request: HttpRequest) -> dict[str, str]:
    """Return what an address asks for, without what is empty; of a key given twice the last."""
    pairs = ((key, str(value).strip()) for key, value in request.GET.items())
    return {key: value for key, value in pairs if value}


def _cursor(text: str | None) -> uuid.UUID | None:
    try:
        return None if text is None else uuid.UUID(text)
    except ValueError:
        raise BadRequest("This is no place in the list.") from None
