"""The account's figures over HTTP."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quotas.api_view import ApiView
from quotas.openapi import problems
from quotas.selectors import quota_of
from quotas.serializers import QuotaOut


class QuotaView(ApiView):
    """What the account may still spend."""

    @extend_schema(operation_id="get_quota", tags=["money"], responses={200: QuotaOut, **problems()})
    def get(self, request: Request) -> Response:  # noqa: ARG002
        return Response(QuotaOut(quota_of(self.caller.account)).data)
