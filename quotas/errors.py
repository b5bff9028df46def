"""Refusals: facts told to a client, each with a stable code. The docstring of a class is its message."""

import datetime as dt
from typing import Any

from quotas.display import credits_of, moment


class Refusal(Exception):
    """The request was refused."""

    code = "refused"
    status = 409
    retry_after: float | None = None

    def __init__(self, *, retry_after: float | None = None, **facts: Any) -> None:
        self.facts = facts
        if retry_after is not None:
            self.retry_after = retry_after
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """The first paragraph of the class docstring, with the facts filled in."""
        text = " ".join((type(self).__doc__ or "").split("\n\n")[0].split())
        return text.format_map(_Facts(self.words()))

    def words(self) -> dict[str, Any]:
        """The facts as the message says them."""
        return self.facts


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"({key})"


class InvalidApiKey(Refusal):
    """The API key is unknown, expired or revoked. Send `Authorization: Bearer <key>` with a live one."""

    code = "invalid_api_key"
    status = 401


class KeyNotLive(Refusal):
    """The key {prefix} is revoked or expired; only a live one can be rotated. Make a new one."""

    code = "key_not_live"
    status = 409


class TooManyKeys(Refusal):
    """The account {account} has {live} live keys named {name} already. Revoke one of them, or take another name."""

    code = "too_many_keys"
    status = 409


class NoSuchKey(Refusal):
    """The account {account} has no API key {prefix}."""

    code = "no_such_key"
    status = 404


class AccessEnded(Refusal):
    """What this connection was opened with is let in no more: the key, the sign-in or the membership has ended."""

    code = "access_ended"
    status = 401


class ScopeMissing(Refusal):
    """The scope {needed} is needed for this."""

    code = "scope_missing"
    status = 403


class NoAccount(Refusal):
    """You are a member of no account. Ask an operator to add you to one."""

    code = "no_account"
    status = 403


class NoSuchAccount(Refusal):
    """There is no account {account} that you may act for."""

    code = "no_such_account"
    status = 404


class QuotaExceeded(Refusal):
    """The account {account} has {available} of {limit} credits available; this run needs {needed}{resets}.

    The facts are micro-units; `period_ends_at` is None where the limit is for good.
    """

    code = "quota_exceeded"
    status = 402

    def words(self) -> dict[str, Any]:
        amounts = {name: credits_of(amount) for name, amount in self.facts.items() if isinstance(amount, int)}
        ends = self.facts.get("period_ends_at")
        resets = f"; the period ends at {moment(dt.datetime.fromisoformat(ends))}" if ends else ""
        return {**self.facts, **amounts, "resets": resets}


class TooManyInFlight(Refusal):
    """The account {account} has {runs} in flight; its limit is {limit}."""

    code = "too_many_in_flight"
    status = 429
    retry_after = 5.0

    def words(self) -> dict[str, Any]:
        count = self.facts["in_flight"]
        return {**self.facts, "runs": "1 run" if count == 1 else f"{count} runs"}


class UnknownPrice(Refusal):
    """{model} has no price for {kind} tokens. Set one: `./run set_price {model} input=<amount> output=<amount>`."""

    code = "unknown_price"
    status = 422


class InvalidCost(Refusal):
    """A cost or token count must be a whole number from 0 to 2^53, not {given}."""

    code = "invalid_cost"
    status = 400


class InvalidAmount(Refusal):
    """The amount of a {kind} must be a whole number of micro-units, {range}, not {given}."""

    code = "invalid_amount"
    status = 400


class ReasonNeeded(Refusal):
    """A manual entry of the ledger needs a reason of 1 to 500 printable characters."""

    code = "reason_needed"
    status = 400


class NotOnAccount(Refusal):
    """The account {account} has neither a hold nor a ledger line of the run {run}."""

    code = "not_on_account"
    status = 404


class WriteOffTooLarge(Refusal):
    """At most {allowed} micro-units can be written off here, not {asked}."""

    code = "write_off_too_large"
    status = 409


class SpentOutOfRange(Refusal):
    """The account {account} has spent {spent} micro-units; {amount} more would take that beyond 2^53."""

    code = "spent_out_of_range"
    status = 409


class Busy(Refusal):
    """The database is busy. Nothing was changed; try again."""

    code = "busy"
    status = 503
    retry_after = 1.0
