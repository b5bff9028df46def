"""Single-use tickets for the sockets of browsers that cannot send a header: kept in Redis for 60 s."""

import hashlib
import secrets
from dataclasses import dataclass
from uuid import UUID

from quotas.access import Caller
from runs import broker, keys


@dataclass(frozen=True, slots=True)
class Redeemed:
    """A run, the account it is seen from, and who asked for the ticket: their key ("key") or themselves ("user")."""

    run_id: UUID
    account_id: int
    kind: str
    issuer_id: int


SECONDS = 60
LENGTH_MAX = 100


def issue(run_id: UUID, caller: Caller) -> str:
    """Return a new ticket to watch the run as the caller's account. Raises RedisError when Redis is away."""
    ticket = secrets.token_urlsafe(32)
    issuer = f"key {caller.api_key.pk}" if caller.api_key is not None else f"user {caller.user.pk}"
    broker.client().set(_key(ticket), f"{run_id} {caller.account.pk} {issuer}", ex=SECONDS)
    return ticket


def redeem(ticket: str) -> Redeemed | None:
    """Return what a live ticket opens, and end it; None for any other text."""
    if not ticket or len(ticket) > LENGTH_MAX:
        return None
    stored = broker.client().getdel(_key(ticket))
    if not isinstance(stored, bytes):
        return None
    run_id, account_id, kind, issuer_id = stored.decode("ascii").split(" ")
    return Redeemed(UUID(run_id), int(account_id), kind, int(issuer_id))


def _key(ticket: str) -> str:
    # Hashed: whoever reads the keys of the server must not be able to redeem them.
    return keys.ticket(hashlib.sha256(ticket.encode("utf-8", "replace")).hexdigest())
