"""Event streams over a real web process and a real worker: every viewer gets every event once, in order (P4)."""

import json

import httpx
import pytest

from runs.models import Run
from runs.services import submit_run
from tests import builders, invariants
from tests.acceptance.viewers import SseViewer, WebSocketViewer, close_code, frames, pages, socket, start
from tests.probes import WebServer, WorkerProbe, eventually, probe_log

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
COUNT = 600
IDS = ["1-1", *(f"2-{number}" for number in range(1, COUNT + 2)), "3-1"]


@pytest.fixture
def account(stack):
    return builders.make_account("viewed")


@pytest.fixture
def key(account):
    return builders.make_api_key(account)[1]


def submit(account, agent="probe.emit", session="", **run_input):
    return submit_run(account=account, agent=agent, input=run_input, actor="test", session=session).run


def ids(events):
    return [event["id"] for event in events]


def both(stack, **env):
    web, worker = WebServer(), WorkerProbe(**env)
    stack.together(web, worker)
    return web, worker


def reader(web, key, path, **query):
    """Return a function that reads a JSON page after a cursor."""
    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}

    def read(cursor):
        answer = httpx.get(f"{web.url}{path}", params={"after": cursor, **query}, headers=headers, timeout=30)
        assert answer.status_code == 200
        return answer.json()

    return read


def test_viewers_that_reconnect_get_every_event_once(stack, account, key):
    web, _ = both(stack)
    run = submit(account, session="talk", count=COUNT, seconds=6)
    socket_path, http_path = f"/ws/runs/{run.pk}/", f"/api/v1/runs/{run.pk}/events"
    viewers = [
        WebSocketViewer(web, socket_path, key, stay=1),
        WebSocketViewer(web, socket_path, key, stay=60),
        SseViewer(web, http_path, key, stay=1),
        SseViewer(web, http_path, key, stay=60),
    ]
    sessions = [
        WebSocketViewer(web, "/ws/sessions/talk/", key, stay=1, runs=2),
        SseViewer(web, "/api/v1/sessions/talk/events", key, stay=1, runs=2),
    ]
    start(*viewers, *sessions)
    eventually(lambda: all(len(viewer.events) > COUNT / 4 for viewer in viewers), timeout=30)

    web.restart()

    for viewer in viewers:
        assert ids(viewer.finish(40)) == IDS
        invariants.check_sequence(viewer.events)
        assert viewer.connections > 1
    assert 1012 in viewers[1].closed_with
    second = submit(account, session="talk", count=5)
    expected = [f"1/{name}" for name in IDS]
    expected += [f"2/{name}" for name in ["1-1", *(f"2-{number}" for number in range(1, 7)), "3-1"]]
    for viewer in sessions:
        assert [event["cursor"] for event in viewer.finish(20)] == expected
    eventually(lambda: Run.objects.get(pk=second.pk, log_closed_at__isnull=False), timeout=20)
    # Whoever comes late reads the archive, by every way and with the same cursor.
    late = [WebSocketViewer(web, socket_path, key, stay=60), SseViewer(web, http_path, key, stay=60)]
    start(*late)
    assert [ids(viewer.finish(20)) for viewer in late] == [IDS, IDS]
    assert ids(pages(reader(web, key, http_path, limit=100))) == IDS
    invariants.check(account)


def test_a_waiting_page_answers_with_the_news(stack, account, key):
    web, worker = both(stack)
    worker.pause()
    run = submit(account, count=3)
    read = reader(web, key, f"/api/v1/runs/{run.pk}/events", wait=20)
    assert read("") == {"results": read("")["results"], "next": "1-1", "ended": False}

    worker.resume()

    news = read("1-1")
    assert news["results"][0]["id"] == "2-1"
    assert ids(pages(read)) == ["1-1", "2-1", "2-2", "2-3", "2-4", "3-1"]
    assert read("3-1") == {"results": [], "next": "3-1", "ended": True}


def test_what_is_not_kept_any_more_is_said(stack, account, key):
    web, _ = both(stack, AGENTOPS_EVENT_CAP="100")
    blocker = [submit(account, "probe.sleep", seconds=3) for _ in range(4)]
    eventually(lambda: len(probe_log()) == 4)
    run = submit(account, count=3000)
    socket_path, http_path = f"/ws/runs/{run.pk}/", f"/api/v1/runs/{run.pk}/events"
    live = [WebSocketViewer(web, socket_path, key, stay=60), SseViewer(web, http_path, key, stay=60)]
    start(*live)
    eventually(lambda: all(ids(viewer.events) == ["1-1"] for viewer in live))

    for viewer in live:
        viewer.finish(30)
    late = [WebSocketViewer(web, socket_path, key, stay=60), SseViewer(web, http_path, key, stay=60)]
    for viewer in late:
        viewer.cursor = "2-5"
    start(*late)

    for viewer in [*live, *late]:
        events = viewer.finish(20)
        invariants.check_sequence(events, gaps=True)
        gaps = [event for event in events if event["kind"] == "gap"]
        assert gaps
        assert gaps[-1]["data"]["before"].startswith(("2-", "3-"))
        assert "state" in gaps[-1]["data"]
        assert viewer.connections == 1
    assert ids(late[0].events) == ids(late[1].events)
    page = reader(web, key, http_path)("2-5")
    assert page["results"][0]["kind"] == "gap"
    eventually(lambda: Run.objects.filter(pk__in=[b.pk for b in blocker], state="succeeded").count() == 4)


def test_a_viewer_that_does_not_acknowledge_is_closed_and_may_resume(stack, account, key):
    web, _ = both(stack)
    run = submit(account, count=COUNT, bytes=1000, seconds=2)
    path = f"/ws/runs/{run.pk}/"
    other = WebSocketViewer(web, path, key, stay=60)
    start(other)

    with socket(web, path, key=key) as idle:  # it never reads either, until the end
        assert ids(other.finish(30)) == IDS
        got = [frame for frame in frames(idle, 3) if "kind" in frame]
        assert close_code(idle, 20) == 1008

    assert ids(got) == IDS[: len(got)]
    assert 100 < len(got) < COUNT
    resumed = WebSocketViewer(web, path, key, stay=60)
    resumed.cursor = got[-1]["id"]
    start(resumed)
    assert ids(got) + ids(resumed.finish(20)) == IDS
    with socket(web, path, key=key) as sending:
        sending.send(json.dumps({"type": "ping"}))
        assert {"type": "pong"} in list(frames(sending, 2))
    assert other.closed_with == []
