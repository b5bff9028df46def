"""Who may call the API: an API key, or a signed-in user acting for one account; and what a scope allows."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import MethodNotAllowed, PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from quotas.access import Caller, caller_for_key, caller_for_user
from quotas.errors import InvalidApiKey, NoSuchAccount, Refusal, ScopeMissing

ACCOUNT_HEADER = "HTTP_X_AGENTOPS_ACCOUNT"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class CsrfFailed(Refusal):
    """A browser session needs the CSRF token: send it in the header X-CSRFToken."""

    code = "csrf_failed"
    status = 403


class NotSignedIn(Refusal):
    """Send `Authorization: Bearer <api key>`, or sign in."""

    code = "not_authenticated"
    status = 401


@dataclass(frozen=True, slots=True)
class KeyPrincipal:
    """Stands where Django expects a user when an API key calls."""

    username: str
    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = False
    pk: None = None

    def __str__(self) -> str:
        return self.username


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`. Any other scheme is left to the next authentication."""

    def authenticate(self, request: Request) -> tuple[KeyPrincipal, Caller] | None:
        caller = _bearer(request)
        return None if caller is None else (KeyPrincipal(caller.actor), caller)

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002  DRF's signature
        return "Bearer"


class AccountSessionAuthentication(SessionAuthentication):
    """Django's session with the CSRF check; `X-AgentOps-Account` chooses among the user's accounts."""

    def authenticate(self, request: Request) -> tuple[Any, Caller] | None:
        found = super().authenticate(request)
        if found is None:
            return None
        user = found[0]
        return user, caller_for_user(user, account_header(request.META.get(ACCOUNT_HEADER, "")))

    def enforce_csrf(self, request: Any) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied as error:
            raise CsrfFailed(reason=str(error.detail)) from None


def _bearer(request: Any) -> Caller | None:
    """Return the caller of the request's API key, None where it has none; raises InvalidApiKey."""
    scheme, _, key = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise InvalidApiKey
    return caller_for_key(key)


def caller_of(request: HttpRequest) -> Caller:
    """Return the caller of a plain Django view that only reads: by key, else by session. Raises Refusal.

    Only safe methods are served there, so no CSRF check is due.
    """
    caller = _bearer(request)
    if caller is not None:
        return caller
    user = request.user
    if not (user.is_authenticated and user.is_active):
        raise NotSignedIn
    return caller_for_user(user, account_header(request.META.get(ACCOUNT_HEADER, "")))


def account_header(raw: str) -> str | None:
    """Return the account's name from the header's Latin-1 text (names may be UTF-8), None where it is absent."""
    if not raw:
        return None
    try:
        name = raw.encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise NoSuchAccount(account=ascii(raw[:100])) from None
    if "\0" in name or len(name) > 100:
        raise NoSuchAccount(account=ascii(name[:100]))
    return name


class HasScope(BasePermission):
    """The caller's scopes must hold the one that the view's `scopes` names for the method.

    A view without `scopes` lets `read` read and nobody write.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        caller = request.auth
        if not isinstance(caller, Caller):
            raise NotSignedIn
        method = request.method or "GET"
        if getattr(view, method.lower(), None) is None:
            raise MethodNotAllowed(method)  # before any scope: no key could do it
        named: dict[str, str] = getattr(view, "scopes", {})
        needed = named.get("GET" if method in SAFE_METHODS else method)
        if needed is None:
            if method not in SAFE_METHODS:
                return False
            needed = "read"
        if not caller.may(needed):
            raise ScopeMissing(needed=needed, scopes=sorted(caller.scopes))
        return True
