"""`sweep`: the sweeper's duties in a process of their own, until SIGTERM; with `--once` one pass.

One process sweeps at a time, workers included: this one waits for its turn. Exit codes: 0 done, 1 a duty failed (with
`--once`), 2 wrong usage, or with `--once` somebody else sweeps, 4 no instance. With `--json`: {held_by_us, holder,
redis, done, failed} of the one pass, or {passes: n} at the end.
"""

import contextlib
import signal
import threading
import time
from types import FrameType
from typing import Any

from django.core.management.base import CommandError, CommandParser
from redis.exceptions import RedisError

from quotas.command import DONE, FAILED, REFUSED, InstanceCommand
from runs import broker
from workers.bulk.runner import BulkRunner
from workers.config import sweep_config
from workers.holder import HOLD_MS
from workers.sweeper import DUTIES, Pass, Sweeper
from workers.units import keep_connections

LOOK_SECONDS = 0.25
WAIT_SECONDS = HOLD_MS / 1000 + 2  # a holder that died is replaced meanwhile


class Command(InstanceCommand):
    help = (
        "Sweep until SIGTERM, as one of the processes that take turns (every worker is one), and work on bulk "
        "operations meanwhile; or make one pass with "
        "--once. Taking over the runs of a lost worker needs two looks half a lease apart: --once does all but that."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
        parser.add_argument("--once", action="store_true", help="one pass, as soon as nobody else holds the lease")
        parser.add_argument("--duty", nargs="+", metavar="NAME", help=f"only these: {', '.join(DUTIES)}")
        parser.set_defaults(account="")

    def run(self, options: dict[str, Any]) -> int:
        names = options["duty"] or DUTIES
        unknown = sorted(set(names) - set(DUTIES))
        if unknown:
            self.usage(f"There is no duty {', '.join(unknown)}. There are: {', '.join(DUTIES)}.")
        if options["once"]:
            names = [name for name in names if name != "takeover"]
            if not names:
                self.usage("Taking over needs two looks half a lease apart: leave --once out.")
        config = sweep_config("sweep")
        sweeper = Sweeper(config, broker.client(), names)
        return self._once(sweeper) if options["once"] else self._until_told(sweeper, BulkRunner(config.consumer))

    # -- one pass --------------------------------------------------------------------------------------------------
    def _once(self, sweeper: Sweeper) -> int:
        done = self._wait_for_turn(sweeper)
        with contextlib.suppress(RedisError):  # it lapses
            sweeper.let_go()
        held = done.held
        if self.as_json:
            told = {"held_by_us": held is None or held.mine, "holder": held.holder if held is not None else None}
            self.emit({**told, "redis": "away" if held is None else "ok", "done": done.done, "failed": done.failed})
        if held is not None and not held.mine:
            if self.as_json:
                raise SystemExit(REFUSED)
            raise CommandError(
                f"{held.holder} sweeps, every few seconds: nothing is left to do here. It is replaced"
                f" {held.left_ms / 1000:.0f} s after its last sign of life.",
                returncode=REFUSED,
            )
        self._tell(done)
        return FAILED if done.failed else DONE

    def _wait_for_turn(self, sweeper: Sweeper) -> Pass:
        pause, deadline = threading.Event(), time.monotonic() + WAIT_SECONDS
        while True:
            done = sweeper.run_once()
            if done.held is None or done.held.mine or time.monotonic() > deadline:
                return done
            pause.wait(LOOK_SECONDS)

    def _tell(self, done: Pass) -> None:
        if self.as_json:
            return
        rows = [(name, "done") for name in done.done] + [(name, f"failed: {why}") for name, why in done.failed.items()]
        self.table(["duty", "what"], rows)
        if done.held is None:
            self.say("Redis is away: only what needs the database alone was done.")
        self.say("Runs of lost workers are taken over by a sweeper that keeps running: it has to look twice.")

    # -- until told ------------------------------------------------------------------------------------------------
    def _until_told(self, sweeper: Sweeper, bulk: BulkRunner) -> int:
        told = threading.Event()

        def stop(_number: int, _frame: FrameType | None) -> None:
            told.set()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        keep_connections()
        sweeper.start()
        bulk.start()
        self.say("Sweeping, whenever it is this process's turn. SIGTERM ends it.")
        told.wait()
        for thread in (bulk, sweeper):
            thread.stop()
        for thread in (bulk, sweeper):
            thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
        if self.as_json:
            self.emit({"passes": sweeper.passes})
        return DONE
