"""Single-use tickets for the sockets of browsers that cannot send a header: kept in Redis for 60 s."""

import hashlib
import hmac
import secrets
from dataclasses import asdict, dataclass
from uuid import UUID

import orjson

from quotas.standing import Standing
from runs import broker, keys

SECONDS = 60
LENGTH_MAX = 100


@dataclass(frozen=True, slots=True)
class Redeemed:
    """A run, the account it is seen from, and what whoever asked for the ticket stood on."""

    run_id: UUID
    account_id: int
    standing: Standing


def issue(run_id: UUID, account_id: int, standing: Standing) -> str:
    """Return a new ticket to watch the run as the account. Raises RedisError when Redis is away."""
    ticket = secrets.token_urlsafe(32)
    sealed = _padded(ticket, standing.session_key.encode()).hex()
    facts = asdict(standing) | {"session_key": sealed}
    kept = orjson.dumps({"run": run_id, "account": account_id, "standing": facts})
    broker.client().set(_key(ticket), kept, ex=SECONDS)
    return ticket


def redeem(ticket: str) -> Redeemed | None:
    """Return what a live ticket opens, and end it; None for any other text."""
    if not ticket or len(ticket) > LENGTH_MAX:
        return None
    kept = broker.client().getdel(_key(ticket))
    if not isinstance(kept, bytes):
        return None
    facts = orjson.loads(kept)
    stood = facts["standing"]
    stood["session_key"] = _padded(ticket, bytes.fromhex(stood["session_key"])).decode()
    stood["permissions"] = tuple(stood["permissions"])
    return Redeemed(UUID(facts["run"]), facts["account"], Standing(**stood))


def _key(ticket: str) -> str:
    # Hashed: whoever reads the keys of the server must not be able to redeem them.
    return keys.ticket(hashlib.sha256(ticket.encode("utf-8", "replace")).hexdigest())


def _padded(ticket: str, text: bytes) -> bytes:
    """Return the text under a pad that only the ticket yields; twice is the text again. A session key is a sign-in."""
    pad = hmac.digest(ticket.encode("utf-8", "replace"), b"session", "sha512")
    return bytes(a ^ b for a, b in zip(text, pad, strict=False))
