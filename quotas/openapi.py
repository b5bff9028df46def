"""What the OpenAPI schema says about every call: the problem document, the two ways to sign in, common parameters."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

PROBLEM_TYPE = "application/problem+json"


class Problem(serializers.Serializer[dict[str, Any]]):
    """An error (RFC 9457). `code` is stable; further members are the facts of the code."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    request_id = serializers.CharField()


def problems(*statuses: int) -> dict[Any, Any]:
    """Return the error responses of a call; 400, 401, 403 and 503 belong to all of them."""
    return {(status, PROBLEM_TYPE): Problem for status in sorted({400, 401, 403, 503, *statuses})}


IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="1 to 200 printable ASCII characters; kept 24 hours. The same key and body answer the first run.",
)
LIMIT = OpenApiParameter("limit", int, description="Items a page, 1 to 200; 50 where it is absent.")
AFTER = OpenApiParameter("after", str, description="The `next` of the page before.")


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """`Authorization: Bearer <api key>`."""

    target_class = "quotas.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"type": "http", "scheme": "bearer", "description": "An API key of an account."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The browser's session."""

    target_class = "quotas.authentication.AccountSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:  # noqa: ARG002
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "Needs X-CSRFToken to write; X-AgentOps-Account chooses the account.",
        }
