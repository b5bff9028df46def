"""The control channel: a thread that hears of cancels and drains at once. A lost message costs a beat (12.1)."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import orjson
import structlog
from redis.exceptions import RedisError

from runs import broker, keys

log = structlog.get_logger(__name__)
LISTEN_SECONDS = 1.0
RECONNECT_MAX_SECONDS = 5.0


class ControlListener(threading.Thread):
    """Calls `on_cancel(run_id)`, `on_drain(worker)`, `on_undrain(worker)`. Subscribes again after every loss."""

    def __init__(
        self,
        on_cancel: Callable[[UUID], None],
        on_drain: Callable[[str], None],
        on_undrain: Callable[[str], None],
    ) -> None:
        super().__init__(name="control", daemon=True)
        self._on_cancel = on_cancel
        self._on_drain = on_drain
        self._on_undrain = on_undrain
        self._stop_event = threading.Event()

    def run(self) -> None:
        wait = 0.1
        while not self._stop_event.is_set():
            client = broker.blocking_client(LISTEN_SECONDS)
            try:
                with client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
                    pubsub.subscribe(keys.control())
                    while not self._stop_event.is_set():
                        message = pubsub.get_message(timeout=LISTEN_SECONDS)
                        wait = 0.1
                        if message is not None:
                            self._heard(message["data"])
            except RedisError as error:
                log.warning("control.reconnecting", error=str(error))
                self._stop_event.wait(wait)
                wait = min(RECONNECT_MAX_SECONDS, wait * 2)
            finally:
                client.close()

    def _heard(self, data: Any) -> None:
        try:
            match orjson.loads(data):
                case {"cancel": str(run_id)}:
                    self._on_cancel(UUID(run_id))
                case {"drain": str(worker)}:
                    self._on_drain(worker)
                case {"undrain": str(worker)}:
                    self._on_undrain(worker)
                case _:
                    log.warning("control.unknown_message")
        except (ValueError, TypeError):
            log.warning("control.unknown_message")

    def stop(self) -> None:
        self._stop_event.set()
