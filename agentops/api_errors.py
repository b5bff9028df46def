"""Errors of the API as problem documents (RFC 9457), whoever raised them."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from django.core.exceptions import BadRequest, DisallowedHost, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from redis.exceptions import RedisError
from rest_framework import exceptions

from quotas.api_view import REQUEST_ID
from quotas.database import is_busy
from quotas.errors import Busy, Refusal
from quotas.json_rules import key_path
from quotas.masking import mask, mask_json, mask_member
from runs.metrics import count_store_error

log = structlog.get_logger(__name__)
API = "/api/"
RESERVED = frozenset({"type", "title", "status", "detail", "code", "request_id"})

# DRF's own errors by class, most special first: (class, code).
DRF_CODES: tuple[tuple[type[exceptions.APIException], str], ...] = (
    (exceptions.NotAuthenticated, "not_authenticated"),
    (exceptions.AuthenticationFailed, "authentication_failed"),
    (exceptions.PermissionDenied, "permission_denied"),
    (exceptions.NotFound, "not_found"),
    (exceptions.MethodNotAllowed, "method_not_allowed"),
    (exceptions.NotAcceptable, "not_acceptable"),
    (exceptions.UnsupportedMediaType, "unsupported_media_type"),
    (exceptions.Throttled, "throttled"),
    (exceptions.ParseError, "invalid_request"),
)


def problem(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """DRF's exception handler: answer any error of a view; what nobody expected is logged and is a 500."""
    request = context["request"]._request  # noqa: SLF001  Django's request, which has the META of middleware
    if isinstance(error, exceptions.UnsupportedMediaType):
        wanted = " or ".join(parser.media_type for parser in context["view"].get_parsers())
        given = request.META.get("CONTENT_TYPE", "")[:100]
        detail = f"Send Content-Type: {wanted}" + (f", not {given!a}." if given else ".")
        return document(request, error.status_code, "unsupported_media_type", detail)
    return answer(request, error)


