"""Following a run or a session live: first what is kept, then the hub's tail, each event once and in order.

One generator serves both transports; SSE and WebSocket differ only in how they write what it yields.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from uuid import UUID

from channels.db import database_sync_to_async

from runs import hub, keys
from runs.errors import InvalidCursor
from runs.events import Event, follows
from runs.reader import PAGE, Follower, check_cursor, read_events
from runs.selectors import next_of_session

Frame = dict[str, Any] | Event
IDLE_SECONDS = 15.0  # after so much silence a None is yielded, for the transport's own heartbeat


async def follow_run(run_id: UUID, cursor: str) -> AsyncGenerator[Frame | None]:
    """Yield the run's events after the cursor until its terminal one; frames without id; None when idle."""
    async with hub.current().watch(run_id) as watch:
        follower = Follower(run_id, check_cursor(cursor))
        frames_seen = watch.frame_count
        has_looked = False  # whether what was kept before the tail has been read to its end
        while not follower.ended:
            news = asyncio.ensure_future(watch.news())  # taken before reading: news meanwhile is not missed
            try:
                fresh = watch.after(follower.cursor)
                is_whole = _is_whole(follower.cursor, fresh)
                if not has_looked or not is_whole:
                    page = await database_sync_to_async(read_events)(run_id, follower.cursor, PAGE)
                    follower.cursor, follower.ended = page.next, page.ended
                    has_looked = len(page.events) < PAGE
                    for event in page.events:
                        yield event
                    if page.events or follower.ended or is_whole:
                        continue
                    # What is kept has nothing more: the tail's jump is a real gap, told with the row as it is.
                    got = await database_sync_to_async(follower.accept)(fresh)
                else:
                    got = follower.accept(fresh)
                for event in got:
                    yield event
                for number, frame in list(watch.frames):
                    if number > frames_seen:
                        frames_seen = number
                        yield frame
                idle = len(got) == 0 and not follower.ended
                if idle and not await _wait(news):
                    yield None
            finally:
                news.cancel()


def _is_whole(cursor: str, pairs: "list[hub.Pair]") -> bool:
    """Whether the live tail continues at the cursor, and each event of it at the one before."""
    for event, prev in pairs:
        if not follows(cursor, event, prev):
            return False
        cursor = event["id"]
    return True


async def _wait(news: "asyncio.Future[None]") -> bool:
    done, _ = await asyncio.wait({news}, timeout=IDLE_SECONDS)
    return bool(done)


def split_session_cursor(cursor: str) -> tuple[int, str]:
    """Return (run number in the session, event id) of a session cursor; (0, "") for none. Raises InvalidCursor."""
    if not cursor:
        return 0, ""
    number, slash, event = cursor.partition("/")
    if not slash or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise InvalidCursor(cursor=cursor[:60])
    return int(number), check_cursor(event)


async def follow_session(account_id: int, session: str, cursor: str) -> AsyncGenerator[Frame | None]:
    """Yield the events of all runs of a session, one after the other; each event has its session cursor as `cursor`.

    Never ends by itself: a session may always get another run.
    """
    named, event_cursor = split_session_cursor(cursor)
    find = database_sync_to_async(next_of_session)
    # Continue inside the run the cursor names, unless the cursor has no run yet.
    number = max(0, named - 1)
    quiet_since = time.monotonic()
    async with hub.current().listen(keys.session_wake(account_id, session)) as bell:
        while True:
            bell.clear()
            run = await find(account_id, session, number)
            if run is None:
                if not await _rings(bell) and time.monotonic() - quiet_since >= IDLE_SECONDS:
                    quiet_since = time.monotonic()
                    yield None
                continue
            if run.session_number != named:
                event_cursor = ""  # the run the cursor named is not kept any more
            # Closed with this generator, not when it is collected: the hub counts its viewers.
            async with aclosing(follow_run(run.pk, event_cursor)) as frames:
                async for frame in frames:
                    yield None if frame is None else _placed(frame, run.session_number)
            number, event_cursor, quiet_since = run.session_number, "", time.monotonic()


def _placed(frame: Frame, number: int) -> Frame:
    """Return an event with its session cursor; a frame without an id (a gap) has none: no cursor can name it."""
    return {**frame, "cursor": f"{number}/{frame['id']}"} if frame.get("id") else frame


async def _rings(bell: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(2.0):
            await bell.wait()
    except TimeoutError:
        return False
    return True


def read_session(account_id: int, session: str, cursor: str, limit: int) -> dict[str, Any]:
    """Return a page of a session's events: {results, next}; `next` is the cursor to go on from."""
    number, event_cursor = split_session_cursor(cursor)
    results: list[Frame] = []
    run = next_of_session(account_id, session, max(0, number - 1))
    while run is not None and len(results) < limit:
        after = event_cursor if run.session_number == number else ""
        page = read_events(run.pk, after, limit - len(results))
        results += [_placed(event, run.session_number) for event in page.events]
        number, event_cursor = run.session_number, page.next
        if not page.ended:
            break
        run = next_of_session(account_id, session, number)
    return {"results": results, "next": f"{number}/{event_cursor}" if number else ""}
