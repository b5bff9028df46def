"""The state machine's data: what is terminal follows from the edges alone."""

import pytest

from runs import states
from runs.states import EDGES, OPEN, TERMINAL, TERMINAL_EVENTS, RunState


def test_terminal_is_what_no_edge_leaves():
    assert {state.value for state in TERMINAL} == {"succeeded", "failed", "cancelled", "interrupted"}


def test_open_and_terminal_divide_all_states():
    assert set(RunState) == OPEN | TERMINAL
    assert not OPEN & TERMINAL


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.event}-to-{edge.target}")
def test_no_edge_starts_in_a_terminal_state(edge):
    assert not edge.sources & TERMINAL


def test_terminal_events_lead_to_terminal_states_only():
    for edge in EDGES:
        assert (edge.event in TERMINAL_EVENTS) == (edge.target in TERMINAL)


def test_an_edge_out_of_running_belongs_to_the_owner():
    owned = {edge.event for edge in EDGES if edge.by_owner}
    assert owned == {
        "run.succeeded",
        "run.failed",
        "run.cancelled",
        "run.interrupted",
        "run.handed_back",
        "run.retrying",
        "run.retaken",
    }


def test_no_edge_mixes_running_with_other_sources():
    for edge in EDGES:
        assert not edge.by_owner or edge.sources == {RunState.RUNNING}


def test_only_a_submit_has_no_source():
    assert [edge for edge in EDGES if not edge.sources] == [states.SUBMIT, states.SUBMIT_LATER]
