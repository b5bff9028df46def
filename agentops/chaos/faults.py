"""The faults: what each breaks, for how long, and how it is taken back."""

import os
import random
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from agentops.chaos.proxy import Proxy
from agentops.chaos.stack import LEASE_SECONDS, LONE, Stack, send
from runs import broker, keys
from runs.controls import queue_names

NOTHING: Callable[[], None] = lambda: None  # noqa: E731


@dataclass(slots=True)
class Injected:
    """A fault that landed: how many runs were running then, and what takes it back after `seconds`."""

    kind: str
    hit: int = 0
    seconds: float = 0.0
    undo: Callable[[], None] = NOTHING
    pids: list[int] = field(default_factory=list)  # of the processes it struck
    frozen: bool = False


class Faults:
    """All kinds of faults that a stack can have. `inject` lets one land."""

    def __init__(self, stack: Stack, dice: random.Random) -> None:
        self._stack = stack
        self._dice = dice
        self.kinds: dict[str, Callable[[], Injected]] = {
            "kill a worker": self._kill_worker,
            "freeze a worker": self._freeze_worker,
            "drain a worker": self._drain_worker,
            "kill the web": self._kill_web,
            "kill Redis": self._kill_redis,
            "freeze Redis": self._freeze_redis,
            "empty Redis": self._flush,
            "flush the scripts": self._flush_scripts,
            "destroy the groups": self._destroy_groups,
            "trim the ready streams": self._trim,
            "delete the ready streams": self._delete_streams,
            "cut Redis off": lambda: self._cut(stack.redis_proxy, "cut Redis off"),
            "slow Redis down": lambda: self._slow(stack.redis_proxy, "slow Redis down"),
        }
        if stack.database is None:
            self.kinds["lock the database"] = self._lock_sqlite
        else:
            self.kinds |= {
                "kill the database": self._kill_database,
                "freeze the database": self._freeze_database,
                "cut the database off": lambda: self._cut(stack.database_proxy, "cut the database off"),
                "slow the database down": lambda: self._slow(stack.database_proxy, "slow the database down"),
            }

    def inject(self, kind: str) -> Injected:
        return self.kinds[kind]()

    # -- processes -------------------------------------------------------------------------------------------------
    def _kill_worker(self) -> Injected:
        pid = self._a_worker()
        os.kill(pid, signal.SIGKILL)
        return Injected("kill a worker", pids=[pid])

    def _freeze_worker(self) -> Injected:
        pid = self._a_worker()
        os.kill(pid, signal.SIGSTOP)
        seconds = self._dice.uniform(0.5, 3) * LEASE_SECONDS
        return Injected("freeze a worker", 0, seconds, lambda: send(pid, signal.SIGCONT), [pid], frozen=True)

    def _drain_worker(self) -> Injected:
        """Ask the lone worker to end, as a deployment does; every other time it may not finish what it runs."""
        pid = self._stack.workers()[LONE]
        os.kill(pid, signal.SIGTERM)
        again = signal.SIGTERM if self._dice.random() < 0.5 else signal.SIGCONT
        return Injected("drain a worker", 0, self._dice.uniform(0.5, 3), lambda: send(pid, again), [pid])

    def _a_worker(self) -> int:
        workers = self._stack.workers()
        return workers[self._dice.choice(sorted(workers))]

    def _kill_web(self) -> Injected:
        pids = self._stack.web()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return Injected("kill the web", pids=pids)

    # -- Redis -----------------------------------------------------------------------------------------------------
    def _kill_redis(self) -> Injected:
        self._stack.redis.kill()
        return Injected("kill Redis", 0, self._dice.uniform(0.5, 3), self._stack.redis.start)

    def _freeze_redis(self) -> Injected:
        self._stack.redis.freeze()
        return Injected("freeze Redis", 0, self._dice.uniform(1, 7), self._stack.redis.thaw)

    def _flush(self) -> Injected:
        broker.client().flushall()
        return Injected("empty Redis")

    def _flush_scripts(self) -> Injected:
        broker.client().script_flush()
        return Injected("flush the scripts")

    def _destroy_groups(self) -> Injected:
        for name in _ready_streams():
            if broker.client().exists(name):
                broker.client().xgroup_destroy(name, keys.GROUP)
        return Injected("destroy the groups")

    def _trim(self) -> Injected:
        for name in _ready_streams():
            broker.client().xtrim(name, maxlen=0, approximate=False)
        return Injected("trim the ready streams")

    def _delete_streams(self) -> Injected:
        broker.client().delete(*_ready_streams())
        return Injected("delete the ready streams")

    # -- wires -----------------------------------------------------------------------------------------------------
    def _cut(self, proxy: Proxy | None, kind: str) -> Injected:
        assert proxy is not None  # noqa: S101  only stacks with that server have the kind
        if self._dice.random() < 0.5:
            proxy.cut()
        else:
            proxy.stall()
        return Injected(kind, 0, self._dice.uniform(0.5, 5), proxy.heal)

    def _slow(self, proxy: Proxy | None, kind: str) -> Injected:
        assert proxy is not None  # noqa: S101  as above
        proxy.slow(self._dice.uniform(0.01, 0.1))
        return Injected(kind, 0, self._dice.uniform(2, 5), proxy.heal)

    # -- database --------------------------------------------------------------------------------------------------
    def _kill_database(self) -> Injected:
        assert self._stack.database is not None  # noqa: S101
        self._stack.database.kill()
        return Injected("kill the database", 0, self._dice.uniform(0.5, 2), self._stack.database.start)

    def _freeze_database(self) -> Injected:
        assert self._stack.database is not None  # noqa: S101
        self._stack.database.freeze()
        return Injected("freeze the database", 0, self._dice.uniform(1, 6), self._stack.database.thaw)

    def _lock_sqlite(self) -> Injected:
        """Hold the only write lock there is, as a backup or a careless shell does."""
        connection = sqlite3.connect(
            self._stack.plan.folder / "chaos.sqlite3", timeout=10, isolation_level=None, check_same_thread=False
        )
        connection.execute("BEGIN IMMEDIATE")

        def let_go() -> None:
            connection.rollback()
            connection.close()

        return Injected("lock the database", 0, self._dice.uniform(1, 5), let_go)


def _ready_streams() -> list[str]:
    return [name for queue in queue_names() for name in keys.ready_streams(queue)]
