"""The ASGI application: HTTP by Django, WebSockets by the apps' consumers behind the session of the browser.

Origins are checked by the consumers themselves, for cookies only: a key or a ticket is no ambient authority.
"""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
django_application = get_asgi_application()  # loads the apps: everything below needs them

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402

from agentops import http_guard, sockets  # noqa: E402
from agentops.console.routing import websocket_urlpatterns as console_sockets  # noqa: E402
from runs.agents import discover  # noqa: E402
from runs.metrics import show_agents  # noqa: E402
from runs.routing import websocket_urlpatterns as run_sockets  # noqa: E402

discover()  # before the first request, which would otherwise wait for the agents' imports
show_agents()

socket_routes: list[Any] = [*run_sockets, *console_sockets]
application = ProtocolTypeRouter(
    {
        "http": http_guard.guarded(django_application),
        "websocket": sockets.known_paths_only(AuthMiddlewareStack(URLRouter(socket_routes))),
    }
)
sockets.close_on_shutdown()
sockets.mend_daphne()
http_guard.limit_daphne()
