"""Telling open consoles that something changed, at most once a second. Losing a ping costs them two seconds."""

import asyncio

import structlog
from channels.layers import get_channel_layer

log = structlog.get_logger(__name__)
GROUP = "ops"
EVERY_SECONDS = 1.0


class Pings:
    """Marks changes and sends them from the worker's own event loop: the channel layer keeps a connection a loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Note a change. Called in the event loop."""
        self._changed.set()

    async def run(self) -> None:
        """Send until cancelled."""
        layer = get_channel_layer()
        while layer is not None:
            await self._changed.wait()
            self._changed.clear()
            try:
                await layer.group_send(GROUP, {"type": "ops.changed"})
            except Exception as error:  # noqa: BLE001  the layer raises what its client raises; nothing depends on it
                log.debug("ping.lost", error=str(error))
            await asyncio.sleep(EVERY_SECONDS)
