"""Filters of lists that one types into: a list of all accounts or agents would be as long as there are any."""

import datetime as dt
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from quotas.database import exactly
from quotas.days import moment_of

UTC = ZoneInfo("UTC")
Rows = QuerySet[Any]


class TextFilter(admin.SimpleListFilter):
    """A filter with a field. Subclasses say what to look for."""

    template = "admin/text_filter.html"
    is_typed = True  # no list of values to compare with: quotas/admin_base.py

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("", "")]  # a filter without choices is not shown at all

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield one choice that carries the other parameters of the list, for the form's hidden fields."""
        mine = self.expected_parameters()
        others = {key: value for key, value in changelist.get_filters_params().items() if key not in mine}
        yield {
            "selected": self.value() is None,
            "others": [(key, one) for key, many in others.items() for one in _each(many)],
            "query": changelist.query,
        }


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class AccountFilter(TextFilter):
    """By the whole name of the account."""

    title = "account"
    parameter_name = "account_is"

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        return queryset.filter(account__name=self.value()) if self.value() else queryset


class LedgerAgentFilter(TextFilter):
    """By the agent that a line names."""

    title = "agent"
    parameter_name = "agent_is"

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        return queryset.filter(exactly("agent", self.value() or "")) if self.value() else queryset


class DaysFilter(TextFilter):
    """By days in UTC, as times are shown; the last one with all its hours. Subclasses name the `column`."""

    title = "day (UTC)"
    parameter_name = "from"
    end_name = "to"
    column = "at"
    template = "admin/days_filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: type[Model], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.end = str((params.pop(self.end_name, None) or [""])[-1])

    def expected_parameters(self) -> list[str | None]:
        return [self.parameter_name, self.end_name]

    def value(self) -> str | None:
        """Return the first day; "" where only the last one is given."""
        first = super().value()
        return "" if first is None and self.end else first

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        start, end = self._moment(self.value(), is_end=False), self._moment(self.end, is_end=True)
        if start is not None:
            queryset = queryset.filter(**{f"{self.column}__gte": start})
        return queryset if end is None else queryset.filter(**{f"{self.column}__lt": end})

    def _moment(self, text: str | None, *, is_end: bool) -> dt.datetime | None:
        try:
            return moment_of(text, UTC, is_end=is_end) if text else None
        except (ValueError, OverflowError) as error:
            told = f"The filter by {self.title} takes days, such as 2026-11-29, and times with their offset."
            raise IncorrectLookupParameters(told) from error
