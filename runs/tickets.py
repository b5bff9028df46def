"""Single-use tickets for sockets and event streams of browsers that cannot send a header: kept in Redis for 60 s."""

import hashlib
import secrets
from uuid import UUID

from quotas.access import Caller
from runs import broker, keys

SECONDS = 60
LENGTH_MAX = 100


def issue(run_id: UUID, caller: Caller) -> str:
    """Return a new ticket to watch the run as the caller's account. Raises RedisError when Redis is away."""
    ticket = secrets.token_urlsafe(32)
    broker.client().set(_key(ticket), f"{run_id} {caller.account.pk}", ex=SECONDS)
    return ticket


def redeem(ticket: str) -> tuple[UUID, int] | None:
    """Return (run id, account id) of a live ticket and end it; None for any other text."""
    if not ticket or len(ticket) > LENGTH_MAX:
        return None
    stored = broker.client().getdel(_key(ticket))
    if not isinstance(stored, bytes):
        return None
    run_id, _, account_id = stored.decode("ascii").partition(" ")
    return UUID(run_id), int(account_id)


def _key(ticket: str) -> str:
    # Hashed: whoever reads the keys of the server must not be able to redeem them.
    return keys.ticket(hashlib.sha256(ticket.encode("utf-8", "replace")).hexdigest())
