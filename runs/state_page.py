"""The state machine as a page for people, from the edges: `python -m runs.state_page > docs/state_machine.md`."""

import sys

from runs.states import EDGES, OPEN, TERMINAL, Edge, RunState

HEAD = """\
# The state machine

Generated from `runs/states.py` by `python -m runs.state_page > docs/state_machine.md`; a test compares the two.
The rules are in `protocol.md`, section 2.
"""


def render() -> str:
    """Return the whole page as Markdown."""
    return f"{HEAD}\n{_states()}\n{_edges()}\n{_diagram()}"


def _states() -> str:
    entered = {edge.target for edge in EDGES}
    rows = []
    for state in RunState:
        kind = "terminal" if state in TERMINAL else "open"
        note = "" if state in entered else "no edge leads here in this version"
        rows.append(f"| {state} | {kind} | {note} |")
    first = f"A state that no edge leaves is terminal: {_names(TERMINAL)}. The others are open: {_names(OPEN)}."
    return "\n".join(["## States", "", first, "", "| state | kind | note |", "|---|---|---|", *rows, ""])


def _edges() -> str:
    rows = [
        f"| {_sources(edge)} | {edge.target} | {edge.by} | `{edge.event}` | {'yes' if edge.by_owner else ''} |"
        for edge in EDGES
    ]
    return "\n".join(
        [
            "## Edges",
            "",
            "An edge that leaves `running` repeats the owner's fence, or the one a takeover saw.",
            "",
            "| from | to | by | event | fenced |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _diagram() -> str:
    lines = ["## Diagram", "", "```mermaid", "stateDiagram-v2"]
    for edge in EDGES:
        label = edge.event.removeprefix("run.")
        sources = [state.value for state in RunState if state in edge.sources] or ["[*]"]
        lines += [f"    {source} --> {edge.target}: {label}" for source in sources]
    lines += [f"    {state} --> [*]" for state in RunState if state in TERMINAL]
    return "\n".join([*lines, "```", ""])


def _sources(edge: Edge) -> str:
    return _names(edge.sources) if edge.sources else "nothing"


def _names(states: frozenset[RunState]) -> str:
    """Return the states' names in the order of the enum, so that the page never changes by itself."""
    return ", ".join(state.value for state in RunState if state in states)


if __name__ == "__main__":
    sys.stdout.write(render())
