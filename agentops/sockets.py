"""What all WebSockets share: an unknown path is a close, not a traceback, and a restart says 1012 before it happens."""

import asyncio
import sys
from typing import Any

import structlog
from django.urls.exceptions import Resolver404

from runs.handshake import live

log = structlog.get_logger(__name__)
RESTARTING = 1012
CLOSE_SECONDS = 2.0


def known_paths_only(inner: Any) -> Any:
    """Wrap a URLRouter: it raises ValueError on a path it does not know, which daphne would log as a crash."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        try:
            await inner(scope, receive, send)
        except (ValueError, Resolver404) as error:
            if "No route found" not in str(error):
                raise
            await send({"type": "websocket.close", "code": 4404})

    return application


def free_close_codes() -> None:
    """Let daphne close with any code, where it is the server; repeating it does nothing.

    Its WebSocket library takes a server for an application of the browser's API, which may say 1000 and 3000 to 4999
    only, and raises for 1003, 1007 to 1009 and 1012 (RFC 6455 7.4.1). The frame itself it writes with any code.
    """
    protocol: Any = sys.modules.get("daphne.ws_protocol")
    if protocol is not None:
        protocol.WebSocketProtocol.serverClose = _server_close


def _server_close(self: Any, code: int | None = None) -> None:
    self.sendCloseFrame(code=1000 if code is None else code, isReply=False)


async def close_all(code: int = RESTARTING) -> None:
    """Close every open socket of this process, so that viewers reconnect at once and resume from their cursor."""
    open_sockets = list(live)
    if open_sockets:
        await asyncio.wait([asyncio.ensure_future(one.close(code=code)) for one in open_sockets], timeout=CLOSE_SECONDS)


def close_on_shutdown() -> None:
    """Hook daphne's reactor, where it is the server: before it stops, sockets are closed with 1012.

    daphne itself drops connections without a close frame (its `finally` blocks do not run either).
    """
    reactor = sys.modules.get("twisted.internet.reactor")
    if reactor is None:
        return  # another server, or a process that serves nothing
    from twisted.internet.defer import Deferred  # noqa: PLC0415  only under daphne

    reactor.addSystemEventTrigger("before", "shutdown", lambda: Deferred.fromFuture(asyncio.ensure_future(close_all())))
