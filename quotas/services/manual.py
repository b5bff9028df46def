"""Lines people write: grants, adjustments, write-offs; each with a reason and its audit entry (money 10).

Amounts are whole micro-units. Whether somebody may write one is the caller's to check (`quotas.grant`,
`quotas.adjust`, `quotas.write_off`). Each function is a transaction of its own and returns the line it wrote.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Sum

from quotas import audit
from quotas.database import database_time, exactly, in_transaction
from quotas.errors import (
    InvalidAmount,
    NoSuchAccount,
    NotOnAccount,
    ReasonNeeded,
    SpentOutOfRange,
    WriteOffTooLarge,
)
from quotas.models import AMOUNT_MAX, Account, Hold, LedgerEntry
from quotas.services.accounts import available, lock_account, store, turn_period

REASON_MAX = 500
ACTOR_MAX = 150
Kind = LedgerEntry.Kind


def grant(
    account: Account | str,
    *,
    amount: int,
    reason: str,
    actor: str,
    run_id: UUID | None = None,
    request_id: str = "",
    form_id: str = "",
) -> LedgerEntry:
    """Give an account `amount` (above 0) in its current period: a line of -amount, also below nothing spent.

    Raises InvalidAmount, ReasonNeeded, NoSuchAccount, NotOnAccount, SpentOutOfRange.
    """
    _check(Kind.GRANT, amount, lowest=1)
    return _write(account, _Wanted(Kind.GRANT, -amount, _reason(reason), actor, run_id, request_id, form_id))


def adjust(
    account: Account | str,
    *,
    amount: int,
    reason: str,
    actor: str,
    run_id: UUID | None = None,
    request_id: str = "",
    form_id: str = "",
) -> LedgerEntry:
    """Correct what an account has spent: by a cost that is not booked (above 0), or one that is and is none (below 0).

    It may go into overdraft. Raises InvalidAmount, ReasonNeeded, NoSuchAccount, NotOnAccount, SpentOutOfRange.
    """
    _check(Kind.ADJUSTMENT, amount, lowest=-AMOUNT_MAX)
    return _write(account, _Wanted(Kind.ADJUSTMENT, amount, _reason(reason), actor, run_id, request_id, form_id))


def write_off(
    account: Account | str,
    *,
    amount: int,
    reason: str,
    actor: str,
    run_id: UUID | None = None,
    request_id: str = "",
    form_id: str = "",
) -> LedgerEntry:
    """Forgive `amount` (above 0) of what is spent in the current period: a line of -amount.

    At most what is booked for the run; without a run at most what is overdrawn; never more than is spent. Raises
    InvalidAmount, ReasonNeeded, NoSuchAccount, NotOnAccount, WriteOffTooLarge.
    """
    _check(Kind.WRITE_OFF, amount, lowest=1)
    return _write(account, _Wanted(Kind.WRITE_OFF, -amount, _reason(reason), actor, run_id, request_id, form_id))


@dataclass(frozen=True, slots=True)
class _Wanted:
    kind: LedgerEntry.Kind
    amount: int  # of the line
    reason: str
    actor: str
    run_id: UUID | None
    request_id: str
    form_id: str  # of the form it was typed into: what the audit entry tells a second sending by


def _check(kind: LedgerEntry.Kind, amount: Any, *, lowest: int) -> None:
    is_whole = isinstance(amount, int) and not isinstance(amount, bool)
    if not is_whole or amount == 0 or not lowest <= amount <= AMOUNT_MAX:
        allowed = "1 to 2^53" if lowest > 0 else "-2^53 to 2^53 without 0"
        raise InvalidAmount(kind=kind.label.lower(), range=allowed, given=str(amount)[:60])


def _reason(text: str) -> str:
    reason = text.strip()
    if not 1 <= len(reason) <= REASON_MAX or not all(c.isprintable() or c.isspace() for c in reason):
        raise ReasonNeeded
    return reason


def _write(account: Account | str, wanted: _Wanted) -> LedgerEntry:
    account_id = account.pk if isinstance(account, Account) else _named(account)
    return in_transaction(lambda: _write_locked(lock_account(account_id), wanted))


def _named(name: str) -> int:
    account_id = Account.objects.filter(exactly("name", name)).values_list("pk", flat=True).first()
    if account_id is None:
        raise NoSuchAccount(account=name)
    return account_id


def _write_locked(account: Account, wanted: _Wanted) -> LedgerEntry:
    turn_period(account, database_time(account))
    booked, agent = (0, "") if wanted.run_id is None else _of_run(account, wanted.run_id)
    if wanted.kind == Kind.WRITE_OFF:
        _check_write_off(account, -wanted.amount, booked if wanted.run_id else account.spent - max(0, account.limit))
    before = account.spent
    # What brings it nearer to 0 is let through: real costs may have brought it beyond.
    if abs(before + wanted.amount) > max(AMOUNT_MAX, abs(before)):
        raise SpentOutOfRange(account=account.name, spent=before, amount=wanted.amount)
    line = LedgerEntry.objects.create(
        account_id=account.pk,
        run_id=wanted.run_id,
        kind=wanted.kind,
        amount=wanted.amount,
        period=account.spent_period,
        agent=agent,
        overdraft=wanted.amount > max(0, available(account)),
        actor=wanted.actor[:ACTOR_MAX],
        reason=wanted.reason,
    )
    account.spent += wanted.amount
    store(account)
    audit.record(
        actor=wanted.actor,
        action=f"ledger.{wanted.kind.value}",
        target_type="account",
        target_id=account.pk,
        before={"spent": before},
        after={
            "spent": account.spent,
            "amount": wanted.amount,
            "line": line.pk,
            "run": None if wanted.run_id is None else str(wanted.run_id),
            **({"form": wanted.form_id} if wanted.form_id else {}),
        },
        reason=wanted.reason,
        request_id=wanted.request_id,
    )
    return line


def _of_run(account: Account, run_id: UUID) -> tuple[int, str]:
    """Return what is booked for a run on this account, and its agent. Raises NotOnAccount where it is not known."""
    lines = LedgerEntry.objects.filter(account_id=account.pk, run_id=run_id)
    first = lines.order_by("pk").first()
    if first is None:
        if not Hold.objects.filter(account_id=account.pk, run_id=run_id).exists():
            raise NotOnAccount(account=account.name, run=str(run_id))
        return 0, ""
    return lines.aggregate(total=Sum("amount"))["total"], first.agent


def _check_write_off(account: Account, amount: int, owed: int) -> None:
    allowed = max(0, min(owed, account.spent))
    if amount > allowed:
        raise WriteOffTooLarge(account=account.name, asked=amount, allowed=allowed, spent=account.spent)