def answer(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return the problem document of an error."""
    if isinstance(error, Refusal):
        return _refusal(request, error)
    if isinstance(error, exceptions.ValidationError):
        errors = list(_flatten(error.detail, ""))
        detail = "; ".join(f"{item['path'] or 'body'}: {item['message']}" for item in errors[:5])
        return document(request, 400, "invalid_request", detail, facts={"errors": errors[:50]})
    if isinstance(error, exceptions.APIException):
        return _drf(request, error)
    return _django(request, error)


def document(
    request: HttpRequest,
    status: int,
    code: str,
    detail: str,
    *,
    facts: Mapping[str, Any] | None = None,
    retry_after: float | None = None,
) -> HttpResponse:
    """Build the response. ASCII JSON: whatever text a fact quotes can be sent; a secret in it is masked."""
    told = {name: _masked(name, value) for name, value in (facts or {}).items()}
    body = {name: value for name, value in told.items() if name not in RESERVED}
    body |= {
        "type": f"urn:agentops:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": mask(detail),
        "code": code,
        "request_id": request.META.get(REQUEST_ID, ""),
    }
    response = HttpResponse(json.dumps(body, default=str), status=status, content_type="application/problem+json")
    response["Content-Length"] = str(len(response.content))  # also for what no later middleware sees
    if retry_after is not None:
        response["Retry-After"] = str(max(1, round(retry_after)))
    if status == HTTPStatus.UNAUTHORIZED:
        response["WWW-Authenticate"] = "Bearer"
    return response


def _masked(name: str, value: Any) -> Any:
    """Mask a fact. The message about a field is read with the field's name, which may say that its value is secret."""
    if name == "errors" and isinstance(value, list):
        return [_masked_error(item) if isinstance(item, dict) else mask_json(item) for item in value]
    return mask_member(name, value)


def _masked_error(item: dict[str, Any]) -> dict[str, Any]:
    head = f"{item.get('path', '')}: "
    masked = mask(f"{head}{item.get('message', '')}")
    return {**mask_json(item), "message": masked.removeprefix(head)}


def _refusal(request: HttpRequest, error: Refusal) -> HttpResponse:
    return document(
        request,
        error.status,
        error.code,
        error.message,
        facts=error.facts,
        retry_after=error.retry_after,
    )


def _drf(request: HttpRequest, error: exceptions.APIException) -> HttpResponse:
    code = next((code for kind, code in DRF_CODES if isinstance(error, kind)), "refused")
    wait = getattr(error, "wait", None)  # of a Throttled
    response = document(request, error.status_code, code, str(error.detail), retry_after=wait)
    if isinstance(error, exceptions.MethodNotAllowed):
        allowed = getattr(error, "allowed", None)
        if allowed:
            response["Allow"] = ", ".join(allowed)
    return response


def _django(request: HttpRequest, error: Exception) -> HttpResponse:
    count_store_error(error)
    if isinstance(error, Http404):
        return document(request, 404, "not_found", "There is nothing here.")
    if isinstance(error, PermissionDenied):
        return document(request, 403, "permission_denied", "You may not do this.")
    if isinstance(error, RequestDataTooBig):
        return document(request, 413, "body_too_large", "The request body is too large.")
    if isinstance(error, BadRequest | SuspiciousOperation):
        return _malformed(request, error)
    if isinstance(error, DataError):
        # The border checks come first; what a database still finds wrong with a value is the client's to change.
        log.warning("api.data_refused", exc_info=error)
        return document(request, 400, "not_storable", "A value in the request cannot be stored.")
    if isinstance(error, OperationalError | InterfaceError):
        return _database(request, error)
    if isinstance(error, RedisError):
        log.warning("api.redis_unavailable", exc_info=error)
        return document(request, 503, "redis_unavailable", "Redis does not answer. Try again.", retry_after=1)
    log.error("api.unhandled", exc_info=error, path=request.path)
    return document(request, 500, "internal_error", "Something broke here. It was logged.")


def _malformed(request: HttpRequest, error: BadRequest | SuspiciousOperation) -> HttpResponse:
    if isinstance(error, DisallowedHost):
        return document(request, 400, "unknown_host", _unknown_host(request))
    said = str(error) if isinstance(error, BadRequest) else ""
    return document(request, 400, "invalid_request", said or "The request is malformed.")


def _unknown_host(request: HttpRequest) -> str:
    host = request.META.get("HTTP_HOST", "")[:100]
    return f"This instance does not answer to the host name {host!a}: AGENTOPS_ALLOWED_HOSTS does not list it."


def _database(request: HttpRequest, error: OperationalError | InterfaceError) -> HttpResponse:
    """Say what is known: a lock that was not got changed nothing; a connection that broke may have."""
    log.warning("api.database_error", exc_info=error)
    if isinstance(error, OperationalError) and is_busy(error):
        return document(request, 503, Busy.code, Busy().message, retry_after=Busy.retry_after)
    detail = (
        "The database does not answer. Whether anything was changed is unknown: try again, with the same"
        " Idempotency-Key where a run was submitted."
    )
    return document(request, 503, "database_unavailable", detail, retry_after=1)


def _flatten(detail: Any, path: str) -> Any:
    """Yield {path, code, message} of every leaf of DRF's nested error detail."""
    if isinstance(detail, Mapping):
        for name, below in detail.items():
            at = path if name == "non_field_errors" else _below(path, name)
            yield from _flatten(below, at)
    elif isinstance(detail, list | tuple):
        for below in detail:
            yield from _flatten(below, path)
    else:
        yield {"path": path, "code": getattr(detail, "code", "invalid"), "message": str(detail)}


def _below(path: str, name: Any) -> str:
    return f"{path}[{name}]" if isinstance(name, int) else key_path(path, name)


@csrf_exempt
def not_found(request: HttpRequest, *_path: str) -> HttpResponse:
    """Answer what is under /api/ and routed nowhere; also where DEBUG would show Django's page."""
    return document(request, 404, "not_found", f"There is no {request.path[:200]!a} here.")


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a malformed request."""
    if request.path.startswith(API):
        return answer(request, exception)
    if isinstance(exception, DisallowedHost):  # also where templates need the host's name
        return HttpResponse(_unknown_host(request) + "\n", status=400, content_type="text/plain; charset=utf-8")
    return defaults.bad_request(request, exception)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a refused request."""
    if request.path.startswith(API):
        return answer(request, exception)
    return defaults.permission_denied(request, exception)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an unknown address."""
    if request.path.startswith(API):
        return not_found(request)
    return defaults.page_not_found(request, exception)


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer an error that a plain Django view raised; Django has logged it."""
    if request.path.startswith(API):
        return document(request, 500, "internal_error", "Something broke here. It was logged.")
    return defaults.server_error(request)
