"""What an attempt has used so far: absolute totals per (run, fence), priced as they come in (money 5)."""

import threading
from collections.abc import Mapping
from typing import Any

from quotas.errors import UnknownPrice
from quotas.prices import PriceTable, check_amount
from runs.text import clean_text


class Usage:
    """The usage of one attempt. Thread-safe: the beat reads it while the handler adds."""

    def __init__(self) -> None:
        self._tokens: dict[str, dict[str, int]] = {}
        self._extra = 0
        self._priced = 0
        self._lock = threading.Lock()
        self.price_book: int | None = None

    def add(
        self,
        model: str,
        *,
        input: int = 0,  # noqa: A002  the provider's own word
        output: int = 0,
        cached: int = 0,
        reasoning: int = 0,
        embedding: int = 0,
    ) -> None:
        """Count tokens of a model. Raises UnknownPrice (the run stops, the tokens are kept), InvalidCost.

        `cached` are input tokens at the cached price: leave them out of `input`. `reasoning` likewise of `output`.
        """
        counts = {
            "input": input,
            "output": output,
            "cached": cached,
            "reasoning": reasoning,
            "embedding": embedding,
        }
        for count in counts.values():
            check_amount(count)
        name = clean_text(model)[:120]
        table = PriceTable.current()
        with self._lock:
            known = self._tokens.get(name, {})
            more = {kind: check_amount(known.get(kind, 0) + count) for kind, count in counts.items() if count}
            tokens = {**self._tokens, name: {**known, **more}}
            cost, missing = _priced(table, tokens)
            check_amount(cost + self._extra)  # what no column holds is refused here, and changes nothing
            self._tokens, self._priced, self.price_book = tokens, cost, table.version
        if missing is not None:
            raise missing

    def add_cost(self, amount: int) -> None:
        """Count a cost that is not tokens, in micro-units. Raises InvalidCost."""
        check_amount(amount)
        with self._lock:
            check_amount(self._priced + self._extra + amount)
            self._extra += amount

    @property
    def cost(self) -> int:
        with self._lock:
            return self._priced + self._extra

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """A copy of {model: {kind: tokens}}."""
        with self._lock:
            return {model: dict(kinds) for model, kinds in self._tokens.items()}

    def snapshot(self) -> tuple[dict[str, Any], int]:
        """Return (totals, cost) of one moment: what the beat stores."""
        with self._lock:
            return {model: dict(kinds) for model, kinds in self._tokens.items()}, self._priced + self._extra


def _priced(table: PriceTable, tokens: Mapping[str, Mapping[str, int]]) -> tuple[int, UnknownPrice | None]:
    """Return the cost of the totals, rounded once a model and not once a report, and the first price that lacks."""
    total, missing = 0, None
    for model, kinds in tokens.items():
        try:
            total += table.cost(model, kinds)
        except UnknownPrice as error:
            missing = missing or error
    return total, missing
