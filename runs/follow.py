"""Following a run or a session live: first what is kept, then the hub's tail, each event once and in order.

One generator serves both transports; SSE and WebSocket differ only in how they write what it yields.
"""

import asyncio
from collections.abc import AsyncGenerator
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
        looked_at: str | None = None  # the cursor at which the kept log had nothing more
        while not follower.ended:
            news = asyncio.ensure_future(watch.news())  # taken before reading: news meanwhile is not missed
            try:
                if _must_read(watch, follower.cursor, looked_at):
                    page = await database_sync_to_async(read_events)(run_id, follower.cursor, PAGE)
                    follower.cursor, follower.ended = page.next, page.ended
                    looked_at = page.next if len(page.events) < PAGE else None
                    for event in page.events:
                        yield event
                    continue
                got = follower.accept(watch.after(follower.cursor))
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


def _must_read(watch: "hub.Watch", cursor: str, looked_at: str | None) -> bool:
    """Whether what is kept has to be read: at the start, and where the live tail does not continue at the cursor.

    At most once a cursor: where the kept log has nothing more either, the tail's jump is a real gap.
    """
    if looked_at is None:
        return True
    fresh = watch.after(cursor)
    return looked_at != cursor and bool(fresh) and not follows(cursor, *fresh[0])


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
    async with hub.current().listen(keys.session_wake(account_id, session)) as bell:
        while True:
            bell.clear()
            run = await find(account_id, session, number)
            if run is None:
                if not await _rings(bell):
                    yield None
                continue
            if run.session_number != named:
                event_cursor = ""  # the run the cursor named is not kept any more
            async for frame in follow_run(run.pk, event_cursor):
                if frame is not None and frame.get("id"):
                    yield {**frame, "cursor": f"{run.session_number}/{frame['id']}"}
                else:
                    yield frame
            number, event_cursor = run.session_number, ""


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
        results += [{**event, "cursor": f"{run.session_number}/{event['id']}"} for event in page.events]
        number, event_cursor = run.session_number, page.next
        if not page.ended:
            break
        run = next_of_session(account_id, session, number)
    return {"results": results, "next": f"{number}/{event_cursor}" if number else ""}
