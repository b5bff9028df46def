"""Prices: versioned books of micro-units for a million tokens, and what a usage costs. Unknown is never free."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction
from django.db.models.functions import Now

from quotas import audit
from quotas.errors import InvalidCost, UnknownPrice
from quotas.models import AMOUNT_MAX, Price, PriceBook

MILLION = 1_000_000
CACHE_SECONDS = 15.0  # a worker's beat refreshes it every five

# Micro-units for a million tokens: {model: {kind: amount}}. The embedded model's price is above 0 on purpose: the
# whole money path is exercised by the first run. Hosted prices are starting points; `set_price` is the truth.
DEFAULTS: dict[str, dict[str, int]] = {
    "smollm2-135m-instruct": {"input": 20_000, "output": 80_000, "embedding": 10_000},
    "gpt-4o": {"input": 2_500_000, "cached": 1_250_000, "output": 10_000_000},
    "gpt-4o-mini": {"input": 150_000, "cached": 75_000, "output": 600_000},
    "gpt-4.1": {"input": 2_000_000, "cached": 500_000, "output": 8_000_000},
    "gpt-4.1-mini": {"input": 400_000, "cached": 100_000, "output": 1_600_000},
    "text-embedding-3-small": {"input": 20_000, "embedding": 20_000},
    "text-embedding-3-large": {"input": 130_000, "embedding": 130_000},
}


def check_amount(value: object) -> int:
    """Return a cost or a token count if it is a whole number from 0 to AMOUNT_MAX; raises InvalidCost (money 8)."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= AMOUNT_MAX:
        raise InvalidCost(given=str(value)[:60])
    return value


@dataclass(frozen=True, slots=True)
class PriceTable:
    """The prices in force: `version` of the book and {model: {kind: micro-units for a million tokens}}."""

    version: int | None
    prices: Mapping[str, Mapping[str, int]]

    _cached: ClassVar["tuple[float, PriceTable] | None"] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def current(cls) -> "PriceTable":
        """Return the table in force, at most fifteen seconds old; older only while the database is away.

        May be called in an event loop, where handlers report their usage: it waits for a look-up now and then.
        """
        with cls._lock:
            cached = cls._cached
        if cached is not None and time.monotonic() - cached[0] < CACHE_SECONDS:
            return cached[1]
        try:
            table = _outside_the_loop(cls._load)
        except DatabaseError:
            if cached is None:
                raise
            table = cached[1]  # for another while: an event loop must not wait for an absent database at every call
        with cls._lock:
            cls._cached = (time.monotonic(), table)
        return table

    @classmethod
    def refresh(cls) -> None:
        """Read the table now. Called by a worker's beat, so that its event loop finds a fresh one."""
        table = cls._load()
        with cls._lock:
            cls._cached = (time.monotonic(), table)

    @classmethod
    def forget(cls) -> None:
        """Drop the cached table: the next `current()` reads the database."""
        with cls._lock:
            cls._cached = None

    @classmethod
    def _load(cls) -> "PriceTable":
        book = PriceBook.objects.filter(valid_from__lte=Now()).order_by("-valid_from", "-version").first()
        if book is None:
            return cls(None, {})
        prices: dict[str, dict[str, int]] = {}
        for row in book.prices.all():
            prices.setdefault(row.model, {})[row.kind] = row.per_million
        return cls(book.version, prices)

    def knows(self, model: str) -> bool:
        return model in self.prices

    def require(self, model: str) -> None:
        """Raise UnknownPrice unless the model has prices."""
        if model not in self.prices:
            raise UnknownPrice(model=model, kind="any")

    def price_of(self, model: str, kind: str) -> int | None:
        """Return the micro-units for a million tokens of a kind, or None where it has no price."""
        per_kind = self.prices.get(model, {})
        return per_kind.get(kind, per_kind.get(FALLBACK.get(kind, "")))

    def cost(self, model: str, tokens: Mapping[str, int]) -> int:
        """Return the cost in micro-units, rounded up once over all kinds. Raises UnknownPrice, InvalidCost.

        `cached` and `reasoning` tokens without a price of their own cost what `input` and `output` cost.
        """
        total = 0
        for kind, count in tokens.items():
            check_amount(count)
            if count == 0:
                continue
            price = self.price_of(model, kind)
            if price is None:
                raise UnknownPrice(model=model, kind=kind)
            total += count * price
        return -(-total // MILLION)


def _outside_the_loop(load: Callable[[], PriceTable]) -> PriceTable:
    """Call `load` here, or in a thread of its own where an event loop runs: Django refuses the database there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return load()

    def work() -> PriceTable:
        try:
            return load()
        finally:
            connection.close()

    with ThreadPoolExecutor(1, thread_name_prefix="prices") as pool:
        return pool.submit(work).result()


FALLBACK = {"cached": "input", "reasoning": "output", "embedding": "input"}


@transaction.atomic
def set_price(*, model: str, prices: Mapping[str, int], actor: str, note: str = "") -> PriceBook:
    """Make a new book with one model's prices changed, in force at once. Raises InvalidCost."""
    return _new_book({model: prices}, actor=actor, note=note or f"prices of {model}")


def install_default_prices() -> PriceBook | None:
    """Add the shipped prices and those of `AGENTOPS_PRICES` for models that have none yet. Repeating it is safe."""
    known = PriceTable._load().prices  # noqa: SLF001  the uncached table of this class
    wanted = {**DEFAULTS, **_configured()}
    missing = {model: prices for model, prices in wanted.items() if model not in known}
    if not missing:
        return None
    with transaction.atomic():
        return _new_book(missing, actor="system", note="shipped prices")


def _configured() -> dict[str, dict[str, int]]:
    """Return `AGENTOPS_PRICES`: a JSON object {model: {kind: micro-units per million}} or the path of such a file."""
    raw = settings.AGENTOPS_PRICES
    if not raw:
        return {}
    try:
        text = raw if raw.lstrip().startswith("{") else Path(raw).read_text(encoding="utf-8")
        return {str(m): {str(k): check_amount(v) for k, v in kinds.items()} for m, kinds in json.loads(text).items()}
    except (OSError, ValueError, AttributeError, TypeError, InvalidCost) as error:
        raise ImproperlyConfigured(
            f"AGENTOPS_PRICES must be a JSON object of model to token kind to amount, or a file of one: {error}"
        ) from error


def _new_book(changes: Mapping[str, Mapping[str, int]], *, actor: str, note: str) -> PriceBook:
    # The first book's lock, whoever comes: changes at once build one on the other, instead of all on the same.
    PriceBook.objects.select_for_update().order_by("version").first()
    merged = {model: dict(kinds) for model, kinds in PriceTable._load().prices.items()}  # noqa: SLF001
    for model, kinds in changes.items():
        merged.setdefault(model, {}).update(kinds)
    for model, kinds in merged.items():
        for kind, amount in kinds.items():
            if kind not in Price.Kind.values:
                raise UnknownPrice(model=model, kind=kind)
            check_amount(amount)
    # In force by the clock that decides on it, so that no difference of clocks hides a new book for a while.
    book = PriceBook.objects.create(valid_from=Now(), note=note[:200])
    book.refresh_from_db()
    Price.objects.bulk_create(
        Price(book=book, model=model, kind=kind, per_million=amount)
        for model, kinds in merged.items()
        for kind, amount in kinds.items()
    )
    audit.record(
        actor=actor,
        action="price.set",
        target_type="price_book",
        target_id=book.version,
        after={model: dict(kinds) for model, kinds in changes.items()},
    )
    transaction.on_commit(PriceTable.forget)
    return book
