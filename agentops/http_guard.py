"""What is refused before Django makes a request of it: bodies over the limit, and a Content-Type it cannot parse.

Two nets. The ASGI wrapper stops reading on every server. daphne, however, collects a whole body before it calls the
application, so there the limit is also set where the bytes arrive: without it an endless chunked body fills the disk.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.utils.http import parse_header_parameters

from runs.uploads import ENVELOPE_BYTES

Application = Callable[[Any, Any, Any], Awaitable[None]]
LINGER_SECONDS = 10.0  # how long a refused sender may go on, so that it can read the answer


class BodyTooLarge(Exception):
    """More bytes came than the limit allows."""


def body_limit(content_type: str) -> int:
    """Return how many bytes a body of this type may have."""
    if content_type.lower().startswith("multipart/form-data"):
        return int(settings.UPLOAD_LIMIT) + ENVELOPE_BYTES
    return int(settings.BODY_LIMIT)


def guarded(inner: Application) -> Application:
    """Wrap Django's ASGI application."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        kind = headers.get(b"content-type", "")
        limit = body_limit(kind)
        if not _is_parsable(kind):
            await _send(send, _problem(400, "invalid_request", "The Content-Type is malformed."))
            return
        announced = headers.get(b"content-length", "")
        if announced.isdigit() and int(announced[:19]) > limit:
            await _send(send, _too_large(limit))
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
            await _send(send, _too_large(limit))

    return application


def _is_parsable(content_type: str) -> bool:
    try:
        parse_header_parameters(content_type)
    except (LookupError, ValueError):
        return False
    return True


def _problem(status: int, code: str, detail: str, **facts: Any) -> tuple[int, bytes]:
    title = HTTPStatus(status).phrase
    body = {"type": f"urn:agentops:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    return status, json.dumps(body | facts).encode()


def _too_large(limit: int) -> tuple[int, bytes]:
    return _problem(413, "body_too_large", f"The request body is larger than {limit} bytes.", limit=limit)


async def _send(send: Any, answer: tuple[int, bytes]) -> None:
    status, body = answer
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def limit_daphne() -> None:
    """Count the bytes of a body as daphne receives them, where daphne is the server; repeating it does nothing."""
    protocol: Any = sys.modules.get("daphne.http_protocol")
    if protocol is None or hasattr(protocol.WebRequest, "agentops_refused"):
        return
    request_class = protocol.WebRequest
    store, process = request_class.handleContentChunk, request_class.process
    request_class.agentops_received, request_class.agentops_refused = 0, False

    def handle_content_chunk(self: Any, data: bytes) -> None:
        self.agentops_received += len(data)
        if self.agentops_refused:
            return
        limit = body_limit(_first(self.requestHeaders.getRawHeaders("content-type")))
        announced = _first(self.requestHeaders.getRawHeaders("content-length"))[:19]
        if max(self.agentops_received, int(announced) if announced.isdigit() else 0) <= limit:
            store(self, data)
        else:
            self.agentops_refused = True
            _refuse(self, limit)

    def process_unless_refused(self: Any) -> Any:
        if not self.agentops_refused:
            return process(self)
        self.channel.loseConnection()
        return None

    request_class.handleContentChunk = handle_content_chunk
    request_class.process = process_unless_refused


def _refuse(request: Any, limit: int) -> None:
    """Write the 413 at once, and end the connection when the sender stops or after a while."""
    _, body = _too_large(limit)
    head: Mapping[str, str] = {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = ["HTTP/1.1 413 Content Too Large", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    transport = request.channel.transport
    transport.write("\r\n".join(lines).encode() + body)
    reactor: Any = sys.modules["twisted.internet.reactor"]
    reactor.callLater(LINGER_SECONDS, transport.abortConnection)  # nothing happens where it has ended by then


def _first(values: list[str] | None) -> str:
    return values[0] if values else ""
