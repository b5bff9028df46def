"""A live viewer whose tail jumps: what the log still holds is read, and only what it lacks is told as a gap."""

import asyncio
import datetime as dt

import pytest
from asgiref.sync import sync_to_async

from runs import broker, events, follow, hub, keys
from runs.events import Append, Line
from runs.states import RunState
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)
AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def append(run, *ids):
    lines = [Line(name, events.encode("probe.tick", {}, AT)) for name in ids]
    answers = events.append_all(broker.client(), [Append(run.pk, run.fence, lines, opening=True)])
    assert answers[0][0] == events.Answer.OK


async def until_id(frames, last):
    """Return the events up to the one of that id."""
    got = []
    async with asyncio.timeout(20):
        async for frame in frames:
            if frame is not None:
                got.append(frame)
                if frame.get("id") == last:
                    return got
    raise AssertionError(f"ended before {last}")


@pytest.mark.parametrize("kept", [2000, 50])
async def test_a_tail_that_jumps_is_filled_from_the_log(kept):
    run = await sync_to_async(builders.make_run)(RunState.RUNNING)
    append(run, "1-1", "2-1", "2-2")
    frames = follow.follow_run(run.pk, "")
    assert [event["id"] for event in await until_id(frames, "2-2")] == ["1-1", "2-1", "2-2"]
    news = asyncio.create_task(until_id(frames, "2-1000"))
    watch = hub.current()._watches[run.pk]
    while watch.last != "2-2":
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the viewer has looked at all that is kept, and waits

    watch.tail.clear()
    watch.last = "2-900"  # as after a burst of more than a tail holds, between two looks of the viewer
    append(run, *(f"2-{number}" for number in range(3, 1001)))
    broker.client().xtrim(keys.log(run.pk), maxlen=kept, approximate=False)

    got = await news
    await frames.aclose()
    ids = [event["id"] for event in got]
    if kept >= 1000:
        assert ids == [f"2-{number}" for number in range(3, 1001)]
    else:
        assert ids[0] == ""
        assert got[0]["kind"] == "gap"
        assert got[0]["data"]["after"] == "2-2"
        assert got[0]["data"]["state"] == "running"
        assert ids[1:] == [f"2-{number}" for number in range(1001 - len(ids[1:]), 1001)]


async def test_a_session_viewer_that_leaves_is_forgotten_at_once():
    run = await sync_to_async(builders.make_run)(RunState.RUNNING, session="talk", session_number=1)
    frames = follow.follow_session(run.account_id, "talk", "")
    assert (await anext(frames))["cursor"] == "1/1-1"

    await frames.aclose()

    assert run.pk not in hub.current()._watches


def test_the_hub_ends_whenever_it_is_cancelled():
    """The client swallows a cancellation that comes while it connects: the task would wait for ever."""
    run = builders.make_run(RunState.RUNNING, session="talk", session_number=1)

    async def begin() -> set[asyncio.Task[None]]:
        frames = follow.follow_session(run.account_id, "talk", "")
        await anext(frames)
        await frames.aclose()
        return asyncio.all_tasks() - {asyncio.current_task()}

    for _ in range(60):
        with asyncio.Runner() as runner:
            tasks = runner.run(begin())
            for task in tasks:
                task.cancel()
            assert tasks
            assert not runner.run(asyncio.wait(tasks, timeout=10))[1]
