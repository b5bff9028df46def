"""What a WebSocket handshake is trusted with: the browser's session, from our own pages only."""

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.http.request import validate_host

live: set[AsyncWebsocketConsumer] = set()  # the open sockets of this process: closed with 1012 before a restart


def origin_is_ours(scope: Any) -> bool:
    """Whether the page that opens the socket is of this very address, or of a listed origin.

    Browsers send cookies across sites to WebSockets, so a session alone proves nothing. No origin: not a browser.
    """
    headers = dict(scope.get("headers", []))
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin in settings.AGENTOPS_ALLOWED_ORIGINS:
        return True
    host = headers.get(b"host", b"").decode("latin-1")
    named = urlsplit(origin)
    return bool(host) and named.netloc == host and validate_host(named.hostname or "", settings.ALLOWED_HOSTS)


async def session_user(scope: Any) -> Any:
    """Return the active user of the socket's session, read afresh, or None: a socket outlives a logout."""
    session = scope.get("session")
    if session is None or not session.session_key:
        return None
    store = import_module(settings.SESSION_ENGINE).SessionStore(session.session_key)
    fresh: Any = {"session": store}  # all that get_user reads
    user: Any = await get_user(fresh)
    return user if user.is_authenticated and user.is_active else None
