"""What all WebSockets share: an unknown path is a close, not a traceback, and a restart says 1012 before it happens."""

import asyncio
import os
import sys
import threading
from typing import Any

import structlog
from django.urls.exceptions import Resolver404
from redis.exceptions import RedisError

from runs.handshake import live

log = structlog.get_logger(__name__)
RESTARTING = 1012
CLOSE_SECONDS = 2.0
LEAVE_SECONDS = 2.0


def known_paths_only(inner: Any) -> Any:
    """Wrap a URLRouter: it raises ValueError on a path it does not know, which daphne would log as a crash."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if _holds_nul(scope):
            await send({"type": "websocket.close", "code": 4400})
            return
        try:
            await inner(scope, receive, send)
        except (RedisError, ConnectionError) as error:  # of the ops socket's channel layer
            log.warning("socket.redis_away", error=str(error))
            await send({"type": "websocket.close", "code": 1013})
        except (ValueError, Resolver404) as error:
            if "No route found" not in str(error):
                raise
            await send({"type": "websocket.close", "code": 4404})

    return application


def mend_daphne() -> None:
    """Correct two things of daphne, where it is the server; repeating it does nothing.

    It closes with any code: its WebSocket library takes a server for an application of the browser's API, which may
    say 1000 and 3000 to 4999 only, and raises for 1003, 1007 to 1009 and 1012 (RFC 6455 7.4.1). And a handshake whose
    subprotocols, path or header names are not ASCII is answered 400, which daphne decodes, fails, and answers 500.
    """
    module: Any = sys.modules.get("daphne.ws_protocol")
    if module is None or hasattr(module.WebSocketProtocol, "agentops_mended"):
        return
    from autobahn.websocket.types import ConnectionDeny  # noqa: PLC0415  only under daphne

    protocol = module.WebSocketProtocol
    connect = protocol.onConnect

    def on_connect(self: Any, request: Any) -> Any:
        decoded = [request.path, request.headers.get("sec-websocket-protocol", ""), *request.headers]
        if not all(map(str.isascii, decoded)):
            raise ConnectionDeny(400, "the handshake is not ASCII")  # type: ignore[no-untyped-call]
        return connect(self, request)

    protocol.onConnect = on_connect
    protocol.serverClose = _server_close
    protocol.agentops_mended = True


def _server_close(self: Any, code: int | None = None) -> None:
    self.sendCloseFrame(code=1000 if code is None else code, isReply=False)


def _holds_nul(scope: Any) -> bool:
    """Whether path, query or cookie carry a NUL, raw or escaped: no page's do, and PostgreSQL takes none in a text."""
    cookie = b"".join(value for name, value in scope.get("headers", []) if name == b"cookie")
    return "\0" in scope.get("path", "") or b"%00" in scope.get("query_string", b"") or b"\\000" in cookie


async def close_all(code: int = RESTARTING) -> None:
    """Close every open socket of this process, so that viewers reconnect at once and resume from their cursor."""
    open_sockets = list(live)
    if open_sockets:
        await asyncio.wait([asyncio.ensure_future(one.close(code=code)) for one in open_sockets], timeout=CLOSE_SECONDS)


def close_on_shutdown() -> None:
    """Hook daphne's reactor, where it is the server: before it stops, sockets are closed with 1012.

    daphne itself drops connections without a close frame (its `finally` blocks do not run either). After it has
    stopped, the process ends within LEAVE_SECONDS: a request that was answered at that moment waits in its thread for
    the event loop, which is gone, and the interpreter would wait for the thread for ever.
    """
    reactor = sys.modules.get("twisted.internet.reactor")
    if reactor is None:
        return  # another server, or a process that serves nothing
    from twisted.internet.defer import Deferred  # noqa: PLC0415  only under daphne

    reactor.addSystemEventTrigger("before", "shutdown", lambda: Deferred.fromFuture(asyncio.ensure_future(close_all())))
    reactor.addSystemEventTrigger("after", "shutdown", _leave_soon)


def _leave_soon() -> None:
    """End the process though threads are left. What they had committed is whole; the rest never was."""
    timer = threading.Timer(LEAVE_SECONDS, os._exit, [0])
    timer.daemon = True
    timer.start()
