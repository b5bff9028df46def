"""The account's figures and its ledger over HTTP."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.openapi import AFTER, LIMIT, problems
from quotas.selectors import ledger_of, quota_of
from quotas.serializers import LedgerPage, QuotaOut


class QuotaView(ApiView):
    """What the account may still spend."""

    @extend_schema(operation_id="get_quota", tags=["money"], responses={200: QuotaOut, **problems()})
    def get(self, request: Request) -> Response:  # noqa: ARG002
        return Response(QuotaOut(quota_of(self.caller.account)).data)


class LedgerView(ApiView):
    """The account's ledger, newest first."""

    query = frozenset({"limit", "after"})

    @extend_schema(
        operation_id="list_ledger",
        tags=["money"],
        parameters=[LIMIT, AFTER],
        responses={200: LedgerPage, **problems()},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002
        limit = self.limit
        rows = ledger_of(self.caller.account, before=self.after_number, limit=limit + 1)
        more = str(rows[limit - 1].pk) if len(rows) > limit else None
        return Response(LedgerPage({"results": rows[:limit], "next": more}).data)
