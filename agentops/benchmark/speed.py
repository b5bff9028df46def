"""How fast the running services are: submit, dispatch and drain, measured from outside the workers."""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from quotas.models import Account
from runs.models import Run
from runs.services import submit_run
from runs.states import TERMINAL

AGENT = "bench.noop"
POLL_SECONDS = 0.01
PAUSE_SECONDS = 0.02
WAIT_SECONDS = 120.0
_never = threading.Event()


class NoWorker(Exception):
    """No worker ended the benchmark's runs in time. Is one alive? `./run queue_status` shows it."""


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 in milliseconds, rounded to the hundredth."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {name: round(cuts[at] * 1000, 2) for name, at in (("p50_ms", 49), ("p95_ms", 94), ("p99_ms", 98))}


def submit_and_dispatch(account: Account, samples: int, tick: Callable[[], None]) -> dict[str, dict[str, float]]:
    """Submit one run at a time to idle workers. `dispatch` is from the submit call to the handler's first line.

    Both clocks are this machine's: run it where the workers are.
    """
    submits, dispatches = [], []
    for _ in range(samples):
        called, began = time.time(), time.perf_counter()
        run = submit_run(account=account, agent=AGENT, input={}, actor="bench").run
        submits.append(time.perf_counter() - began)
        dispatches.append(_ended(run.pk).result["began"] - called)
        _never.wait(PAUSE_SECONDS)
        tick()
    return {"submit": quantiles(submits), "dispatch": quantiles(dispatches)}


def drain(account: Account, runs: int) -> dict[str, Any]:
    """Queue runs in one transaction, so that all are dispatched at its commit, and time until the last has ended."""
    ids = []
    with transaction.atomic():
        for _ in range(runs):
            ids.append(submit_run(account=account, agent=AGENT, input={}, actor="bench").run.pk)  # noqa: PERF401
    began = time.perf_counter()
    deadline = time.monotonic() + WAIT_SECONDS
    open_states = Run.objects.filter(pk__in=ids).exclude(state__in=[str(state) for state in TERMINAL])
    while open_states.exists():
        if time.monotonic() > deadline:
            raise NoWorker
        _never.wait(POLL_SECONDS)
    seconds = time.perf_counter() - began
    last = Run.objects.filter(pk__in=ids).aggregate(at=Max("finished_at"))["at"]
    return {"runs": runs, "seconds": round(seconds, 3), "runs_per_second": round(runs / seconds, 1), "ended_at": last}


def _ended(run_id: UUID) -> Run:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        run = Run.objects.get(pk=run_id)
        if run.is_terminal:
            return run
        _never.wait(POLL_SECONDS / 5)
    raise NoWorker
