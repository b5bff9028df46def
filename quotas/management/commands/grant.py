"""`grant --account NAME --amount N --reason TEXT [--kind grant|adjustment|write-off] [--run ID]`: a manual ledger line.

Exit codes: quotas/command.py.
"""

from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.core.management.base import CommandParser

from quotas import services as money
from quotas.command import DONE, InstanceCommand, micro
from quotas.database import done_or_found
from quotas.models import Account, AuditEntry, LedgerEntry

KINDS = {"grant": money.grant, "adjustment": money.adjust, "write-off": money.write_off}
DIGITS_MAX = 16  # of 2^53


class Command(InstanceCommand):
    help = (
        "Give an account micro-units (millionths of a credit) in its current period, adjust what it has spent, or write"
        " off what it is over. Every entry is a line of the ledger, and audited."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--amount", required=True, help="whole micro-units; an adjustment below 0 lowers the spent")
        parser.add_argument("--reason", required=True, help="kept in the ledger and in the audit trail")
        parser.add_argument("--kind", choices=list(KINDS), default="grant", help="what it is (grant)")
        parser.add_argument("--run", metavar="ID", help="the run it is for")

    def run(self, options: dict[str, Any]) -> int:
        account = self.account
        wanted = {
            "amount": self._amount(options["amount"]),
            "reason": options["reason"],
            "run_id": self._run_id(options["run"]),
        }
        mark = f"command-{uuid4()}"
        write = partial(KINDS[options["kind"]], account, actor=self.actor, request_id=mark, **wanted)
        line = done_or_found(write, partial(self._line_of, account, mark))
        row = Account.objects.get(pk=account.pk)
        available = row.limit - row.spent - row.held
        if self.as_json:
            facts = {"id": line.pk, "kind": line.kind, "amount": line.amount, "period": line.period, "run": line.run_id}
            self.emit({"account": row.name, **facts, "spent": row.spent, "available": available})
        else:
            self.say(f"{options['kind']} of {micro(line.amount)} credits booked for {row.name}, line {line.pk}.")
            self.say(f"Spent now {micro(row.spent)}, available {micro(available)} of {micro(row.limit)} credits.")
        return DONE

    def _line_of(self, account: Account, mark: str) -> LedgerEntry | None:
        """Return the line that was written although its answer was lost."""
        self.stderr.write(f"The connection broke off. If the line was written, its audit entry has request id {mark}.")
        entries = AuditEntry.objects.filter(target_type="account", target_id=str(account.pk), request_id=mark)
        written = entries.values_list("after__line", flat=True).first()
        return None if written is None else LedgerEntry.objects.get(pk=written)

    def _amount(self, text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
            self.usage(f"--amount {text!r}: write a whole number of micro-units, up to 2^53.")
        return int(text)

    def _run_id(self, text: str | None) -> UUID | None:
        try:
            return None if text is None else UUID(text)
        except ValueError:
            self.usage(f"--run {text!r} is no run id.")
