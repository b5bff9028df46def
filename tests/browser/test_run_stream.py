"""run-stream.js alone, in a real browser: frames come from a scripted socket, so that each odd order can be shown."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Watched
from tests.probes import Stack

pytestmark = [pytest.mark.browser, pytest.mark.process]

HARNESS = """
async ({ scripts, options }) => {
  const { RunStream } = await import("/static/runs/run-stream.js");
  const seen = { events: [], states: [], outputs: [], gaps: [], retried: [], statuses: [], addresses: [], sent: [] };
  let connection = 0;
  window.WebSocket = class {
    static OPEN = 1;
    constructor(address) {
      seen.addresses.push(new URL(address).search);
      this.readyState = 1;
      const script = scripts[Math.min(connection, scripts.length - 1)];
      connection += 1;
      setTimeout(() => {
        if (this.onopen && !script.refused) this.onopen();
        for (const frame of script.frames) {
          if (this.onmessage) this.onmessage({ data: typeof frame === "string" ? frame : JSON.stringify(frame) });
        }
        if (script.close && this.onclose) this.onclose({ code: script.close });
      }, 0);
    }
    send(text) { seen.sent.push(JSON.parse(text)); }
    close() {}
  };
  return await new Promise((resolve) => {
    const stream = new RunStream("run-1", {
      ...options,
      ...(options.ticket && { ticket: async () => options.ticket }),
      onEvent: (event) => seen.events.push(event.id),
      onState: (state) => seen.states.push(state),
      onOutput: (text, { reset }) => seen.outputs.push([text, reset]),
      onGap: (event) => seen.gaps.push(event.id || ""),
      onRetriedBy: (run) => seen.retried.push(run),
      onStatus: (status) => {
        seen.statuses.push(status);
        if (["ended", "refused"].includes(status)) resolve({ ...seen, text: String(stream.output) });
      },
    });
    stream.start();
  });
}
"""


def event(event_id: str, kind: str = "probe.tick", **data: Any) -> dict[str, Any]:
    return {"id": event_id, "run": "run-1", "at": "2026-01-01T00:00:00Z", "kind": kind, "data": data}


def delta(event_id: str, text: str) -> dict[str, Any]:
    return event(event_id, "output.delta", text=text)


END = event("9-1", "run.succeeded")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a web process that only serves a page and the script: no test here touches the database."""
    with Stack() as made:
        yield made.web().url


@pytest.fixture
def page(browser: Browser, address: str) -> Page:
    page = Watched(browser, address).page
    page.goto("/admin/login/")
    return page


def play(page: Page, *scripts: Any, **options: Any) -> Any:
    return page.evaluate(HARNESS, {"scripts": list(scripts), "options": options})


def test_duplicates_and_old_ids_are_dropped_and_ids_are_compared_as_numbers(page: Page) -> None:
    frames = [event(i) for i in ("1-1", "2-1", "2-9", "2-10", "2-9", "2-2", "1-1", "2-10", "10-1", "9-5")]

    seen = play(page, {"frames": [*frames, event("11-1", "run.failed")]})

    assert seen["events"] == ["1-1", "2-1", "2-9", "2-10", "10-1", "11-1"]
    assert (seen["states"], seen["statuses"]) == (["failed"], ["connecting", "live", "ended"])


def test_a_broken_connection_goes_on_after_the_last_id(page: Page) -> None:
    first = {"frames": [event("1-1"), event("2-1")], "close": 1012}
    second = {"frames": [event("2-1"), event("2-2")], "close": 1008}

    seen = play(page, first, second, {"frames": [event("2-2"), END]})

    assert seen["events"] == ["1-1", "2-1", "2-2", "9-1"]
    assert seen["addresses"] == ["", "?after=2-1", "?after=2-2"]
    assert seen["statuses"] == ["connecting", "live", "reconnecting", "live", "reconnecting", "live", "ended"]


