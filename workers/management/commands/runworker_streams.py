"""`manage.py runworker_streams`: run a worker until SIGTERM. Exit codes: 0 after a clean drain, 2 for bad options."""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

import structlog
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workers.config import WorkerConfig, from_options
from workers.port import Port
from workers.shutdown import Shutdown
from workers.units import keep_connections
from workers.worker import Worker

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Run a worker: it executes runs from the ready streams until it is told to stop (SIGTERM drains)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", default="", help="a name for people; default: the host's")
        parser.add_argument("--concurrency", type=int, help="runs at once (default 16)")
        parser.add_argument("--queues", help="comma-separated, in the order in which they are read (default: default)")
        parser.add_argument("--agents", help="comma-separated agents to take (default: all known)")
        parser.add_argument("--port", type=int, help="port of /metrics and /healthz (default: a free one)")
        parser.add_argument("--host", default="127.0.0.1", help="address of that port")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  Django's signature
        try:
            config = from_options(
                name=options["name"],
                queues=_words(options["queues"]),
                agents=_words(options["agents"]),
                concurrency=options["concurrency"],
                port=options["port"],
            )
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        keep_connections()
        try:
            port = Port(options["host"], config.port)
        except OSError as error:
            raise CommandError(f"Port {config.port} cannot be used: {error}", returncode=2) from error
        with asyncio.Runner() as runner:
            if _run(runner.get_loop(), _main(config, port)):
                _leave()


async def _main(config: WorkerConfig, port: Port) -> bool:
    """Run the worker to its end. Returns whether abandoned handlers are still going."""
    shutdown = Shutdown()
    shutdown.listen()
    worker = Worker(config, shutdown)
    port.start(worker)
    try:
        await worker.run(port=port.number)
    finally:
        port.stop()
    return bool(worker.attempts.abandoned)


def _run(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, bool]) -> bool:
    """Run the main task. A SystemExit out of some task of a handler stops the loop, and must not end the worker."""
    task = loop.create_task(main, name="worker")
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:  # signals come by the loop's own handlers
            log.warning("loop.left_by_a_handler", error=type(error).__name__)
    return task.result()


def _leave() -> NoReturn:
    """End the process though handlers are left that do not: everything of ours is stored and signed off."""
    log.warning("worker.left_handlers_behind")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _words(raw: str | None) -> list[str] | None:
    return [part.strip() for part in raw.split(",") if part.strip()] if raw else None
