"""An explicit-state explorer: every interleaving of a model, breadth first, with the shortest way to what is wrong.

A model is a state that can be hashed, and the steps that lead out of it. Steps are what actors do between two commits
or two Redis scripts; a step marked as a fault is what nobody counts on (a crash, a pause, a loss). Two questions are
asked:

* safety: is a rule broken in any state that can be reached?
* liveness: does a way without a further fault lead from every state to one where all is done? A fair scheduler finds
  such a way, so a state without one is a run that hangs for ever.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Step(NamedTuple):
    """What somebody does: in words, the state after it, and whether it is a fault."""

    label: str
    state: Any
    fault: bool = False


class Model(Protocol):
    """What can be explored. States must be hashable and must never change."""

    name: str

    def initial(self) -> Hashable: ...

    def steps(self, state: Any) -> Iterable[Step]:
        """Everything that can happen next."""

    def broken(self, state: Any) -> str:
        """Which rule the state breaks, in words; empty when none."""

    def is_settled(self, state: Any) -> bool:
        """Whether all is done: where every run has to be able to arrive."""

    def canonical(self, state: Any) -> Hashable:
        """Return the one state that stands for all that differ by names alone."""

    def describe(self, state: Any) -> dict[str, str]:
        """Return what a person wants to see of a state, part by part."""


@dataclass(frozen=True)
class Violation:
    """What is wrong, and the shortest way to it: pairs of what was done and the state after it."""

    message: str
    trace: list[tuple[str, Any]]


@dataclass
class Report:
    """What an exploration found. `depth` is the length of the longest of all shortest ways."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    settled: int = 0
    complete: bool = False
    violation: Violation | None = None
    labels: set[str] = field(default_factory=set)  # everything that was done somewhere
    per_level: list[int] = field(default_factory=list)


class TooLarge(Exception):
    """The model has more states than the caller allowed."""


class _Search:
    """The states seen so far. A state is known by its number, in the order of discovery: breadth first."""

    def __init__(self, model: Model) -> None:
        self.model = model
        start = model.canonical(model.initial())
        self.number: dict[Hashable, int] = {start: 0}  # canonical states, and others by the same number
        self.states: list[Any] = [start]
        self.parent = array("q", [-1])
        self.sources, self.targets = array("q"), array("q")  # the edges that are no faults
        self.settled: list[int] = []
        self.labels: set[str] = set()
        self.quiet: list[int] = []  # states that nothing but a fault leads out of

    def expand(self, at: int) -> Iterator[int]:
        """Add the successors of a state; yield those that are new."""
        state, model, moved = self.states[at], self.model, False
        if model.is_settled(state):
            self.settled.append(at)
        for step in model.steps(state):
            self.labels.add(step.label)
            known = self.number.get(step.state)
            if known is None:
                key = model.canonical(step.state)
                known = self.number.get(key)
                if known is None:
                    known = self.number[key] = len(self.states)
                    self.states.append(key)
                    self.parent.append(at)
                    yield known
                self.number[step.state] = known  # by its own name as well: most states are reached many times
            if not step.fault and known != at:
                moved = True
                self.sources.append(at)
                self.targets.append(known)
        if not moved:
            self.quiet.append(at)

    def stuck(self) -> tuple[str, int] | None:
        """Return the first state from which no way without a further fault leads to a settled one."""
        into: dict[int, list[int]] = {}
        for source, target in zip(self.sources, self.targets, strict=True):
            into.setdefault(target, []).append(source)
        can_settle = bytearray(len(self.states))
        frontier = list(self.settled)
        for at in frontier:
            can_settle[at] = 1
        while frontier:
            for source in into.get(frontier.pop(), ()):
                if not can_settle[source]:
                    can_settle[source] = 1
                    frontier.append(source)
        for at in self.quiet:  # the plainest picture of a hang: nobody has anything left to do
            if not can_settle[at]:
                return "nobody has anything left to do, and it is not done", at
        trap = can_settle.find(0)
        return None if trap < 0 else ("whatever is done from here on, it is never done", trap)

    def trace(self, at: int) -> list[tuple[str, Any]]:
        """Return the way to a state, walked again without canonical names, so that A stays A."""
        way = []
        while at >= 0:
            way.append(at)
            at = self.parent[at]
        state: Any = self.model.initial()
        trace: list[tuple[str, Any]] = [("start", state)]
        for number in reversed(way[:-1]):
            wanted = self.states[number]
            label, state = next(
                (step.label, step.state)
                for step in self.model.steps(state)
                if self.model.canonical(step.state) == wanted
            )
            trace.append((label, state))
        return trace


def explore(
    model: Model, *, most: int = 5_000_000, on_level: Callable[[Report], None] | None = None, every_level: int = 1
) -> Report:
    """Visit every state of a model, level by level. Stops at the first broken rule. Raises TooLarge."""
    search = _Search(model)
    report = Report(labels=search.labels)
    broken = model.broken(search.states[0])
    level = [0]
    while level and not broken:
        report.per_level.append(len(level))
        following: list[int] = []
        for at in level:
            for new in search.expand(at):
                following.append(new)
                broken = model.broken(search.states[new])
                if broken:
                    report.violation = Violation(broken, search.trace(new))
                    break
            if broken:
                break
        report.states, report.steps = len(search.states), len(search.sources)
        report.depth = len(report.per_level) - 1
        report.settled = len(search.settled)
        if on_level is not None and report.depth % every_level == 0:
            on_level(report)
        if report.states > most:
            raise TooLarge(f"{model.name}: more than {most} states")
        level = following
    if report.violation is None:
        report.complete = True
        stuck = search.stuck()
        if stuck is not None:
            report.violation = Violation(f"liveness: {stuck[0]}", search.trace(stuck[1]))
    return report


def render(model: Model, violation: Violation) -> str:
    """Return a counterexample as text: each step with what it changed, then the last state in full."""
    lines = [f"{model.name}: {violation.message}", ""]
    before: dict[str, str] = {}
    for number, (label, state) in enumerate(violation.trace):
        after = model.describe(state)
        lines.append(f"{number:3}. {label}")
        lines += [f"       {part}: {text}" for part, text in after.items() if text != before.get(part, "")]
        before = after
    lines += ["", "the last state:", *(f"       {part}: {text}" for part, text in before.items() if text)]
    return "\n".join(lines)