def test_a_rollback_takes_back_the_text_of_lower_fences_after_the_kept_step(page: Page) -> None:
    frames = [delta("2-2", "kept "), delta("2-4", "lost "), event("3-1"), delta("4-2", "early ")]
    frames += [event("4-3", "output.rollback", after="2-3"), delta("4-4", "new"), END]

    seen = play(page, {"frames": frames})

    assert seen["text"] == "kept early new"
    assert seen["outputs"][-2:] == [["kept early ", True], ["new", False]]


def test_a_rollback_without_a_step_takes_all_of_lower_fences(page: Page) -> None:
    seen = play(page, {"frames": [delta("2-2", "a"), event("4-2", "output.rollback"), delta("4-3", "b"), END]})

    assert seen["text"] == "b"


def test_a_retry_waits_only_where_it_says_until_when(page: Page) -> None:
    at = "2026-01-01T00:00:00Z"
    frames = [event("1-1", "run.scheduled"), event("2-1", "run.queued"), event("3-1", "run.started")]
    frames += [event("4-1", "run.retrying", not_before=at), event("5-1", "run.queued"), event("6-1", "run.started")]
    frames += [event("7-1", "run.retrying", not_before=None), event("8-1", "run.started")]

    seen = play(page, {"frames": [*frames, event("8-9", "run.retaken", not_before=at), END]})

    around = ["queued", "running"]
    assert seen["states"] == [
        *("scheduled", *around),
        *("scheduled", *around),
        *("queued", "running"),
        *("scheduled", "succeeded"),
    ]


def test_a_rollback_holds_over_a_broken_connection(page: Page) -> None:
    first = {"frames": [delta("2-2", "lost "), event("3-1", "run.retrying")], "close": 1012}
    second = {"frames": [event("4-1"), event("5-1"), event("5-2", "output.rollback", after="")], "close": 1012}

    seen = play(page, first, second, {"frames": [event("5-2", "output.rollback", after=""), delta("5-3", "new"), END]})

    assert (seen["text"], seen["outputs"]) == ("new", [["lost ", False], ["", True], ["new", False]])


def test_gaps_requeues_and_greetings_are_told(page: Page) -> None:
    frames = [
        {"type": "hello", "run": "run-1", "state": "running"},
        {"kind": "gap", "data": {}},
        event("5-1", "gap"),
        {"type": "retried_by", "run": "run-2"},
        {"type": "pong"},
        "no json",
        "7",
        "null",
        END,
    ]

    seen = play(page, {"frames": frames})

    assert (seen["gaps"], seen["retried"], seen["states"]) == (["", "5-1"], ["run-2"], ["running", "succeeded"])


@pytest.mark.parametrize("code", [4401, 4404])
def test_a_refusal_is_final(page: Page, code: int) -> None:
    seen = play(page, {"frames": [], "close": code})

    assert (seen["statuses"][-1], len(seen["addresses"])) == ("refused", 1)


def test_with_a_ticket_it_stays_with_sockets_however_often_none_opens(page: Page) -> None:
    refused = {"frames": [], "refused": True, "close": 1006}

    seen = play(page, *[refused] * 4, {"frames": [END]}, ticket="t")

    assert (seen["events"], seen["addresses"]) == (["9-1"], ["?ticket=t"] * 5)


def test_acknowledgements_come_at_least_every_32_events(page: Page) -> None:
    seen = play(page, {"frames": [*(event(f"2-{n}") for n in range(1, 101)), END]})

    acknowledged = [frame["id"] for frame in seen["sent"] if frame["type"] == "ack"]
    assert acknowledged == ["2-32", "2-64", "2-96", "9-1"]


def test_a_cursor_and_an_account_go_into_the_address(page: Page) -> None:
    seen = play(page, {"frames": [event("2-1"), event("3-2"), END]}, after="3-1", account="acme")

    assert (seen["addresses"], seen["events"]) == (["?after=3-1&account=acme"], ["3-2", "9-1"])
