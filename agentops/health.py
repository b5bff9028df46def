"""What a load balancer asks the web process: `/healthz` (it lives, no I/O) and `/readyz` (it can do its work)."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, HttpResponse, JsonResponse

from runs import broker

CACHE_SECONDS = 5.0
PROBE_SECONDS = 4.0  # a probe of a paused server counts as failed

_cached: tuple[float, dict[str, str]] | None = None
# Threads of its own: the one thread that sync code of all requests shares may be the one that hangs.
_probes = ThreadPoolExecutor(max_workers=3, thread_name_prefix="readyz")


async def healthz(_request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


async def readyz(_request: HttpRequest) -> HttpResponse:
    """Answer 200, or 503 with `failing`: {what: the sentence of its error}. The answer is up to five seconds old."""
    global _cached  # noqa: PLW0603  one value a process
    cached = _cached
    if cached is None or time.monotonic() - cached[0] > CACHE_SECONDS:
        cached = _cached = (time.monotonic(), await failing())
    if cached[1]:
        return JsonResponse({"status": "not ready", "failing": cached[1]}, status=503)
    return JsonResponse({"status": "ready"})


async def failing() -> dict[str, str]:
    """Run the probes at the same time and return {what: why} of those that failed."""
    probes: dict[str, Callable[[], str]] = {"database": _database, "redis": _redis, "migrations": _migrations}
    loop = asyncio.get_running_loop()
    answers = await asyncio.gather(*(_in_time(loop.run_in_executor(_probes, probe)) for probe in probes.values()))
    return {name: answer for name, answer in zip(probes, answers, strict=True) if answer}


async def _in_time(probe: "asyncio.Future[str]") -> str:
    try:
        return await asyncio.wait_for(probe, PROBE_SECONDS)
    except TimeoutError:
        return f"no answer in {PROBE_SECONDS:.0f} s"


def _database() -> str:
    return _with_connection(_select_one)


def _select_one() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return ""


def _redis() -> str:
    try:
        broker.client().ping()
    except broker.RedisError as error:
        return type(error).__name__  # its text may hold an address
    return ""


def _migrations() -> str:
    return _with_connection(pending_migrations)


def pending_migrations() -> str:
    """Return how many migrations wait, as a phrase; "" when none does."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    return f"{len(plan)} not applied" if plan else ""


def _with_connection(probe: Callable[[], str]) -> str:
    # The thread's connection is closed again: it must not outlive a server that restarted.
    try:
        return probe()
    except Exception as error:  # noqa: BLE001  whatever a driver raises means "not ready"
        return type(error).__name__
    finally:
        connection.close()
