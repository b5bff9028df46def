"""Who is calling, and for which account: from an API key or from a signed-in user."""

from dataclasses import dataclass
from typing import Any

from quotas.api_keys import find_live_key
from quotas.errors import NoAccount, NoSuchAccount
from quotas.models import Account, ApiKey

ALL_SCOPES = frozenset(ApiKey.Scope.values)
MEMBER_SCOPES = {
    "viewer": frozenset({"read"}),
    "member": frozenset({"read", "submit", "cancel"}),
    "owner": ALL_SCOPES,
}


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller, bound to one account. `actor` is the name written to audit and transitions."""

    account: Account
    actor: str
    scopes: frozenset[str]
    user: Any = None
    api_key: ApiKey | None = None

    def may(self, scope: str) -> bool:
        return scope in self.scopes


def caller_for_key(raw_key: str) -> Caller:
    """Return the caller of a live API key; raises InvalidApiKey."""
    row = find_live_key(raw_key)
    scopes = frozenset(row.scopes) & ALL_SCOPES
    return Caller(account=row.account, actor=f"key:{row.prefix}", scopes=scopes, api_key=row)


def caller_for_user(user: Any, account_name: str | None = None) -> Caller:
    """Return a signed-in user's caller for the named account, or for the first one they are a member of.

    Superusers may choose any account. Raises NoAccount (member of none), NoSuchAccount (not theirs).
    """
    memberships = {m.account.name: m for m in user.memberships.select_related("account").order_by("account__name")}
    if user.is_superuser:
        name = account_name or ("default" if not memberships else next(iter(memberships)))
        account = Account.objects.filter(name=name).first()
        if account is None:
            raise NoSuchAccount(account=name)
        return Caller(account, actor=user.get_username(), scopes=ALL_SCOPES, user=user)
    if not memberships:
        raise NoAccount
    membership = memberships.get(account_name or next(iter(memberships)))
    if membership is None:
        raise NoSuchAccount(account=account_name)
    scopes = MEMBER_SCOPES[membership.role]
    return Caller(membership.account, actor=user.get_username(), scopes=scopes, user=user)
