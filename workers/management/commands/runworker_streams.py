"""`manage.py runworker_streams`: run a worker, or several under one parent, until SIGTERM.

Exit codes: 0 after a clean drain, 1 when a worker under the parent did not end well, 2 for bad options.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, NoReturn

import structlog
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workers.config import NAME_MAX, WorkerConfig, from_options
from workers.fleet import run_fleet
from workers.port import Port
from workers.shutdown import Shutdown
from workers.units import keep_connections
from workers.worker import Worker

log = structlog.get_logger(__name__)
PROCESSES_MAX = 100


class Command(BaseCommand):
    help = "Run a worker: it executes runs from the ready streams until it is told to stop (SIGTERM drains)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--name", default="", help="a name for people; default: the host's")
        parser.add_argument("--concurrency", type=int, help="runs at once (default 16)")
        parser.add_argument("--queues", help="comma-separated, in the order in which they are read (default: default)")
        parser.add_argument("--agents", help="comma-separated agents to take (default: all known)")
        parser.add_argument("--port", type=int, help="port of /metrics and /healthz (default: a free one)")
        parser.add_argument("--host", default="127.0.0.1", help="address of that port")
        parser.add_argument("--processes", type=int, default=1, metavar="N", help="worker processes under one (1)")
        parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  Django's signature
        try:
            config = from_options(
                name=options["name"],
                queues=_words(options["queues"]),
                agents=_words(options["agents"]),
                concurrency=options["concurrency"],
                port=options["port"],
            )
            fleet = _fleet(config, options["processes"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error), returncode=2) from error
        if len(fleet) > 1:
            _try_ports(options["host"], fleet)
            if code := run_fleet(fleet, _shared_arguments(options)):
                sys.exit(code)
            return
        keep_connections()
        try:
            port = Port(options["host"], config.port)
        except OSError as error:
            raise _unusable(config, error) from error
        with asyncio.Runner() as runner:
            if _run(runner.get_loop(), _main(config, port, is_supervised=options["supervised"])):
                _leave()


def _try_ports(host: str, fleet: list[WorkerConfig]) -> None:
    """Refuse to start where the children could not: they would try again and again."""
    for config in fleet:
        try:
            socket.create_server((host, config.port)).close()
        except OSError as error:
            raise _unusable(config, error) from error


def _unusable(config: WorkerConfig, error: OSError) -> CommandError:
    return CommandError(f"Port {config.port} cannot be used: {error}", returncode=2)


def _fleet(config: WorkerConfig, processes: int) -> list[WorkerConfig]:
    """Return a configuration for each process: `NAME-1` …, on ports that follow each other where one is given."""
    if not 1 <= processes <= PROCESSES_MAX:
        raise ImproperlyConfigured(f"--processes must be 1 to {PROCESSES_MAX}, not {processes}.")
    if processes == 1:
        return [config]
    numbers = range(1, processes + 1)
    name = config.name[: NAME_MAX - len(f"-{processes}")]  # a host's name may be long
    return [
        replace(config, name=f"{name}-{number}", port=config.port and config.port + number - 1, consumer="")
        for number in numbers
    ]


def _shared_arguments(options: dict[str, Any]) -> list[str]:
    """Return the options that every process gets as they were given."""
    names = ("concurrency", "queues", "agents", "host")
    return [f"--{name}={options[name]}" for name in names if options[name] is not None]


async def _main(config: WorkerConfig, port: Port, *, is_supervised: bool) -> bool:
    """Run the worker to its end. Returns whether abandoned handlers are still going."""
    shutdown = Shutdown()
    shutdown.listen()
    if is_supervised:
        _listen_to_supervisor(shutdown)
    worker = Worker(config, shutdown)
    port.start(worker)
    try:
        await worker.run(port=port.number)
    finally:
        port.stop()
    return bool(worker.attempts.abandoned)


def _listen_to_supervisor(shutdown: Shutdown) -> None:
    """SIGTERM asks for the drain however often it comes, SIGINT for the end at once.

    A service manager that signals every process, and the end of the parent, must not count as a second signal.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, shutdown.drain_for_good)
    loop.add_signal_handler(signal.SIGINT, _at_once, shutdown)


def _at_once(shutdown: Shutdown) -> None:
    shutdown.drain_for_good()
    shutdown.at_once.set()


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
