"""Server-sent events, and the paged JSON of the same events: plain async views, because the stream lasts for minutes.

The database is touched before the stream starts and by the hub only. A response ends after five minutes or 4 MB:
daphne accepts whatever a reader does not read, so the length of a response is its bound. Clients resume by
`Last-Event-ID`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing
from uuid import UUID

import orjson
from channels.db import database_sync_to_async
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.views.decorators.csrf import csrf_exempt

from quotas.access import Caller
from quotas.api_view import UnknownParameter
from quotas.authentication import caller_of
from quotas.errors import AccessEnded, ScopeMissing
from quotas.standing import Rights, standing_of
from runs import follow, reader, rounds
from runs.errors import InvalidRequest, OnlyGet
from runs.selectors import get_run

RETRY_MS = 1000
RESPONSE_SECONDS = 300.0
RESPONSE_BYTES = 4 * 1024 * 1024
WAIT_MAX = 30.0
QUERY = frozenset({"after", "limit", "wait"})
Frames = AsyncGenerator[follow.Frame | None]


@csrf_exempt
async def run_events(request: HttpRequest, run_id: UUID) -> HttpResponseBase:
    """`GET /runs/{id}/events`: SSE, or with `Accept: application/json` a page; `?after=`, `?limit=`, `?wait=`."""
    caller = await _find(request, run_id)
    cursor = reader.check_cursor(_cursor(request))
    if _wants_json(request):
        return await _page(request, caller, run_id, cursor)
    return _stream(_doors(request, caller), follow.follow_run(run_id, cursor), ends=True)


@csrf_exempt
async def session_events(request: HttpRequest, key: str) -> HttpResponseBase:
    """`GET /sessions/{key}/events`: the events of all runs of a session, one cursor `<number>/<event id>`."""
    caller = await _caller(request)
    cursor = _cursor(request)
    follow.split_session_cursor(cursor)
    if _wants_json(request):
        limit = _number(request, "limit", reader.PAGE, 1, 1000)
        read = database_sync_to_async(follow.read_session, thread_sensitive=False)
        return JsonResponse(await read(caller.account.pk, key, cursor, limit))
    return _stream(_doors(request, caller), follow.follow_session(caller.account.pk, key, cursor), ends=False)


async def _caller(request: HttpRequest) -> Caller:
    """Return who asks. What this raises, the middleware answers as a problem document."""
    if request.method not in {"GET", "HEAD"}:
        raise OnlyGet
    unknown = next((name for name in request.GET if name not in QUERY), None)
    if unknown is not None:
        raise UnknownParameter(parameter=ascii(unknown[:60]), known=", ".join(sorted(QUERY)))
    caller = await database_sync_to_async(caller_of, thread_sensitive=False)(request)
    if not caller.may("read"):
        raise ScopeMissing(needed="read")
    return caller


async def _find(request: HttpRequest, run_id: UUID) -> Caller:
    """Return who asks, of whose account the run is. Raises NoSuchRun."""
    caller = await _caller(request)
    await database_sync_to_async(get_run, thread_sensitive=False)(run_id, caller.account)
    return caller


def _doors(request: HttpRequest, caller: Caller) -> Callable[[], rounds.Stay]:
    """Return what opens the caller's stay."""
    standing = standing_of(caller, None if caller.api_key else request.session.session_key)
    return lambda: rounds.current().open(standing, Rights(caller.scopes))


def _cursor(request: HttpRequest) -> str:
    return request.GET.get("after") or request.headers.get("Last-Event-ID") or ""


def _wants_json(request: HttpRequest) -> bool:
    """Absent or any `Accept` means SSE (surfaces, Events)."""
    accept = request.headers.get("Accept", "")
    return "application/json" in accept and "text/event-stream" not in accept


def _number(request: HttpRequest, name: str, default: float, least: float, most: float) -> int:
    raw = request.GET.get(name)
    if raw is None:
        return int(default)
    if not (raw.isascii() and raw.isdigit() and len(raw) < 7 and least <= int(raw) <= most):
        raise InvalidRequest(field=name, problem=f"a whole number from {least:g} to {most:g}")
    return int(raw)


async def _page(request: HttpRequest, caller: Caller, run_id: UUID, cursor: str) -> JsonResponse:
    limit = _number(request, "limit", reader.PAGE, 1, 1000)
    wait = _number(request, "wait", 0, 0, WAIT_MAX)
    read = database_sync_to_async(reader.read_events, thread_sensitive=False)
    page = await read(run_id, cursor, limit)
    if wait and not page.events and not page.ended:
        with closing(_doors(request, caller)()) as stay:
            await _until_news(stay.watched(follow.follow_run(run_id, cursor)), wait)
        page = await read(run_id, cursor, limit)
    return JsonResponse({"results": page.events, "next": page.next, "ended": page.ended})


async def _until_news(frames: Frames, seconds: float) -> None:
    """Raises AccessEnded when the asker is let in no more."""
    try:
        async with asyncio.timeout(seconds):
            async for frame in frames:
                if frame is not None:
                    return
    except TimeoutError:
        return
    finally:
        await frames.aclose()


def _stream(enter: Callable[[], rounds.Stay], frames: Frames, *, ends: bool) -> StreamingHttpResponse:
    response = StreamingHttpResponse(
        _written(enter, frames, ends=ends), content_type="text/event-stream; charset=utf-8"
    )
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    return response


async def _written(enter: Callable[[], rounds.Stay], frames: Frames, *, ends: bool) -> AsyncIterator[bytes]:
    """Write frames as SSE: `id:` and `data:` lines only, ids from the server, JSON never holds a raw newline."""
    until, sent = time.monotonic() + RESPONSE_SECONDS, 0
    yield f"retry: {RETRY_MS}\n\n".encode()
    with closing(enter()) as stay:
        try:
            async with aclosing(stay.watched(frames)) as watched:
                async for frame in watched:
                    chunk = b": idle\n\n" if frame is None else _sse(frame)
                    sent += len(chunk)
                    yield chunk
                    if sent > RESPONSE_BYTES or time.monotonic() > until:
                        return
            if ends:
                yield b"event: end\ndata: {}\n\n"
        except AccessEnded as ended:
            told = {"type": "error", "code": ended.code, "status": ended.status, "detail": ended.message}
            yield b"event: error\ndata: " + orjson.dumps(told) + b"\n\n"


def _sse(frame: follow.Frame) -> bytes:
    event_id = frame.get("cursor") or frame.get("id")
    head = f"id: {event_id}\n".encode() if event_id else b""
    return head + b"data: " + orjson.dumps(frame) + b"\n\n"
