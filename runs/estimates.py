"""What an agent declares about the cost of its runs: a fixed amount, a function of the input, or its recent costs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from quotas.errors import InvalidCost
from quotas.prices import check_amount


@dataclass(frozen=True, slots=True)
class Recent:
    """The p95 of what the account's recent runs of the agent really cost, never below `floor`.

    `typical` and, where it is None, the estimate's fixed amount stand in until enough runs have ended.
    """

    floor: int = 0
    typical: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run will probably cost, in micro-units. Of the three the first that is there counts, from below."""

    fixed: int = 0
    function: Callable[[Any], int] | None = None
    recent: Recent | None = None

    @property
    def kind(self) -> str:
        """`fixed`, `function` or `recent`: how GET /agents names it."""
        if self.recent is not None:
            return "recent"
        return "fixed" if self.function is None else "function"

    def of(self, run_input: Any) -> int:
        """Return the amount to hold for this input, never negative; of `recent`, before enough runs have ended."""
        if self.recent is not None:
            typical = self.fixed if self.recent.typical is None else self.recent.typical
            return max(self.recent.floor, typical)
        return max(0, self.fixed if self.function is None else int(self.function(run_input)))


def recent(*, floor: int = 0, typical: int | None = None, fixed: int = 0) -> Estimate:
    """Declare an estimate from real costs: `@agent("x", estimate=recent(floor=500, typical=2000))`.

    All amounts are micro-units. Until 20 runs of the account have ended, `typical` is held, or `fixed` without one.
    """
    return Estimate(fixed=fixed, recent=Recent(floor, typical))


def declared(given: "int | Callable[[Any], int] | Estimate") -> Estimate:
    """Return what an author wrote as an Estimate. Raises ImproperlyConfigured for an amount that is none."""
    if callable(given):
        return Estimate(function=given)
    estimate = given if isinstance(given, Estimate) else Estimate(fixed=given)
    amounts = [estimate.fixed]
    if estimate.recent is not None:
        amounts += [estimate.recent.floor, estimate.recent.typical or 0]
    try:
        for amount in amounts:
            check_amount(amount)
    except InvalidCost as error:
        raise ImproperlyConfigured(f"estimate: {error.message}") from None
    return estimate
