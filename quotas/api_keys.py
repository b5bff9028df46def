"""API keys: 256 random bits, kept as SHA-256, looked up by a public prefix and compared in constant time.

At most LIVE_PER_NAME keys of one name live in an account: the one in use, and the one that takes its place.
"""

import datetime as dt
import hashlib
import hmac
import secrets
from collections.abc import Callable

from django.db import OperationalError
from django.db.models import Q, QuerySet
from django.utils import timezone

from quotas import audit
from quotas.database import done_or_found, exactly, in_transaction, is_busy
from quotas.errors import InvalidApiKey, KeyNotLive, NoSuchKey, TooManyKeys
from quotas.models import Account, ApiKey

MARK = "ao"
NO_DIGEST = "0" * 64
USED_EVERY = dt.timedelta(minutes=1)  # last_used_at is for people: a write a minute is enough
LIVE_PER_NAME = 2
OVERLAP = dt.timedelta(days=1)  # how long a rotated key lives on, where nobody says otherwise
OVERLAP_MAX = dt.timedelta(days=90)
Made = tuple[ApiKey, str]  # a key's row and its only readable form, `ao_<prefix>_<secret>`


def create_api_key(
    *,
    account: Account,
    name: str,
    scopes: list[str],
    expires_at: dt.datetime | None = None,
    actor: str,
    reason: str = "",
    request_id: str = "",
) -> Made:
    """Make a key, audited. Raises TooManyKeys where the account has LIVE_PER_NAME live ones of that name."""

    def make() -> Made:
        row, raw = _next_of_name(account, name, scopes, expires_at)
        audit.record(
            actor=actor,
            action="api_key.created",
            target_type="api_key",
            target_id=row.prefix,
            after=_facts(row),
            reason=reason,
            request_id=request_id,
        )
        return row, raw

    return _once(make)


def rotate(
    api_key: ApiKey, *, overlap: dt.timedelta = OVERLAP, actor: str, reason: str = "", request_id: str = ""
) -> Made:
    """Make a second key of the same name, scopes and lifetime; the old one lives on for `overlap`, then expires.

    Raises KeyNotLive, TooManyKeys (it is being rotated already).
    """

    def make() -> Made:
        Account.objects.select_for_update().get(pk=api_key.account_id)
        old = ApiKey.objects.select_related("account").get(pk=api_key.pk)
        if not old.is_live:
            raise KeyNotLive(prefix=old.prefix)
        now = timezone.now()
        expires_at = None if old.lifetime is None else now + old.lifetime
        row, raw = _next_of_name(old.account, old.name, old.scopes, expires_at)
        ends = min(old.expires_at or now + overlap, now + overlap)
        ApiKey.objects.filter(pk=old.pk).update(expires_at=ends)
        audit.record(
            actor=actor,
            action="api_key.rotated",
            target_type="api_key",
            target_id=old.prefix,
            before=_facts(old),
            after={**_facts(row), "prefix": row.prefix, "old_expires_at": ends.isoformat()},
            reason=reason,
            request_id=request_id,
        )
        return row, raw

    return _once(make)


def revoke(api_key: ApiKey, *, actor: str, reason: str = "", request_id: str = "") -> bool:
    """End the key now, audited. Returns whether it was live."""

    def end() -> bool:
        ended = live_of(ApiKey.objects.filter(pk=api_key.pk)).update(revoked_at=timezone.now())
        if ended:
            audit.record(
                actor=actor,
                action="api_key.revoked",
                target_type="api_key",
                target_id=api_key.prefix,
                reason=reason,
                request_id=request_id,
            )
        return bool(ended)

    return in_transaction(end)


def revoke_all(account: Account) -> int:
    """End every key of an account now, and forget what people called them. Returns how many were live."""
    keys = ApiKey.objects.filter(account=account)
    live = keys.filter(revoked_at=None).update(revoked_at=timezone.now())
    keys.exclude(name="").update(name="")
    return live


