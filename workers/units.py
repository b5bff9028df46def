"""Units of database work: one function, one transaction, one hop to a bounded pool of threads (docs/adr/0001).

A unit joins the pool with the log context of its caller. After a lost connection the thread's next unit reconnects.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import close_old_connections, connections

T = TypeVar("T")


class Units:
    """The pool. One database connection a thread, kept open; Redis commands of the loop run here too."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="unit")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work(*args)` in a thread and return its result. Not cancellable half-way: the result is awaited."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, context.run, _unit, work, args)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _unit(work: Callable[..., T], args: tuple[Any, ...]) -> T:
    close_old_connections()
    try:
        return work(*args)
    finally:
        close_old_connections()


def keep_connections() -> None:
    """Make this process's database connections persistent and unpooled: a pool deadlocks under a thread pool."""
    entry = connections.settings["default"]
    entry["CONN_MAX_AGE"] = None
    entry["CONN_HEALTH_CHECKS"] = False  # a dead connection is found by its first error, and the unit repeated
    entry["OPTIONS"].pop("pool", None)
