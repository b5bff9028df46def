"""`/ws/ops/`: the overview's numbers for signed-in staff, pushed on change and every two seconds.

The channel layer only carries wake-ups (group `ops`, type `ops.changed`): a lost one costs two seconds, no number.
"""

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.db import DatabaseError

from agentops.console.overview import Numbers, numbers_for
from quotas.standing import READING, Standing
from runs import rounds
from runs.handshake import live, origin_is_ours, session_user

log = structlog.get_logger(__name__)

GROUP = "ops"
EVERY_SECONDS = 2.0  # without any wake-up
LEAST_SECONDS = 1.0  # between two frames, however many wake-ups come
NOT_SIGNED_IN = 4401


class OpsConsumer(AsyncJsonWebsocketConsumer):
    """One operator's overview. Frames: {"type": "numbers", …}. Client frames: {"type": "ping"}."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stay: rounds.Stay | None = None

    async def connect(self) -> None:
        """Accept staff; everybody else is refused before the handshake ends (403)."""
        user = await self._staff_user() if origin_is_ours(self.scope) else None
        if user is None:
            await self.close()
            return
        await self.accept()
        if self.channel_layer is not None:
            await self.channel_layer.group_add(GROUP, self.channel_name)
        live.add(self)
        standing = Standing(user_id=user.pk, session_key=self.scope["session"].session_key or "")
        self._stay = stay = rounds.current().open(standing, replace(READING, user=user))
        self._tasks = [asyncio.create_task(self._push(stay)), asyncio.create_task(self._leave_when_ended(stay))]

    async def disconnect(self, code: int) -> None:  # noqa: ARG002  the signature is Channels'
        live.discard(self)
        if self._stay is not None:
            self._stay.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.channel_layer is not None:
            await self.channel_layer.group_discard(GROUP, self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:  # noqa: ARG002  as above
        if isinstance(content, dict) and content.get("type") == "ping":
            await self.send_json({"type": "pong"})

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **kwargs: Any) -> None:
        """Drop frames that are no JSON: a socket must not die of what a client sends."""
        with contextlib.suppress(ValueError):
            await super().receive(text_data=text_data, bytes_data=bytes_data, **kwargs)

    async def ops_changed(self, event: dict[str, Any]) -> None:  # noqa: ARG002  a wake-up carries nothing
        self._changed.set()

    async def _push(self, stay: rounds.Stay) -> None:
        while True:
            try:
                await self.send_json({"type": "numbers", **await self._numbers(stay.rights.user)})
            except DatabaseError as error:
                # The page shows the age of its numbers; the next round tries again.
                log.warning("ops_numbers_unread", action="ops.read", error=str(error))
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), EVERY_SECONDS - LEAST_SECONDS)
            self._changed.clear()

    async def _leave_when_ended(self, stay: rounds.Stay) -> None:
        await stay.ended.wait()
        await self.close(code=NOT_SIGNED_IN)

    async def _staff_user(self) -> Any:
        """Return the session's user, read afresh, if they are active staff, else None."""
        user = await session_user(self.scope)
        return user if user is not None and user.is_staff else None

    @database_sync_to_async
    def _numbers(self, user: Any) -> Numbers:
        return numbers_for(user)
