"""What is refused before Django makes a request of it: bodies over the limit, and a Content-Type it cannot parse.

Two nets. The ASGI wrapper stops reading on every server. daphne, however, collects a whole body before it calls the
application, so there the limit is also set where the bytes arrive: without it an endless chunked body fills the disk.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.utils.http import parse_header_parameters

from agentops.middleware import sane_id
from quotas import strict_json
from quotas.errors import Refusal
from runs.uploads import ENVELOPE_BYTES, UploadTooLarge

Application = Callable[[Any, Any, Any], Awaitable[None]]
LINGER_SECONDS = 10.0  # how long a refused sender may go on, so that it can read the answer


class BodyTooLarge(Exception):
    """More bytes came than the limit allows."""


def body_limit(content_type: str) -> int:
    """Return how many bytes a body of this type may have."""
    if _is_upload(content_type):
        return int(settings.UPLOAD_LIMIT) + ENVELOPE_BYTES
    return int(settings.BODY_LIMIT)


def _is_upload(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def guarded(inner: Application) -> Application:
    """Wrap Django's ASGI application."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        kind, name = headers.get(b"content-type", ""), sane_id(headers.get(b"x-request-id", ""))
        limit = body_limit(kind)
        if not _is_parsable(kind):
            await _send(send, _problem(name, 400, "invalid_request", "The Content-Type is malformed."))
            return
        announced = headers.get(b"content-length", "")
        if announced.isdigit() and int(announced[:19]) > limit:
            await _send(send, _too_large(name, kind))
            return
        received = 0

        async def counted() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise BodyTooLarge
            return message

        try:
            await inner(scope, counted, send)
        except BodyTooLarge:
            # Django reads the whole body before anything else: nothing has been sent yet.
            await _send(send, _too_large(name, kind))

    return application


def _is_parsable(content_type: str) -> bool:
    try:
        parse_header_parameters(content_type)
    except (LookupError, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Answer:
    """A problem document on its way out."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _problem(request_id: str, status: int, code: str, detail: str, **facts: Any) -> Answer:
    title = HTTPStatus(status).phrase
    known = {"type": f"urn:agentops:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    body = json.dumps(known | {"request_id": request_id} | facts).encode()
    headers = {"Content-Type": "application/problem+json", "Content-Length": str(len(body)), "X-Request-ID": request_id}
    return Answer(status, headers, body)


def _too_large(request_id: str, content_type: str) -> Answer:
    if _is_upload(content_type):
        error: Refusal = UploadTooLarge(limit=int(settings.UPLOAD_LIMIT))
    else:
        error = strict_json.BodyTooLarge(limit=int(settings.BODY_LIMIT))
    return _problem(request_id, error.status, error.code, error.message, **error.facts)


async def _send(send: Any, answer: Answer) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def limit_daphne() -> None:
    """Count the bytes of a body as daphne receives them, where daphne is the server; repeating it does nothing.

    And break an answer off that fails in its middle: daphne would begin another one, raise, and look after no
    connection of the process any more.
    """
    protocol: Any = sys.modules.get("daphne.http_protocol")
    if protocol is None or hasattr(protocol.WebRequest, "agentops_refused"):
        return
    request_class = protocol.WebRequest
    store, process = request_class.handleContentChunk, request_class.process
    handle_exception = request_class.handle_exception
    request_class.agentops_received, request_class.agentops_refused = 0, False

    def handle_content_chunk(self: Any, data: bytes) -> None:
        self.agentops_received += len(data)
        if self.agentops_refused:
            return
        kind = _first(self.requestHeaders.getRawHeaders("content-type"))
        limit = body_limit(kind)
        announced = _first(self.requestHeaders.getRawHeaders("content-length"))[:19]
        if max(self.agentops_received, int(announced) if announced.isdigit() else 0) <= limit:
            store(self, data)
        else:
            self.agentops_refused = True
            name = sane_id(_first(self.requestHeaders.getRawHeaders("x-request-id")))
            _refuse(self, _too_large(name, kind))

    def process_unless_refused(self: Any) -> Any:
        if not self.agentops_refused:
            return process(self)
        self.channel.loseConnection()
        return None

    def answer_or_break_off(self: Any, error: Exception) -> None:
        if self._response_started:
            self.transport.abortConnection()
        else:
            handle_exception(self, error)

    request_class.handleContentChunk = handle_content_chunk
    request_class.handle_exception = answer_or_break_off
    request_class.process = process_unless_refused


def _refuse(request: Any, answer: Answer) -> None:
    """Write the 413 at once, and end the connection when the sender stops or after a while."""
    head = {**answer.headers, "Connection": "close"}
    lines = ["HTTP/1.1 413 Content Too Large", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    transport = request.channel.transport
    transport.write("\r\n".join(lines).encode() + answer.body)
    reactor: Any = sys.modules["twisted.internet.reactor"]
    reactor.callLater(LINGER_SECONDS, transport.abortConnection)  # nothing happens where it has ended by then


def _first(values: list[str] | None) -> str:
    return values[0] if values else ""
