"""Two middlewares of our own, sync and async: the request id, and CORS for the origins of the settings."""

import codecs
import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import structlog
from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.decorators import sync_and_async_middleware

from agentops.api_errors import answer, handler400, handler404
from quotas.api_view import REQUEST_ID
from quotas.masking import mask

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
API = "/api/"
ALLOW_METHODS = "GET, HEAD, POST"
ALLOW_HEADERS = (
    "Accept, Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer, traceparent,"
    " X-AgentOps-Account, X-CSRFToken, X-Request-ID"
)
EXPOSE_HEADERS = "Location, Idempotent-Replayed, Retry-After, WWW-Authenticate, X-Request-ID"
PREFLIGHT_SECONDS = "600"


def sane_id(given: str) -> str:
    """Return the caller's request id where it is one that a log can take, else a new one. A key is none."""
    return given if SANE_ID.fullmatch(given) and mask(given) == given else uuid4().hex


@sync_and_async_middleware
def request_id(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Take the caller's X-Request-ID or make one: it is in every log line and in the answer.

    It stands first, so it also keeps out what breaks the parts behind it (`_refused`, `_disarm`).
    """

    def begin(request: HttpRequest) -> HttpResponseBase | None:
        name = sane_id(request.META.get("HTTP_X_REQUEST_ID", ""))
        request.META[REQUEST_ID] = name
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=name)
        _disarm(request)
        return _refused(request)

    def end(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response["X-Request-ID"] = request.META[REQUEST_ID]
        return response

    if iscoroutinefunction(get_response):

        async def call_async(request: HttpRequest) -> HttpResponseBase:
            response = begin(request)
            return end(request, await get_response(request) if response is None else response)

        call_async.process_exception = _problem  # type: ignore[attr-defined]  # Django's hook for a view's exception
        return call_async

    def call(request: HttpRequest) -> HttpResponseBase:
        response = begin(request)
        return end(request, get_response(request) if response is None else response)

    call.process_exception = _problem  # type: ignore[attr-defined]  # as above
    return call


def _problem(request: HttpRequest, error: Exception) -> HttpResponse | None:
    """Answer what a plain view of the API raised (the event streams) as DRF's views answer it."""
    return answer(request, error) if request.path.startswith(API) else None


def _refused(request: HttpRequest) -> HttpResponseBase | None:
    """Answer a NUL in the path or the query: no page has one in its address, and PostgreSQL takes none in a text."""
    if "\0" in request.path:
        return handler404(request, Http404())
    if "%00" in request.META.get("QUERY_STRING", ""):
        return handler400(request, BadRequest("The query holds a NUL character."))
    return None


def _disarm(request: HttpRequest) -> None:
    """Take out of a request what breaks Django's own parts before any view could refuse it.

    A `charset` of the Content-Type becomes the encoding of forms and of the query, whatever codec it names: `hex` or
    `undefined` end in an error of the server. A quoted cookie may hold an escaped NUL, which no database looks up.
    """
    encoding = request.encoding
    if encoding is not None and codecs.lookup(encoding).name != "utf-8":
        request._encoding = None  # type: ignore[attr-defined]  # noqa: SLF001  the public setter decodes with the bad one first
    if "\\" in request.META.get("HTTP_COOKIE", ""):
        for name in [name for name, value in request.COOKIES.items() if "\0" in value]:
            del request.COOKIES[name]


@sync_and_async_middleware
def cors(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Let the origins of AGENTOPS_ALLOWED_ORIGINS call the API from a browser, with a key, without cookies."""

    def before(request: HttpRequest) -> HttpResponse | None:
        is_preflight = (
            request.method == "OPTIONS"
            and request.path.startswith(API)
            and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in request.META
        )
        return HttpResponse(status=204) if is_preflight else None

    def after(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not request.path.startswith(API) or not settings.AGENTOPS_ALLOWED_ORIGINS:
            return response
        patch_vary_headers(response, ["Origin"])
        origin = request.META.get("HTTP_ORIGIN", "")
        if origin in settings.AGENTOPS_ALLOWED_ORIGINS:
            response["Access-Control-Allow-Origin"] = origin
            response["Access-Control-Expose-Headers"] = EXPOSE_HEADERS
            if request.method == "OPTIONS":
                response["Access-Control-Allow-Methods"] = ALLOW_METHODS
                response["Access-Control-Allow-Headers"] = ALLOW_HEADERS
                response["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
        return response

    if iscoroutinefunction(get_response):

        async def call_async(request: HttpRequest) -> HttpResponseBase:
            pending: Awaitable[HttpResponseBase]
            response: HttpResponseBase | None = before(request)
            if response is None:
                pending = get_response(request)
                response = await pending
            return after(request, response)

        return call_async

    def call(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase | None = before(request)
        return after(request, get_response(request) if response is None else response)

    return call
