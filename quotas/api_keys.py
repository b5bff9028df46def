"""API keys: 256 random bits, kept as SHA-256, looked up by a public prefix and compared in constant time."""

import datetime as dt
import hashlib
import hmac
import secrets

from django.utils import timezone

from quotas.errors import InvalidApiKey
from quotas.models import Account, ApiKey

MARK = "ao"
USED_EVERY = dt.timedelta(minutes=1)  # last_used_at is for people: a write a minute is enough


def create_api_key(
    *, account: Account, name: str, scopes: list[str], expires_at: dt.datetime | None = None
) -> tuple[ApiKey, str]:
    """Make a key and return it with its only readable form, `ao_<prefix>_<secret>`."""
    prefix = secrets.token_hex(5)
    secret = secrets.token_urlsafe(32)
    row = ApiKey.objects.create(
        account=account,
        name=name[:100],
        prefix=prefix,
        digest=_digest(secret),
        scopes=sorted(scopes),
        expires_at=expires_at,
    )
    return row, f"{MARK}_{prefix}_{secret}"


def find_live_key(raw: str) -> ApiKey:
    """Return the live key's row with its account; raises InvalidApiKey. One look-up; at most one write a minute."""
    parts = raw.split("_", 2)
    if len(parts) != 3 or parts[0] != MARK or not (parts[1].isascii() and parts[1].isalnum()):
        raise InvalidApiKey
    row = ApiKey.objects.select_related("account").filter(prefix=parts[1]).first()
    if row is None or not hmac.compare_digest(row.digest, _digest(parts[2])):
        raise InvalidApiKey
    if not row.is_live:
        raise InvalidApiKey
    now = timezone.now()
    if row.last_used_at is None or now - row.last_used_at > USED_EVERY:
        ApiKey.objects.filter(pk=row.pk).update(last_used_at=now)
    return row


def revoke(api_key: ApiKey) -> bool:
    """End the key now. Returns whether it was live."""
    return bool(ApiKey.objects.filter(pk=api_key.pk, revoked_at=None).update(revoked_at=timezone.now()))


def revoke_all(account: Account) -> int:
    """End every key of an account now, and forget what people called them. Returns how many were live."""
    keys = ApiKey.objects.filter(account=account)
    live = keys.filter(revoked_at=None).update(revoked_at=timezone.now())
    keys.exclude(name="").update(name="")
    return live


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
