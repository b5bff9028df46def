"""Socket routes of the console."""

from django.urls import path

from agentops.console.consumers import OpsConsumer

websocket_urlpatterns = [path("ws/ops/", OpsConsumer.as_asgi())]
