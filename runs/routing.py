"""WebSocket routes of this app."""

from channels.routing import URLRouter
from django.urls import path

from runs.consumers import RunConsumer, SessionConsumer

websocket_urlpatterns: list[URLRouter] = [
    path("ws/runs/<uuid:run_id>/", RunConsumer.as_asgi()),  # type: ignore[list-item, arg-type]
    path("ws/sessions/<str:key>/", SessionConsumer.as_asgi()),  # type: ignore[list-item, arg-type]
]
