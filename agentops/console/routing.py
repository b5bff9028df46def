"""Socket routes of the console."""

from channels.routing import URLRouter
from django.urls import path

from agentops.console.consumers import OpsConsumer

websocket_urlpatterns: list[URLRouter] = [
    path("ws/ops/", OpsConsumer.as_asgi()),  # type: ignore[list-item, arg-type]
]
