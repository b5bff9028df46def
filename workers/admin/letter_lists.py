"""The filters beside the list of dead letters: each a key of `workers.letter_filters`, which says what it means."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import QuerySet
from django.http import HttpRequest

from quotas.admin_filters import DaysFilter, TextFilter
from quotas.errors import Refusal
from workers.letter_filters import narrowed
from workers.models import DeadLetter

Rows = QuerySet[DeadLetter]


def narrowed_or_told(rows: Rows, key: str, value: str) -> Rows:
    """Return the rows that match; what cannot be looked up is told on the list."""
    try:
        return narrowed(rows, {key: value})
    except Refusal as refusal:
        raise IncorrectLookupParameters(refusal.message) from refusal


def is_run_id(term: str) -> bool:
    """Whether a search is for one run, and for nothing that is written in it."""
    try:
        UUID(term.strip())
    except ValueError:
        return False
    return True


class _Narrows:
    """A filter whose parameter is a key of `letter_filters`."""

    def queryset(self, request: HttpRequest, queryset: Rows) -> Rows:  # noqa: ARG002
        own: Any = self
        return narrowed_or_told(queryset, own.parameter_name, own.value() or "")


class StateFilter(_Narrows, admin.SimpleListFilter):
    """The state as shown: a dead letter whose run was requeued by anybody counts as requeued."""

    title = "state"
    parameter_name = "state_is"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return list(DeadLetter.State.choices)


class ReasonFilter(_Narrows, admin.SimpleListFilter):
    title = "reason"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        return list(DeadLetter.Reason.choices)


class ClassFilter(_Narrows, TextFilter):
    title = "error class"
    parameter_name = "error_class"


class AgentFilter(_Narrows, TextFilter):
    title = "agent"
    parameter_name = "agent_is"


class AccountFilter(_Narrows, TextFilter):
    title = "account"
    parameter_name = "account"


class CaseFilter(_Narrows, TextFilter):
    title = "number of the case"
    parameter_name = "case"


class BuriedFilter(DaysFilter):
    title = "day it was buried (UTC)"
    parameter_name = "since"
    end_name = "until"
    column = "buried_at"


FILTERS: list[Any] = [StateFilter, ReasonFilter, ClassFilter, AgentFilter, AccountFilter, CaseFilter, BuriedFilter]
