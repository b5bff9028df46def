"""Cases over HTTP: what the caller's account has of each. Deciding about them is the console's."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.openapi import AFTER, LIMIT, problems
from workers import cases
from workers.models import Case
from workers.serializers import CaseOut, CasePage

STATES = Case.State.values


class CasesView(ApiView):
    """The cases in which the account has dead letters."""

    scopes = {"GET": "admin"}
    query = frozenset({"limit", "after", "state"})

    @extend_schema(
        operation_id="list_cases",
        tags=["operators"],
        parameters=[LIMIT, AFTER, OpenApiParameter("state", str, enum=STATES)],
        responses={200: CasePage, **problems()},
    )
    def get(self, request: Request) -> Response:  # noqa: ARG002
        """List cases, the newest first."""
        limit, state, after = self.limit, self.choice("state", STATES), self.after_number
        rows = cases.shares_of(self.caller.account)
        if state is not None:
            rows = rows.filter(case__state=state)
        if after is not None:
            rows = rows.filter(case__lt=after)
        page = list(rows[: limit + 1])
        more = str(page[limit - 1].case_id) if len(page) > limit else None
        return Response(CasePage({"results": page[:limit], "next": more}).data)


class CaseView(ApiView):
    """One case."""

    scopes = {"GET": "admin"}

    @extend_schema(operation_id="get_case", tags=["operators"], responses={200: CaseOut, **problems(404)})
    def get(self, request: Request, case_id: int) -> Response:  # noqa: ARG002
        """Return what the account has of a case; one in which it has no dead letter is not there."""
        return Response(CaseOut(cases.share_of(self.caller.account, case_id)).data)
