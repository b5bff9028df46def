"""Handlers in processes of their own: what works as it does in the loop, how they end, and that nothing is left."""

import asyncio
import datetime as dt
import importlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from agentops.testing import run_agent
from quotas.prices import PriceTable, install_default_prices
from runs import agents, events
from runs.agents import AgentSpec
from runs.ids import new_run_id
from runs.outcomes import Cancelled, ErrorClass, Failed, InvalidInput, Succeeded
from tests.probes import aeventually
from workers.context import Context, Identity, InputFile
from workers.dialogue import Dialogue, Stopped, ending
from workers.event_buffer import EventBuffer
from workers.executor import Execution, Stop, Time
from workers.frames import BODY_MAX, HEAD, BrokenFrame, FrameTooLarge, Reader, encode

pytestmark = pytest.mark.timeout(180)
FILE = UUID("01890000-0000-7000-8000-00000000000f")
PATIENCE = 90.0  # a process takes seconds to start on a busy machine


@pytest.fixture(autouse=True, scope="module")
def registered():
    before = set(agents._registry)
    # Loaded again: tests that use the database run apart from the others, so this is set up twice in a session.
    importlib.reload(importlib.import_module("tests.workers.isolated_agents"))
    yield
    for name in set(agents._registry) - before:
        if name.startswith("isolated."):
            del agents._registry[name]


@pytest.fixture
def priced(transactional_db):
    install_default_prices()
    PriceTable.forget()


class Ports:
    """Files of a dictionary; `flush` may be held up."""

    def __init__(self):
        self.artifacts = {}
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.flushes = 0

    async def store_artifact(self, name, data, content_type):
        self.artifacts[name] = data
        return {"name": name, "size": len(data), "content_type": content_type}

    async def open_file(self, file_id):
        if file_id != FILE:
            raise InvalidInput(f"There is no file {file_id}.")
        return InputFile("in.bin", "application/x-test", bytes(3_000_000))

    async def flush(self):
        self.flushes += 1
        await self.flowing.wait()


class Trial:
    """One execution of an agent of isolated_agents, its events and its files."""

    def __init__(self, name, run_input=None, *, seconds=PATIENCE, grace=PATIENCE):
        self.ports = Ports()
        self.buffer = EventBuffer(2, dt.timedelta(0))
        identity = Identity(new_run_id(), name, 1, 2, "w1", 0, {"order": 5})
        self.ctx = Context(identity, self.buffer, self.ports)
        self.spec = agents.find_agent(name) or AgentSpec(name=name, handler=lambda: None, isolation="process")
        self.execution = Execution(self.spec, self.ctx, run_input, time=Time(seconds), grace=grace)

    async def run(self):
        with ThreadPoolExecutor(1) as threads:
            return await self.execution.run(threads)

    def wait(self, work):
        raise AssertionError("nothing here waits")

    def events(self, kind=None):
        lines = [events.decode(self.ctx.identity.run_id, line.id, line.body) for line in self.buffer.after("")]
        return [
            line["data"] if kind else (line["kind"], line["data"]) for line in lines if kind in {None, line["kind"]}
        ]

    async def until(self, kind):
        """Wait for an event of the kind and return its data."""
        return (await aeventually(lambda: self.events(kind) or False, timeout=PATIENCE))[0]


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def test_everything_a_context_offers_works_from_another_process(priced):
    trial = Trial("isolated.everything", {"file": str(FILE)})

    outcome = await trial.run()

    assert isinstance(outcome, Failed), outcome
    assert outcome.error_class is ErrorClass.UNKNOWN_PRICE  # it went on all the same: it had one refused, and caught it
    check_what_it_returned(trial, json.loads(outcome.partial_json))
    assert trial.ctx.usage.snapshot() == (
        {"gpt-4o-mini": {"input": 1_000_000, "output": 3}, "no-such-model": {"unpriced_input": 1}},
        150_009,
    )
    assert trial.ctx.usage.price_book is not None
    assert trial.ctx.progress_now == {"done": 1, "total": 2, "message": "half"}
    assert trial.ports.artifacts == {"notes.txt": b"\0\xff" * 100_000}
    assert trial.ports.flushes == 1
    check_what_it_emitted(trial.events())


