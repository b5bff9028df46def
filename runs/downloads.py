"""Sending a stored file to a client: always as an attachment, never sniffed, in pieces on both kinds of server."""

from collections.abc import AsyncIterator, Iterator
from typing import IO

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

PIECE_BYTES = 256 * 1024


def send_file(
    request: HttpRequest, file: IO[bytes], *, name: str, content_type: str, size: int
) -> StreamingHttpResponse:
    """Return the response that streams the file and closes it."""
    # Under ASGI Django would read a plain iterator to its end before the first byte is sent.
    pieces = _pieces_async(file) if isinstance(request, ASGIRequest) else _pieces(file)
    response = StreamingHttpResponse(pieces, content_type=content_type)
    shown = "".join(char if char.isprintable() else "_" for char in name.rpartition("/")[2])
    response["Content-Disposition"] = content_disposition_header(True, shown or "file") or "attachment"  # noqa: FBT003
    response["Content-Length"] = str(size)
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["Cache-Control"] = "private, no-store"
    return response


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece


async def _pieces_async(file: IO[bytes]) -> AsyncIterator[bytes]:
    read = sync_to_async(file.read, thread_sensitive=False)
    try:
        while piece := await read(PIECE_BYTES):
            yield piece
    finally:
        file.close()
