"""What an attempt has used so far: absolute totals per (run, fence), priced as they come in (money 5)."""

import threading
from collections.abc import Callable, Mapping

from quotas.errors import UnknownPrice
from quotas.prices import PriceTable, check_amount
from runs.text import clean_text

UNPRICED = "unpriced_"  # in front of the kind of tokens that no price was known for


class Usage:
    """The usage of one attempt. Thread-safe: the beat reads it while the handler adds.

    `missing` is the first price that lacked, if any: what has no price must not pass for free.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, dict[str, int]] = {}
        self._unpriced: dict[str, set[str]] = {}
        self._extra = 0
        self._priced = 0
        self._lock = threading.Lock()
        self._tell: Callable[[int], None] = lambda _cost: None
        self.price_book: int | None = None
        self.missing: UnknownPrice | None = None

    def watch(self, tell: Callable[[int], None]) -> None:
        """Have `tell(cost)` called after every report, in the thread of whoever reports."""
        self._tell = tell

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
            cost, unpriced = _priced(table, tokens)
            total = check_amount(cost + self._extra)  # what no column holds is refused here, and changes nothing
            self._tokens, self._priced, self.price_book = tokens, cost, table.version
            self._unpriced = unpriced
        self._tell(total)
        lacking = unpriced.get(name, set()) & set(more)
        if lacking:
            self.missing = UnknownPrice(model=name, kind=min(lacking))
            raise self.missing

    def add_cost(self, amount: int) -> None:
        """Count a cost that is not tokens, in micro-units. Raises InvalidCost."""
        check_amount(amount)
        with self._lock:
            total = check_amount(self._priced + self._extra + amount)
            self._extra += amount
        self._tell(total)

    @property
    def cost(self) -> int:
        with self._lock:
            return self._priced + self._extra

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """A copy of {model: {kind: tokens}}; the kind of tokens without a price has UNPRICED in front."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[dict[str, dict[str, int]], int]:
        """Return (totals, cost) of one moment: what the beat stores."""
        with self._lock:
            return {model: self._marked(model) for model in self._tokens}, self._priced + self._extra

    def _marked(self, model: str) -> dict[str, int]:
        unpriced = self._unpriced.get(model, ())
        return {UNPRICED + kind if kind in unpriced else kind: n for kind, n in self._tokens[model].items()}


def _priced(table: PriceTable, tokens: Mapping[str, Mapping[str, int]]) -> tuple[int, dict[str, set[str]]]:
    """Return the cost of the totals, rounded once a model and not once a report, and the kinds without a price."""
    total, unpriced = 0, {}
    for model, kinds in tokens.items():
        lacking = {kind for kind in kinds if table.price_of(model, kind) is None}
        total += table.cost(model, {kind: count for kind, count in kinds.items() if kind not in lacking})
        if lacking:
            unpriced[model] = lacking
    return total, unpriced