def check_what_it_returned(trial, said):
    run_id = trial.ctx.run_id
    assert said["who"] == [run_id, "isolated.everything", 1, 2, "w1", {"order": 5}, f"{run_id}:pay"]
    assert said["cancelled"] is False
    assert said["usage"] == [trial.ctx.usage.totals, trial.ctx.usage.cost]
    assert said["stored"] == {"name": "notes.txt", "size": 200_000, "content_type": "text/plain"}
    assert said["file"] == ["in.bin", "application/x-test", 3_000_000]
    assert [name for name, _ in said["refused"]] == [
        "UnknownPrice", "InvalidCost", "InvalidCost", "ValueError", "InvalidInput",
    ]  # fmt: skip
    assert "no-such-model" in said["refused"][0][1]
    assert said["path"] == os.environ.get("PYTHONPATH")
    assert said["same_group"] is False


def check_what_it_emitted(found):
    kinds = [kind for kind, _ in found]
    assert kinds == ["own.kind", "own.large", "output.delta", "run.progress", "artifact"]
    own, large, delta, progress, artifact = [data for _, data in found]
    assert (own["text"], own["number"]) == ("a\ufffdb", str(2**70))
    assert large["truncated"] is True
    assert delta == {"text": "together"}
    assert progress == {"done": 1, "total": 2, "message": "half"}
    assert artifact["name"] == "notes.txt"


async def test_a_stop_reaches_sync_and_async_handlers_in_their_process():
    looks, cleans_up = Trial("isolated.looks"), Trial("isolated.cleans_up")
    outcomes = asyncio.gather(looks.run(), cleans_up.run())
    pids = [(await looks.until("looking"))["pid"], (await cleans_up.until("waiting"))["pid"]]

    looks.execution.stop(Stop.CANCEL)
    cleans_up.execution.stop(Stop.CANCEL)

    assert await outcomes == [Succeeded('{"saw":true}'), Cancelled()]
    assert cleans_up.events("cleaned") == [{}]
    assert [is_alive(pid) for pid in pids] == [False, False]


async def test_a_stubborn_handler_is_killed_with_all_it_started():
    cancelled, late = Trial("isolated.stubborn", grace=0.2), Trial("isolated.stubborn", seconds=PATIENCE, grace=0.2)
    outcomes = asyncio.gather(cancelled.run(), late.run())
    pids = [pid for trial in (cancelled, late) for pid in (await trial.until("programs"))["pids"]]
    assert [is_alive(pid) for pid in pids] == [True] * 8

    cancelled.execution.stop(Stop.CANCEL)
    late.execution.stop(Stop.TIME_LIMIT)

    was_cancelled, was_late = await outcomes
    assert was_cancelled == Cancelled()
    assert was_late.error_class is ErrorClass.TIMEOUT
    assert [is_alive(pid) for pid in pids] == [False] * 8
    assert [trial.execution.abandoned for trial in (cancelled, late)] == [None, None]


async def test_a_process_that_dies_fails_its_own_run_only():
    trials = {how: Trial("isolated.dies", {"how": how}) for how in ("exit", "kill", "deaf")}

    outcomes = dict(zip(trials, await asyncio.gather(*(trial.run() for trial in trials.values())), strict=True))

    for how, words in {"exit": "exit code 7", "kill": "SIGKILL", "deaf": "closed its connection"}.items():
        failed = outcomes[how]
        assert isinstance(failed, Failed)
        assert (failed.error_class, failed.type, failed.traceback) == (ErrorClass.AGENT_BUG, "ProcessDied", "")
        assert words in failed.message
        assert failed.message.endswith("said before the end\nand this as an error")
        assert trials[how].ctx.usage.cost == 5  # what it said it used is known, however it ends


