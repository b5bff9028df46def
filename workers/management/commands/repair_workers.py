"""`repair_workers`: give the runs of this machine's dead workers their next state. Exit codes: quotas/command.py."""

import threading
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from quotas.command import DONE
from quotas.errors import Busy
from runs import broker
from runs.command import RunCommand
from workers.repair import repair_dead

PAUSE_SECONDS = 1.0


class Command(RunCommand):
    help = (
        "Give the runs of worker processes of this machine that are provably dead their next state, at once. "
        "Supervisors and starting workers do it by themselves."
    )

    _pause = threading.Event()  # never set

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="try again for S seconds (0)")

    def find_instance(self) -> None:
        """Nothing yet: with `--wait` a store that is away is waited for."""

    def run(self, options: dict[str, Any]) -> int:
        runs = self._repair(time.monotonic() + options["wait"])
        if self.as_json:
            self.emit({"runs": runs})
        self.say(f"{runs} runs of dead workers were given their next state.")
        return DONE

    def _repair(self, deadline: float) -> int:
        while True:
            try:
                return repair_dead(broker.client(), actor=self.actor)
            except (DatabaseError, RedisError, Busy) as error:
                if time.monotonic() > deadline:
                    super().find_instance()
                    raise CommandError(f"Not everything could be repaired: {error}") from error
            connection.close()
            self._pause.wait(PAUSE_SECONDS)
