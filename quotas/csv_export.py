"""Tables as files: streamed in pieces on both kinds of server; CSV is safe to open in a spreadsheet."""

import csv
import datetime as dt
import io
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from tempfile import SpooledTemporaryFile
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import HttpRequest, StreamingHttpResponse
from rest_framework.renderers import BaseRenderer

from quotas.errors import AccessEnded
from quotas.standing import Standing, rights_of

CONTENT_TYPE = "text/csv; charset=utf-8"
# What makes a spreadsheet compute a cell, also in full width; what it may pass over before it; what hides it.
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
PASSED_OVER = "\u200b\u200c\u200d\u2060\ufeff"
HIDING = ("\t", "\r", "\n")
Pieces = Iterable[list[list[Any]]]
LOOK_SECONDS = 2.0  # between two looks at whether the asker is still let in
SPOOLED_BYTES = 1024 * 1024  # of a file kept in memory; what is longer goes to the disk
SENT_CHARACTERS = 64 * 1024  # of a spooled file, at once
# Two threads of their own: the default ones also look whom to let in no more, and no export may keep them from it.
_threads = ThreadPoolExecutor(2, thread_name_prefix="export")


class CsvRenderer(BaseRenderer):
    """Lets a view be asked for CSV by `Accept: text/csv` or `?format=csv`; the view itself streams the answer."""

    media_type = "text/csv"
    format = "csv"


def cell(value: Any) -> Any:
    """Return what is written for a value: whole numbers as they are, moments in UTC, texts that no sheet computes."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int():
            return value
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat()
        case _:
            text = str(value)
            return f"'{text}" if text.startswith(HIDING) or _begins(text).startswith(FORMULA) else text


def _begins(text: str) -> str:
    """Return the text from its first character that a spreadsheet would look at."""
    at = next((n for n, letter in enumerate(text) if not (letter.isspace() or letter in PASSED_OVER)), 0)
    return text[at:]


def csv_response(
    request: HttpRequest,
    *,
    name: str,
    columns: Iterable[str],
    pieces: Pieces,
    standing: Standing,
    in_one_go: bool = False,
) -> StreamingHttpResponse:
    """Return the response that sends a header row and then the rows, piece after piece as they are read.

    `in_one_go`: the pieces are of one query, which is read to its end before they are sent.
    """
    texts = _texts(columns, pieces)
    texts = _spooled(texts) if in_one_go else texts
    return file_response(request, name=f"{name}.csv", content_type=CONTENT_TYPE, texts=texts, standing=standing)


def file_response(
    request: HttpRequest, *, name: str, content_type: str, texts: Iterator[str], standing: Standing
) -> StreamingHttpResponse:
    """Return the response that sends texts as a file, as they come.

    A connection that breaks off before the end means that some are missing: there is no length to check. So ends one
    whose asker is let in no more.
    """
    texts = _while_let_in(texts, standing)
    # Under ASGI Django would read a plain iterator to its end before the first byte is sent.
    body = _in_threads(texts) if isinstance(request, ASGIRequest) else texts
    response = StreamingHttpResponse(body, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "private, no-store"
    return response


def _texts(columns: Iterable[str], pieces: Pieces) -> Iterator[str]:
    yield _text([list(columns)])
    for rows in pieces:
        yield _text(rows)


def _spooled(texts: Iterator[str]) -> Iterator[str]:
    with SpooledTemporaryFile(SPOOLED_BYTES, "w+", encoding="utf-8", newline="") as file:
        file.writelines(texts)
        file.seek(0)
        while text := file.read(SENT_CHARACTERS):
            yield text


def _while_let_in(texts: Iterator[str], standing: Standing) -> Iterator[str]:
    looked_at = time.monotonic()
    for text in texts:
        if time.monotonic() - looked_at > LOOK_SECONDS:
            rights = rights_of([standing]).get(standing)
            if rights is None or "read" not in rights.scopes:
                raise AccessEnded
            looked_at = time.monotonic()
        yield text


def _text(rows: list[list[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerows([cell(value) for value in row] for row in rows)
    return buffer.getvalue()


async def _in_threads(texts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(_next, thread_sensitive=False, executor=_threads)
    while (text := await following(texts)) is not None:
        yield text


def _next(texts: Iterator[str]) -> str | None:
    """Read one piece on whatever thread it is: no cursor stays open between two of them."""
    try:
        return next(texts, None)
    finally:
        close_old_connections()
