"""One trial: load, faults while at least some runs are running, a calm end, and what the rows say then."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from agentops import invariants
from agentops.chaos import findings
from agentops.chaos.faults import Faults, Injected
from agentops.chaos.findings import Report, pid_of
from agentops.chaos.load import Clients
from agentops.chaos.servers import until
from agentops.chaos.stack import Stack
from quotas.models import Account
from runs import broker, keys
from runs.controls import queue_names
from runs.models import Run
from runs.states import TERMINAL, RunState

RUNNING_LEAST = 5
CALM_SECONDS = 300.0
TELL_SECONDS = 10.0


class Trial:
    """Runs a trial on a stack that is up. `say` is told how it goes."""

    def __init__(self, stack: Stack, *, runs: int, seconds: float, seed: int, say: Callable[[str], None]) -> None:
        self._stack = stack
        self._runs = runs
        self._seconds = seconds
        self._say = say
        self._dice = random.Random(seed)  # noqa: S311  repeatable, not secret
        self._faults = Faults(stack, self._dice)
        self._clients = Clients(stack, runs=runs, seconds=seconds * 0.95, dice=random.Random(seed + 1))  # noqa: S311
        self._injected: list[tuple[float, Injected]] = []  # wall time, fault
        self._lasting: list[tuple[float, Injected]] = []  # monotonic time of its end, fault
        self.report = Report(seed, servers_of())

    def run(self) -> Report:
        began = time.monotonic()
        Account.objects.update(limit=10**15, max_in_flight=10**6)
        self._clients.start()
        self._break_things(began + self._seconds)
        self._say("No more faults. Waiting for every run to end.")
        self._heal()
        self._wait_for_the_end()
        self._clients.stop()
        findings.look(self.report, self._clients.load, self._injected, self._stack.plan.probe_log, self._left())
        self._count_accepted()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    # -- breaking --------------------------------------------------------------------------------------------------
    def _break_things(self, end: float) -> None:
        kinds, told = self._in_turn(), 0.0
        due = time.monotonic() + 5
        for _ in until(end - time.monotonic(), 0.1):
            self._undo(time.monotonic())
            self._stack.tend()
            if time.monotonic() >= due and not self._lasting:
                running = self._running()
                if running >= RUNNING_LEAST:
                    self._inject(next(kinds), running)
                    due = time.monotonic() + self._dice.uniform(1.5, 3.5)
            # Not while a fault lasts: a frozen database answers no query, and it is this loop that thaws it.
            if time.monotonic() - told > TELL_SECONDS and not self._lasting:
                told = time.monotonic()
                self._tell(end - told)

    def _in_turn(self) -> Iterator[str]:
        """Yield the kinds in a shuffled order, every kind once before any comes again."""
        while True:
            kinds = sorted(self._faults.kinds)
            self._dice.shuffle(kinds)
            yield from kinds

    def _inject(self, kind: str, running: int) -> None:
        at, owned = time.time(), self._running_by_pid()
        try:
            fault = self._faults.inject(kind)
        except (OSError, LookupError, RedisError) as error:  # nothing to break just now: a worker that starts, say
            self._say(f"  {kind}: not now ({error})")
            return
        strikes_all = not fault.pids or kind == "kill the web"
        fault.hit = running if strikes_all else sum(owned[pid] for pid in fault.pids)
        lasts = f", {fault.seconds:.1f} s" if fault.seconds else ""
        self._say(f"  {kind}: hit {fault.hit} of {running} running runs{lasts}")
        self._injected.append((at, fault))
        self._lasting.append((time.monotonic() + fault.seconds, fault))

    def _undo(self, now: float) -> None:
        for one in [one for one in self._lasting if one[0] <= now]:
            self._lasting.remove(one)
            one[1].undo()

    def _heal(self) -> None:
        self._undo(float("inf"))
        self._stack.heal()

    def _running(self) -> int:
        try:
            return Run.objects.filter(state=RunState.RUNNING).count()
        except DatabaseError:
            connection.close()
            return 0

    def _running_by_pid(self) -> Counter[int]:
        owners = Run.objects.filter(state=RunState.RUNNING).values_list("worker", flat=True)
        return Counter(pid_of(worker) for worker in owners)

    def _tell(self, left: float) -> None:
        load = self._clients.load
        self._say(
            f"{len(load.accepted)} runs accepted, {self._running()} running, {len(self._injected)} faults; "
            f"{max(0.0, left):.0f} s to go"
        )

    # -- the end ---------------------------------------------------------------------------------------------------
    def _wait_for_the_end(self) -> None:
        told = time.monotonic()
        for _ in until(CALM_SECONDS, 0.5):
            left = Run.objects.exclude(state__in=[str(state) for state in TERMINAL]).count()
            if self._clients.done and not left and not self._left():
                return
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                self._say(f"{left} runs have not ended")

    def _left(self) -> dict[str, int]:
        streams = [name for queue in queue_names() for name in keys.ready_streams(queue)]
        return invariants.left_in_queues(broker.client(), [*streams, *settings.EXTRA_STREAMS], queue_names())

    def _count_accepted(self) -> None:
        accepted = len(self._clients.load.accepted)
        if accepted != self._runs:
            self.report.problems.append(f"{accepted} runs were accepted of {self._runs}")


def servers_of() -> list[str]:
    """Return the servers by their own words."""
    info = broker.client().info("server")
    name = info.get("server_name", "redis")
    version = info.get("valkey_version") or info.get("redis_version")
    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_version()" if connection.vendor == "sqlite" else "SELECT version()")
        database = str(cursor.fetchone()[0])
    return [database if connection.vendor != "sqlite" else f"SQLite {database}", f"{name} {version}"]