def insert_key(*, account: Account, name: str, scopes: list[str], expires_at: dt.datetime | None = None) -> Made:
    """Write a new key's row and nothing else."""
    prefix = secrets.token_hex(5)
    secret = secrets.token_urlsafe(32)
    row = ApiKey.objects.create(
        account=account,
        name=name[:100],
        prefix=prefix,
        digest=_digest(secret),
        scopes=sorted(scopes),
        expires_at=expires_at,
        lifetime=None if expires_at is None else expires_at - timezone.now(),
    )
    return row, f"{MARK}_{prefix}_{secret}"


def find_live_key(raw: str) -> ApiKey:
    """Return the live key's row with its account; raises InvalidApiKey. One look-up; at most one write a minute."""
    parts = raw.split("_", 2)
    if len(parts) != 3 or parts[0] != MARK or not (parts[1].isascii() and parts[1].isalnum()):
        raise InvalidApiKey
    row = ApiKey.objects.select_related("account").filter(prefix=parts[1]).first()
    # Compared also where there is no such prefix: the time of the answer does not tell which prefixes there are.
    is_right = hmac.compare_digest(NO_DIGEST if row is None else row.digest, _digest(parts[2]))
    if row is None or not is_right or not row.is_live:
        raise InvalidApiKey
    _note_use(row)
    return row


def list_keys(account: Account) -> QuerySet[ApiKey]:
    """Return the account's keys, newest first, ended ones too."""
    return ApiKey.objects.filter(account=account).order_by("-pk")


def live_of(rows: QuerySet[ApiKey]) -> QuerySet[ApiKey]:
    """Narrow to the keys that are let in now."""
    return rows.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)


def get_key(account: Account, prefix: str) -> ApiKey:
    """Return the account's key of that prefix; a whole key is taken for its prefix. Raises NoSuchKey."""
    named = prefix.split("_")[1] if prefix.startswith(f"{MARK}_") else prefix
    row = list_keys(account).filter(prefix=named[:12]).first()
    if row is None:
        raise NoSuchKey(account=account.name, prefix=named[:12])
    return row


def _note_use(row: ApiKey) -> None:
    """Write `last_used_at` where it is older than USED_EVERY. Of many requests at once, one writes."""
    now = timezone.now()
    if row.last_used_at is not None and now - row.last_used_at <= USED_EVERY:
        return
    rows = ApiKey.objects.filter(Q(last_used_at=None) | Q(last_used_at__lt=now - USED_EVERY), pk=row.pk)
    try:
        rows.update(last_used_at=now)
    except OperationalError as error:
        if not is_busy(error):
            raise  # else somebody holds the lock: the next request writes it


def _once(make: Callable[[], Made]) -> Made:
    """Run `make` in a transaction. A lost answer to its COMMIT must not leave a live key that nobody has seen."""
    tried: list[Made] = []

    def keep() -> Made:
        tried.append(make())
        return tried[-1]

    def find() -> Made | None:
        return next((made for made in tried[-1:] if ApiKey.objects.filter(prefix=made[0].prefix).exists()), None)

    return done_or_found(lambda: in_transaction(keep), find)


def _next_of_name(account: Account, name: str, scopes: list[str], expires_at: dt.datetime | None) -> Made:
    """Write the row unless the name has LIVE_PER_NAME live keys, counted under the account's lock."""
    Account.objects.select_for_update().get(pk=account.pk)
    same_name = ApiKey.objects.filter(exactly("name", name[:100]), account=account)
    live = live_of(same_name).count()
    if live >= LIVE_PER_NAME:
        raise TooManyKeys(account=account.name, name=name[:100], live=live)
    return insert_key(account=account, name=name, scopes=scopes, expires_at=expires_at)


def _facts(row: ApiKey) -> dict[str, object]:
    ends = None if row.expires_at is None else row.expires_at.isoformat()
    return {"account": row.account.name, "name": row.name, "scopes": row.scopes, "expires_at": ends}


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
