"""The explorer itself, on models small enough to know every state of."""

from collections.abc import Iterator

import pytest

from tests.model.explorer import Step, TooLarge, explore, render


class Counter:
    """Counts up by one or by two; a fault sets it to `crash`, from where it goes only where `after_crash` says."""

    name = "counter"

    def __init__(self, *, goal: int = 4, forbidden: int = 99, crash: int | None = None, trap: bool = False) -> None:
        self.goal = goal
        self.forbidden = forbidden
        self.crash = crash
        self.trap = trap

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[Step]:
        if state < 0:
            if self.trap:
                yield Step("turn round", -3 - state)
            return
        if state < self.goal:
            yield Step("one", state + 1)
            yield Step("two", min(self.goal, state + 2))
        if self.crash is not None and state == 1:
            yield Step("crash", self.crash, fault=True)

    def broken(self, state: int) -> str:
        return "it is forbidden" if state == self.forbidden else ""

    def is_settled(self, state: int) -> bool:
        return state == self.goal

    def canonical(self, state: int) -> int:
        return state

    def describe(self, state: int) -> dict[str, str]:
        return {"count": str(state)}


def test_every_state_is_visited_once() -> None:
    report = explore(Counter())

    assert report.violation is None
    assert (report.states, report.depth, report.settled, report.complete) == (5, 2, 1, True)
    assert report.labels == {"one", "two"}


def test_the_way_to_a_broken_rule_is_the_shortest() -> None:
    model = Counter(forbidden=4)

    found = explore(model).violation

    assert found is not None
    assert [label for label, _ in found.trace] == ["start", "two", "two"]
    assert render(model, found).splitlines()[0] == "counter: it is forbidden"


def test_a_state_that_nothing_leads_out_of_is_found() -> None:
    found = explore(Counter(crash=-1)).violation

    assert found is not None
    assert "nobody has anything left to do" in found.message
    assert [label for label, _ in found.trace] == ["start", "one", "crash"]


def test_going_round_in_circles_is_found_too() -> None:
    found = explore(Counter(crash=-1, trap=True)).violation

    assert found is not None
    assert "never done" in found.message


def test_a_fault_is_no_way_out() -> None:
    """From 1 a crash leads to the goal, but nobody can count on a crash."""

    class OnlyByCrash(Counter):
        def steps(self, state: int) -> Iterator[Step]:
            if state == 0:
                yield Step("one", 1)
            if state == 1:
                yield Step("crash", self.goal, fault=True)

    assert explore(OnlyByCrash()).violation is not None


def test_a_model_that_is_too_large_is_refused() -> None:
    with pytest.raises(TooLarge):
        explore(Counter(goal=1000), most=10)
