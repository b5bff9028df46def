"""A whole worker in a thread of this process, for handlers that only the test knows. Times are short, the lease is not.

For tests marked `django_db(transaction=True)`: its threads see what is committed.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections

from runs.models import Run
from tests import working
from tests.probes import eventually
from workers.shutdown import Shutdown
from workers.worker import Worker

START_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
HELPERS = ("sweeper", "lease-beat", "unit", "bulk")
TIMES = {"sweep": 0.1, "wake_wait": 0.1, "handler_grace": 0.2, "drain_grace": 0.1}


@contextmanager
def at_work(*agents: str, **fields: Any) -> Iterator[Worker]:
    """Run a worker for the agents until the block ends, then drain it at once."""
    config = working.config(**(TIMES | {"agents": frozenset(agents)} | fields))
    made: list[tuple[Worker, asyncio.AbstractEventLoop]] = []
    started = threading.Event()

    async def work() -> None:
        worker = Worker(config, Shutdown())
        made.append((worker, asyncio.get_running_loop()))
        started.set()
        await worker.run()

    def body() -> None:
        try:
            asyncio.run(work())
        finally:
            started.set()
            connections.close_all()

    before = set(threading.enumerate())
    thread = threading.Thread(target=body, name="worker")
    thread.start()
    assert started.wait(START_SECONDS), "the worker does not start"
    worker, loop = made[0]
    try:
        yield worker
    finally:
        with suppress(RuntimeError):  # it ended by itself
            loop.call_soon_threadsafe(worker.shutdown.signal)
        thread.join(PATIENCE_SECONDS)
        for helper in set(threading.enumerate()) - before:
            if helper.name.startswith(
                HELPERS
            ):  # what it does to the rows is over when the end of the test deletes them
                helper.join(PATIENCE_SECONDS)
    assert not thread.is_alive(), "the worker does not stop"


def until(state: str, *runs: Run) -> None:
    """Wait until the runs are in the state, and read them again."""

    def reached() -> None:
        for run in runs:
            run.refresh_from_db()
        assert [run.state for run in runs] == [state] * len(runs)

    eventually(reached, timeout=PATIENCE_SECONDS)


def life(run: Run) -> list[str]:
    """Return the kinds of a run's transitions, in order."""
    return list(run.transitions.order_by("fence").values_list("kind", flat=True))
