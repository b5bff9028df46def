"""`bootstrap_instance`: what `up` needs the database for, in a process that has the instance's settings."""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from agentops import first_start
from agentops.embedded import answers_http
from quotas.database import later
from quotas.prices import install_default_prices
from quotas.services import ensure_account
from runs import broker
from runs.command import without_secret
from workers.models import WorkerProcess

READY_SECONDS = 60.0


class Command(BaseCommand):
    """`prepare` by hand; else a dialogue by lines with `up`.

    A line is answered by `prepared`, and then {"web", "host", "workers"} by the credentials.
    """

    help = "Prepare the database of an instance: migrate, default account, prices. `up` does it by itself."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "step", nargs="?", choices=["prepare"], help="what to do; nothing: wait for the lines of `up`"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        try:
            if options["step"] == "prepare":
                self._prepare()
                self._answer("prepared")
                return
            if sys.stdin.readline():
                self._prepare()
                self._answer("prepared")
            if line := sys.stdin.readline():
                wanted = json.loads(line)
                _await_processes(wanted["web"], wanted["host"], set(wanted["workers"]))
                self._answer(json.dumps(first_start.credentials()))
        except DatabaseError as error:
            address = without_secret(settings.DATABASE_URL)
            raise CommandError(f"The database of DATABASE_URL ({address}) did not do its part: {error}") from error

    def _answer(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _prepare(self) -> None:
        try:
            broker.client().ping()
        except broker.RedisError as error:
            raise CommandError(f"REDIS_URL names a server that does not answer: {error}") from error
        call_command("migrate", interactive=False, verbosity=0)
        ensure_account("default")
        install_default_prices()


def _await_processes(web: str, host: str, workers: set[int]) -> None:
    # As if a proxy had received it over HTTPS: a redirect there is not an answer.
    headers = {"Host": host, "X-Forwarded-Proto": "https"}
    _await("The web process", lambda: answers_http(f"{web}/healthz", headers))
    _await("A worker", lambda: workers <= _working(workers))


def _await(who: str, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    pause = threading.Event()
    while not is_ready():
        if time.monotonic() > deadline:
            raise CommandError(f"{who} was not ready after {READY_SECONDS:.0f} s.")
        pause.wait(0.1)


def _working(pids: set[int]) -> set[int]:
    rows = WorkerProcess.objects.filter(pid__in=pids, stopped_at=None, heartbeat_at__gte=later(-READY_SECONDS))
    return set(rows.values_list("pid", flat=True))
