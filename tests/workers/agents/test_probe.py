"""The probe agents and their log."""

import json
from pathlib import Path

import pytest

from agentops.testing import run_agent
from runs.agents import get_agent

pytestmark = pytest.mark.usefixtures("priced")


@pytest.fixture(autouse=True)
def registered() -> None:
    import workers.agents.probe  # noqa: F401  registers


def lines(settings) -> list[dict]:
    return [json.loads(line) for line in Path(settings.AGENTOPS_PROBE_LOG).read_text().splitlines()]


def phases(settings) -> list[str]:
    return [line["phase"] for line in lines(settings)]


def test_every_attempt_leaves_its_start_and_end(settings):
    done = run_agent("probe.sleep", {"seconds": 0.01}, attempt=3)

    assert done.result == {"slept": 0.01}
    start, end = lines(settings)
    assert set(start) == {"agent", "run", "attempt", "fence", "worker", "phase", "cost", "monotonic", "wall"}
    assert (start["phase"], end["phase"]) == ("start", "end")
    assert (start["attempt"], start["agent"], start["run"]) == (3, "probe.sleep", end["run"])
    assert end["monotonic"] - start["monotonic"] >= 0.01


def test_a_cancelled_sleep_says_so(settings):
    assert run_agent("probe.sleep", {"seconds": 60}, cancel_after=0.1).outcome == "cancelled"
    assert phases(settings) == ["start", "cancelled"]


def test_stubborn_goes_on_when_cancelled(settings):
    done = run_agent("probe.stubborn", {"seconds": 0.5}, cancel_after=0.1)

    assert done.result == {"ignored": 1}
    assert phases(settings) == ["start", "cancelled", "end"]


def test_block_computes_for_its_time():
    assert run_agent("probe.block", {"seconds": 0.05}).result["rounds"] > 0


def test_boom_fails_its_first_attempts(settings):
    ended = [run_agent("probe.boom", {"fails": 2}, attempt=n).outcome for n in (1, 2, 3)]

    assert ended == ["failed", "failed", "succeeded"]
    assert phases(settings) == ["start", "error", "start", "error", "start", "end"]


@pytest.mark.parametrize("kind", ["RuntimeError", "MemoryError", "RecursionError", "SystemExit", "KeyboardInterrupt"])
def test_raise_raises_what_it_is_told(kind):
    done = run_agent("probe.raise", {"text": "oh", "type": kind, "frames": 50})

    assert (done.outcome, done.error["type"]) == ("failed", kind)
    assert "oh" in done.error["message"]


def test_raise_knows_classes_and_sizes():
    assert run_agent("probe.raise", {"type": "InvalidInput"}).error["class"] == "input"
    assert run_agent("probe.raise", {"bytes": 5_000_000}).outcome == "failed"


def test_emit_emits_all_in_order():
    done = run_agent("probe.emit", {"count": 450, "bytes": 8, "seconds": 0.2})

    ticks = [event["data"] for event in done.events if event["kind"] == "probe.tick"]
    assert ticks == [{"n": n, "text": "x" * 8} for n in range(450)]
    assert done.result == {"emitted": 450}


def test_spend_spends_and_refuses_nonsense():
    spec = get_agent("probe.spend")

    assert run_agent("probe.spend", {"amount": 250, "times": 4}).cost == 1000
    assert spec.estimate.of({"amount": 250, "times": 4}) == 1000
    assert spec.estimate.of({"amount": 9, "estimate": 5}) == 5
    for amount in (-5, 0.1, 1e30, 2**63, True, "5", None):
        done = run_agent("probe.spend", {"amount": amount, "times": 2})
        assert (done.outcome, done.cost) == ("failed", 0), amount
        assert 0 <= spec.estimate.of({"amount": amount, "times": 2}) <= 2**62


def test_ret_returns_what_it_is_told():
    assert run_agent("probe.ret", {"value": {"a": [1, None]}}).result == {"a": [1, None]}
    assert run_agent("probe.ret", {"value": None}).result is None
    assert len(run_agent("probe.ret", {"bytes": 300_000}).result) == 300_000
    assert run_agent("probe.ret", {"odd": "object"}).outcome == "failed"


def test_probes_let_a_submit_choose_what_may_be_chosen():
    for name in ("sleep", "block", "boom", "raise", "emit", "spend", "ret", "suicide", "stubborn"):
        assert get_agent(f"probe.{name}").allow == {"time_limit", "max_attempts", "on_lost"}
