"""The account's ledger and the totals of its spending over HTTP, as pages and as CSV. Runs know sessions and tags."""

import datetime as dt
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from django.http import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from quotas import ledger
from quotas.api_view import ApiView, InvalidParameter
from quotas.csv_export import CsvRenderer, csv_response
from quotas.days import moment_of
from quotas.models import LedgerEntry
from quotas.openapi import AFTER, LIMIT, problems
from quotas.serializers import LedgerPage, SpendingPage
from quotas.standing import Standing, standing_of
from runs import spending

T = TypeVar("T")
SPAN = (
    OpenApiParameter("from", str, description="ISO 8601 time with its offset, or a day in the account's time zone."),
    OpenApiParameter("to", str, description="The same; a time itself does not belong to it, a day does, all of it."),
)


def _both(page: Any) -> dict[Any, Any]:
    return {(200, "application/json"): page, (200, "text/csv"): OpenApiTypes.STR, **problems()}


class MoneyView(ApiView):
    """What both have in common: CSV beside JSON, and a span of time in the account's time zone."""

    renderer_classes = [JSONRenderer, CsvRenderer]

    @property
    def wants_csv(self) -> bool:
        return self.request.accepted_renderer.format == CsvRenderer.format

    def moment(self, name: str) -> dt.datetime | None:
        zone = ZoneInfo(self.caller.account.timezone)
        return self.read(
            name, lambda raw: moment_of(raw, zone, is_end=name == "to"), "is no day and no time with offset"
        )

    @property
    def standing(self) -> Standing:
        """How the asker is looked up again while a file is sent."""
        return standing_of(self.caller, None if self.caller.api_key else self.request.session.session_key)

    def read(self, name: str, reader: Callable[[str], T], problem: str) -> T | None:
        """Return a query parameter as what `reader` makes of it, None where it is absent."""
        raw = self.parameter(name)
        try:
            return None if raw is None else reader(raw)
        except (ValueError, OverflowError):
            raise InvalidParameter(parameter=name, problem=problem) from None


class LedgerView(MoneyView):
    """The account's ledger, newest first."""

    query = frozenset({"limit", "after", "format", "kind", "run", "agent", "session", "from", "to"})

    @extend_schema(
        operation_id="list_ledger",
        tags=["money"],
        parameters=[
            LIMIT,
            AFTER,
            OpenApiParameter("kind", str, enum=LedgerEntry.Kind.values),
            OpenApiParameter("run", OpenApiTypes.UUID),
            OpenApiParameter("agent", str),
            OpenApiParameter("session", str, description="Of runs that are still kept."),
            *SPAN,
        ],
        responses=_both(LedgerPage),
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Return a page of lines, or with `Accept: text/csv` all of them, as a stream."""
        account, session = self.caller.account, self.parameter("session")
        asked = ledger.Asked(
            kind=self.choice("kind", LedgerEntry.Kind.values),
            run=self.read("run", UUID, "is no run id"),
            agent=self.parameter("agent"),
            start=self.moment("from"),
            end=self.moment("to"),
        )
        lines = ledger.lines_of(account, asked)
        if session is not None:
            lines = spending.lines_of_session(lines, account, session)
        limit, after = self.limit, self.after_number
        if self.wants_csv:
            pieces = ledger.csv_rows(lines)
            http = request._request  # noqa: SLF001
            return csv_response(http, name="ledger", columns=ledger.COLUMNS, pieces=pieces, standing=self.standing)
        rows = ledger.page_of(lines, before=after, limit=limit + 1)
        more = str(rows[limit - 1].pk) if len(rows) > limit else None
        return Response(LedgerPage({"results": rows[:limit], "next": more}).data)


class SpendingView(MoneyView):
    """What the account's runs have cost."""

    query = frozenset({"by", "limit", "after", "format", "agent", "session", "tag", "from", "to"})

    @extend_schema(
        operation_id="list_spending",
        tags=["money"],
        parameters=[
            OpenApiParameter("by", str, enum=spending.BY, required=True),
            LIMIT,
            AFTER,
            OpenApiParameter("agent", str),
            OpenApiParameter("session", str),
            OpenApiParameter("tag", str),
            *SPAN,
        ],
        responses=_both(SpendingPage),
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Return totals by agent, session, tag, day, run or attempt, or with `Accept: text/csv` all of them."""
        by = self.choice("by", list(spending.BY))
        if by is None:
            raise InvalidParameter(parameter="by", problem=f"must be one of {', '.join(spending.BY)}")
        start, end = self._span()
        question = spending.Question(
            account=self.caller.account,
            start=start,
            end=end,
            agent=self.parameter("agent"),
            session=self.parameter("session"),
            tag=self.parameter("tag"),
        )
        limit = self.limit
        if self.wants_csv:
            columns, pieces = (by, *spending.AMOUNTS), spending.rows_of(question, by)
            http = request._request  # noqa: SLF001
            name = f"spending-by-{by}"
            return csv_response(http, name=name, columns=columns, pieces=pieces, standing=self.standing, in_one_go=True)
        try:
            page = spending.spending(question, by, after=self.parameter("after"), limit=limit)
        except ValueError:
            raise InvalidParameter(parameter="after", problem="is not a cursor of this list") from None
        told = {"start": start, "end": end, "total": spending.total_of(question), **page._asdict()}
        return Response(SpendingPage(told).data)

    def _span(self) -> tuple[dt.datetime, dt.datetime | None]:
        try:
            return spending.span_of(self.caller.account, self.moment("from"), self.moment("to"))
        except spending.SpanTooLong:
            problem = f"lies more than {spending.DAYS} days before `to`, or before now: ask for fewer days at once"
            raise InvalidParameter(parameter="from", problem=problem) from None
