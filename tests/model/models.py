"""The models by name, with what can be explored and what can be taken out of each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.model import money_model, run_model, session_model
from tests.model.explorer import Model


class Kind(NamedTuple):
    """One model: how to make it of (scenario, rules taken out), and its scenarios and rules."""

    make: Callable[[Any, frozenset[str]], Model]
    scenarios: Sequence[Any]
    large: Sequence[Any]
    rules: Mapping[str, str]
    shown_by: Mapping[str, Any]
    not_built: frozenset[str] = frozenset()

    def without(self, rule: str) -> tuple[Any, frozenset[str]]:
        """Return the scenario that shows what a rule is for, and what to take out.

        A rule that is not built is the only one missing there: it is compared with the protocol as it would be.
        """
        missing = frozenset() if rule in self.not_built else self.not_built
        return self.shown_by[rule], missing | {rule}


KINDS = {
    "run": Kind(
        run_model.RunModel,
        run_model.SCENARIOS,
        run_model.LARGE,
        run_model.RULES,
        run_model.SHOWN_BY,
        run_model.NOT_BUILT,
    ),
    "money": Kind(
        money_model.MoneyModel, money_model.SCENARIOS, money_model.LARGE, money_model.RULES, money_model.SHOWN_BY
    ),
    "session": Kind(
        session_model.SessionModel,
        session_model.SCENARIOS,
        session_model.LARGE,
        session_model.RULES,
        session_model.SHOWN_BY,
    ),
}