async def test_what_a_handler_raises_is_judged_where_it_is():
    hows = ("flaky", "hopeless", "bad", "misfit")
    outcomes = await asyncio.gather(*(Trial("isolated.fails", {"how": how}).run() for how in hows))

    flaky, hopeless, bad, misfit = outcomes
    assert (flaky.type, flaky.message, flaky.error_class) == ("Flaky", "comes and goes", ErrorClass.AGENT_BUG)
    assert "isolated_agents.py" in flaky.traceback
    assert flaky.retry_in is not None
    assert (hopeless.type, hopeless.retry_in) == ("Hopeless", None)
    assert (bad.error_class, bad.partial_json) == (ErrorClass.BAD_OUTPUT, '{"text":"hm"}')
    assert (misfit.error_class, misfit.partial_json) == (ErrorClass.BAD_OUTPUT, '"no integer"')


async def test_a_handler_that_emits_without_end_is_blocked_and_can_be_killed():
    trial = Trial("isolated.floods", grace=0.2)
    trial.ports.flowing.clear()
    outcome = asyncio.create_task(trial.run())
    await aeventually(lambda: trial.ports.flushes == 1, timeout=PATIENCE)
    held = len(trial.events())
    trial.ports.flowing.set()
    await aeventually(lambda: trial.ports.flushes > 5, timeout=PATIENCE)
    trial.ports.flowing.clear()
    await aeventually(lambda: len(trial.events()) == held * trial.ports.flushes, timeout=PATIENCE)

    trial.execution.stop(Stop.CANCEL)

    assert await outcome == Cancelled()
    assert held == 200
    found = [data["n"] for data in trial.events("flood")]
    assert found == list(range(len(found)))


def test_what_means_nothing_is_refused_and_what_is_stopped_has_no_answer():
    trial = Trial("isolated.fails")
    for body in ({}, {"do": "emit", "kind": 1}, {"do": "call", "id": 1, "name": "__class__", "args": {}}):
        with pytest.raises(BrokenFrame):
            Dialogue(trial.ctx, trial.wait).take(body, b"")
    for body in ({"do": "ended", "how": "returned"}, {"do": "ended", "how": "failed", "failed": {}}):
        with pytest.raises(BrokenFrame):
            Dialogue(trial.ctx, trial.wait).take(body, b"{")

    dialogue = Dialogue(trial.ctx, trial.wait)
    [(body, data)] = Reader().feed(ending(Cancelled()))
    dialogue.take(body, data)

    assert dialogue.ended
    with pytest.raises(Stopped):
        dialogue.result()


async def test_an_agent_that_its_process_cannot_find_fails_by_its_name():
    failed = await Trial("isolated.nowhere").run()

    assert isinstance(failed, Failed)
    assert (failed.type, failed.error_class) == ("AgentNotRegistered", ErrorClass.AGENT_BUG)
    assert "isolated.nowhere" in failed.message


def test_an_author_can_test_such_an_agent_without_servers(settings, monkeypatch):
    importlib.import_module("workers.agents.probe")
    monkeypatch.setenv("AGENTOPS_PROBE_LOG", settings.AGENTOPS_PROBE_LOG)  # for the handler's process

    done = run_agent("probe.isolated", {"do": "emit", "count": 450, "bytes": 8})

    assert done.result == {"emitted": 450}
    assert [event["data"]["n"] for event in done.events if event["kind"] == "probe.tick"] == list(range(450))
    assert Path(settings.AGENTOPS_PROBE_LOG).read_text().count('"phase": "end"') == 1


def test_messages_come_together_from_any_pieces():
    wire = encode({"a": 1}, b"xyz") + encode({"b": "\ud83d"})
    reader = Reader()

    found = [message for byte in wire for message in reader.feed(bytes([byte]))]

    assert found == [({"a": 1}, b"xyz"), ({"b": "\ud83d"}, b"")]
    assert list(Reader().feed(wire)) == found


def test_what_is_no_message_is_refused_before_it_is_held():
    for wire in (HEAD.pack(BODY_MAX + 1, 0), HEAD.pack(2, 2**60), HEAD.pack(2, 0) + b"[]", HEAD.pack(1, 0) + b"{"):
        with pytest.raises(BrokenFrame):
            list(Reader().feed(wire))
    with pytest.raises(FrameTooLarge):
        encode({"text": "x" * BODY_MAX})
