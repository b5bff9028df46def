"""What every API view shares: the caller, the request id, and the checks on path and query."""

import re
from typing import Any, ClassVar

from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest
from rest_framework.request import Request
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from quotas.access import Caller
from quotas.errors import Refusal
from quotas.json_rules import check_text

REQUEST_ID = "agentops.request_id"  # the key in `request.META`; a header cannot set it
TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
KEY_MAX = 200
LIMIT_DEFAULT, LIMIT_MAX = 50, 200


class UnknownParameter(Refusal):
    """The query parameter {parameter} is unknown here. Known: {known}."""

    code = "unknown_parameter"
    status = 400


class InvalidParameter(Refusal):
    """The query parameter {parameter} {problem}."""

    code = "invalid_parameter"
    status = 400


class InvalidIdempotencyKey(Refusal):
    """An Idempotency-Key has 1 to 200 printable ASCII characters."""

    code = "invalid_idempotency_key"
    status = 400


def _with_length(request: HttpRequest) -> HttpRequest:
    """Say how long a body is that came in chunks: DRF takes a request without a length for an empty one."""
    if isinstance(request, ASGIRequest) and not request.META.get("CONTENT_LENGTH"):
        spooled = request._stream  # noqa: SLF001  the whole body, by Django's handler
        request.META["CONTENT_LENGTH"] = str(spooled.seek(0, 2))
        spooled.seek(0)
    return request


class ApiView(APIView):
    """A view of the API. `query` names the query parameters its GET knows, `post_query` its POST; others are refused.

    A parameter that does nothing is worse than none: `?dry_run=1` must never spend money because it was not known.
    """

    metadata_class = None
    query: ClassVar[frozenset[str]] = frozenset()
    post_query: ClassVar[frozenset[str]] = frozenset()
    scopes: ClassVar[dict[str, str]] = {"GET": "read"}

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        return super().initialize_request(_with_length(request), *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        for value in kwargs.values():
            if isinstance(value, str) and ("\0" in value or len(value) > 300):
                raise Http404
        self._check_query(request)

    def _check_query(self, request: Request) -> None:
        known_by = {"GET": self.query, "HEAD": self.query, "POST": self.post_query}
        allowed = known_by.get(request.method or "", frozenset())
        for name, values in request.query_params.lists():
            if name not in allowed:
                known = ", ".join(sorted(allowed)) or "none"
                raise UnknownParameter(parameter=ascii(name[:60]), known=known)
            if len(values) > 1:
                raise InvalidParameter(parameter=name, problem="is given more than once")
            check_text(values[0], f"?{name}")

    @property
    def caller(self) -> Caller:
        caller = self.request.auth
        assert isinstance(caller, Caller)  # noqa: S101  HasScope let nobody else in
        return caller

    @property
    def request_id(self) -> str:
        return str(self.request.META.get(REQUEST_ID, ""))

    @property
    def traceparent(self) -> str:
        given = self.request.META.get("HTTP_TRACEPARENT", "")
        return given if TRACEPARENT.fullmatch(given) else ""

    @property
    def idempotency_key(self) -> str | None:
        """The header, None where it is absent; raises InvalidIdempotencyKey."""
        key = self.request.META.get("HTTP_IDEMPOTENCY_KEY")
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_MAX or not (key.isascii() and key.isprintable()):
            raise InvalidIdempotencyKey
        return str(key)

    def parameter(self, name: str, *, longest: int = 200) -> str | None:
        """Return a query parameter, None where it is absent or empty."""
        value = self.request.query_params.get(name) or None
        if value is not None and len(value) > longest:
            raise InvalidParameter(parameter=name, problem=f"is longer than {longest} characters")
        return value

    def flag(self, name: str) -> bool:
        """Return a query parameter that is 1 or 0; False where it is absent. Anything else is refused, also nothing."""
        value = self.request.query_params.get(name, "0")
        if value not in {"0", "1"}:
            raise InvalidParameter(parameter=name, problem="must be 1 or 0")
        return bool(value == "1")

    def choice(self, name: str, allowed: list[str]) -> str | None:
        """Return a query parameter that must be one of the allowed words."""
        value = self.parameter(name)
        if value is not None and value not in allowed:
            raise InvalidParameter(parameter=name, problem=f"must be one of {', '.join(allowed)}")
        return value

    @property
    def limit(self) -> int:
        """`?limit`, 1 to 200, 50 where it is absent."""
        raw = self.request.query_params.get("limit", str(LIMIT_DEFAULT))
        if not (raw.isascii() and raw.isdigit() and len(raw) <= 3 and 1 <= int(raw) <= LIMIT_MAX):
            raise InvalidParameter(parameter="limit", problem=f"must be 1 to {LIMIT_MAX}")
        return int(raw)

    @property
    def after_number(self) -> int | None:
        """`?after` as the number of the last row seen."""
        raw = self.parameter("after")
        if raw is None:
            return None
        if not (raw.isascii() and raw.isdigit() and len(raw) <= 18):
            raise InvalidParameter(parameter="after", problem="is not a cursor of this list")
        return int(raw)

    def body(self, serializer: type[BaseSerializer[Any]]) -> dict[str, Any]:
        """Return the validated body; raises DRF's ValidationError."""
        given = serializer(data=self.request.data)
        given.is_valid(raise_exception=True)
        return dict(given.validated_data)
