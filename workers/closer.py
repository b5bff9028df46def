"""Closing the logs of ended runs in batches: at most 64, or what a second brought (protocol 9)."""

import asyncio
from uuid import UUID

import redis
import structlog
from django.db import DatabaseError
from redis.exceptions import RedisError

from quotas.errors import Busy
from runs import archive
from workers.units import Units

log = structlog.get_logger(__name__)
BATCH_MAX = 64
GATHER_SECONDS = 1.0


async def close_ended(client: "redis.Redis", units: Units, ended: "asyncio.Queue[tuple[UUID, int]]") -> None:
    """Close logs until cancelled. What fails here is left to the sweeper's close duty."""
    while True:
        batch = [await ended.get()]
        try:
            async with asyncio.timeout(GATHER_SECONDS):
                while len(batch) < BATCH_MAX:
                    batch.append(await ended.get())
        except TimeoutError:
            pass
        await close_batch(client, units, batch)


async def close_batch(client: "redis.Redis", units: Units, batch: list[tuple[UUID, int]]) -> None:
    try:
        await units.run(archive.close_logs, client, batch)
    except (DatabaseError, Busy, RedisError) as error:
        log.warning("close.postponed", runs=len(batch), error=str(error))
