"""Refusals: facts told to a client, each with a stable code. The docstring of a class is its message."""

from typing import Any


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
        return text.format_map(_Facts(self.facts))


class _Facts(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"({key})"


class InvalidApiKey(Refusal):
    """The API key is unknown, expired or revoked. Send `Authorization: Bearer <key>` with a live one."""

    code = "invalid_api_key"
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
    """The account {account} has {available} of {limit} micro-units available; this run needs {needed}."""

    code = "quota_exceeded"
    status = 402


class TooManyInFlight(Refusal):
    """The account {account} has {in_flight} runs in flight; its limit is {limit}."""

    code = "too_many_in_flight"
    status = 429
    retry_after = 5.0


class UnknownPrice(Refusal):
    """{model} has no price for {kind} tokens. Set one: `./run set_price {model} input=<amount> output=<amount>`."""

    code = "unknown_price"
    status = 422


class InvalidCost(Refusal):
    """A cost or token count must be a whole number from 0 to 2^53, not {given}."""

    code = "invalid_cost"
    status = 400


class Busy(Refusal):
    """The database is busy. Nothing was changed; try again."""

    code = "busy"
    status = 503
    retry_after = 1.0
