"""`set_price MODEL input=150000 output=600000`: set micro-units for a million tokens. Exit codes: quotas/command.py."""

from typing import Any

from django.core.management.base import CommandParser

from quotas.command import DONE, InstanceCommand
from quotas.models import AMOUNT_MAX, Price
from quotas.prices import set_price

KINDS = Price.Kind.values
MODEL_MAX = 120


class Command(InstanceCommand):
    help = "Set the prices of a model, in micro-units (millionths of a credit) for a million tokens."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("model", help="the model's name as the agent reports it")
        parser.add_argument("prices", nargs="+", metavar="KIND=AMOUNT", help=f"kinds: {', '.join(KINDS)}")

    def run(self, options: dict[str, Any]) -> int:
        model = options["model"]
        if not 1 <= len(model) <= MODEL_MAX or not model.isprintable():
            self.usage(f"A model's name has 1 to {MODEL_MAX} printable characters.")
        prices = dict(self._price(text) for text in options["prices"])
        book = set_price(model=model, prices=prices, actor=self.actor)
        now = {row.kind: row.per_million for row in book.prices.filter(model=model).order_by("kind")}
        if self.as_json:
            self.emit({"model": model, "prices": now, "price_book": book.version})
        else:
            self.say(f"Price book {book.version}, in force now: {model}")
            self.table(["kind", "micro-units per million tokens"], sorted(now.items()))
        return DONE

    def _price(self, text: str) -> tuple[str, int]:
        kind, _, amount = text.partition("=")
        if kind not in KINDS:
            self.usage(f"{text!r}: write KIND=AMOUNT with a kind of {', '.join(KINDS)}.")
        if not (amount.isascii() and amount.isdigit() and len(amount) <= 16 and int(amount) <= AMOUNT_MAX):
            self.usage(f"{text!r}: the amount must be a whole number from 0 to 2^53.")
        return kind, int(amount)
