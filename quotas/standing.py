"""Whether those who opened a connection are still let in: one look for all of them, however many connections."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.models import Session
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from quotas.access import ALL_SCOPES, MEMBER_SCOPES, Caller
from quotas.models import ApiKey


@dataclass(frozen=True, slots=True)
class Standing:
    """What a connection was opened with: a key, or a user by their session.

    `account_id` None: as staff who have the `permissions`.
    """

    account_id: int | None = None
    key_id: int | None = None
    user_id: int | None = None
    session_key: str = ""
    permissions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rights:
    """What a standing allows now. `user` is read afresh; None of a key."""

    scopes: frozenset[str]
    user: Any = None


READING = Rights(frozenset({"read"}))


def standing_of(caller: Caller, session_key: str | None) -> Standing:
    """Return how the caller can be looked up again; `session_key` is that of their session, if they have one."""
    if caller.api_key is not None:
        return Standing(caller.account.pk, key_id=caller.api_key.pk)
    return Standing(caller.account.pk, user_id=caller.user.pk, session_key=session_key or "")


def rights_of(standings: Collection[Standing]) -> dict[Standing, Rights]:
    """Return what each allows now; who is let in no more is missing. Four statements, and two for each staff user."""
    keys = _scopes_of_keys({one.key_id for one in standings if one.key_id is not None})
    users = _active_users({one.user_id for one in standings if one.user_id is not None})
    holders = _session_holders({one.session_key for one in standings if one.session_key}, users.values())
    found: dict[Standing, Rights] = {}
    for one in standings:
        if one.key_id is not None:
            rights = None if one.key_id not in keys else Rights(keys[one.key_id])
        elif holders.get(one.session_key) != one.user_id:
            rights = None
        else:
            rights = _of_user(one, users.get(one.user_id or 0))
        if rights is not None:
            found[one] = rights
    return found


def _of_user(standing: Standing, user: Any) -> Rights | None:
    if user is None:
        return None
    if standing.account_id is None:
        is_let_in = user.is_staff and user.has_perms(standing.permissions)
        return Rights(READING.scopes, user) if is_let_in else None
    if user.is_superuser:
        return Rights(ALL_SCOPES, user)
    roles = (member.role for member in user.memberships.all() if member.account_id == standing.account_id)
    role = next(roles, None)
    return None if role is None else Rights(MEMBER_SCOPES[role], user)


def _scopes_of_keys(ids: set[int]) -> dict[int, frozenset[str]]:
    rows = ApiKey.objects.filter(pk__in=ids) if ids else ()
    return {row.pk: frozenset(row.scopes) & ALL_SCOPES for row in rows if row.is_live}


def _active_users(ids: set[int]) -> dict[int, Any]:
    rows: Iterable[Any] = ()
    if ids:
        rows = get_user_model().objects.filter(pk__in=ids, is_active=True).prefetch_related("memberships")
    return {user.pk: user for user in rows}


def _session_holders(keys: set[str], users: Iterable[Any]) -> dict[str, int]:
    """Return whose session each is: of those that live, and were opened with the user's present password."""
    by_id = {str(user.pk): user for user in users}
    holders = {}
    for row in Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()) if keys else ():
        facts = row.get_decoded()
        user = by_id.get(str(facts.get(SESSION_KEY)))
        if user is not None and _is_signed_by(user, str(facts.get(HASH_SESSION_KEY, ""))):
            holders[row.session_key] = user.pk
    return holders


def _is_signed_by(user: Any, given: str) -> bool:
    hashes = [user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()]
    return any(constant_time_compare(given, one) for one in hashes)
