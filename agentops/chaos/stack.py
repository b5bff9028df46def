"""The throwaway instance: servers of its own behind proxies, and `up` with a web process and workers."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from django.conf import settings

from agentops.chaos.proxy import Proxy
from agentops.chaos.servers import CannotStart, PostgresServer, RedisServer, free_port

FOLDER = "AGENTOPS_CHAOS_FOLDER"
LEASE_SECONDS = 5.0
HANDLER_GRACE_SECONDS = 3.0
UP_SECONDS = 120.0
DATABASE = "chaos"
LONE = "lone"


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything of the instance is. Made once, before the environment is set."""

    folder: Path
    database: str  # "sqlite" or "postgres"
    redis: str  # "valkey" or "redis"
    ports: dict[str, int]

    @classmethod
    def make(cls, folder: Path, *, database: str, redis: str) -> "Plan":
        names = ("web", "redis", "redis_proxy", "database", "database_proxy")
        return cls(folder, database, redis, {name: free_port() for name in names})

    def write(self) -> None:
        facts = {"database": self.database, "redis": self.redis, "ports": self.ports}
        (self.folder / "plan.json").write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Plan":
        return cls(folder, **json.loads((folder / "plan.json").read_text(encoding="utf-8")))

    @property
    def probe_log(self) -> Path:
        return self.folder / "probes.jsonl"

    def environment(self, *, through_proxies: bool) -> dict[str, str]:
        """Return what points a process at the instance: past the proxies for ours, through them for its own."""
        behind = "_proxy" if through_proxies else ""
        database = f"sqlite:///{quote(str(self.folder / 'chaos.sqlite3'))}"
        if self.database == "postgres":
            database = f"postgres://agentops@127.0.0.1:{self.ports[f'database{behind}']}/{DATABASE}"
        return {
            **{name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
            FOLDER: str(self.folder),
            "DATABASE_URL": database,
            "REDIS_URL": f"redis://127.0.0.1:{self.ports[f'redis{behind}']}/0",
            "AGENTOPS_DATA_DIR": str(self.folder / "data"),
            "AGENTOPS_PREFIX": "chaos",
            "AGENTOPS_PROBE_AGENTS": "1",
            "AGENTOPS_PROBE_LOG": str(self.probe_log),
            "AGENTOPS_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
            "AGENTOPS_SWEEP_SECONDS": "1",
            "AGENTOPS_HEARTBEAT_SECONDS": "2",
            "AGENTOPS_HANDLER_GRACE_SECONDS": f"{HANDLER_GRACE_SECONDS:g}",
            "AGENTOPS_DRAIN_GRACE_SECONDS": "20",
            "AGENTOPS_BACKLOG_LIMIT": "100000",
        }


class Stack:
    """The instance at work. `workers` and `web` are looked up anew each time: they are restarted under other pids."""

    def __init__(self, plan: Plan, *, workers: int) -> None:
        self.plan = plan
        ports = plan.ports
        self.redis = RedisServer(plan.folder / "redis", ports["redis"], RedisServer.find(plan.redis))
        self.redis_proxy = Proxy(ports["redis_proxy"], ports["redis"])
        self.database = PostgresServer(plan.folder / "postgres", ports["database"]) if self.has_server else None
        self.database_proxy = Proxy(ports["database_proxy"], ports["database"]) if self.has_server else None
        self.url = f"http://127.0.0.1:{ports['web']}"
        self.api_key = ""
        self._workers = workers
        self._up: subprocess.Popen[str] | None = None
        self._lone: subprocess.Popen[bytes] | None = None

    @property
    def has_server(self) -> bool:
        """Whether the database is a server, which can be killed, frozen and cut off; SQLite can only be locked."""
        return self.plan.database == "postgres"

    def start(self) -> None:
        """Start everything and wait until it is ready. Raises CannotStart."""
        self.redis.start()
        self.redis_proxy.start()
        if self.database is not None and self.database_proxy is not None:
            self.database.start()
            self.database.create_database(DATABASE)
            self.database_proxy.start()
        command = [sys.executable, "manage.py", "up", "--json", "--no-model", "--port", str(self.plan.ports["web"])]
        command += ["--data-dir", str(self.plan.folder / "data"), "--workers", str(self._workers)]
        with (self.plan.folder / "up.log").open("w", encoding="utf-8") as log:
            self._up = subprocess.Popen(  # noqa: S603
                command,
                cwd=settings.BASE_DIR,
                env=self.plan.environment(through_proxies=True),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        line = self._up.stdout.readline() if self._up.stdout else ""
        if not line:
            raise CannotStart(f"`up` did not become ready; see {self.plan.folder / 'up.log'}.")
        self.api_key = json.loads(line)["api_key"]
        self.tend()

    def tend(self) -> None:
        """Start the worker that no supervisor looks after, unless it runs: only its lease tells of its death."""
        if self._lone is not None and self._lone.poll() is None:
            return
        with (self.plan.folder / "lone.log").open("ab") as log:
            self._lone = subprocess.Popen(  # noqa: S603
                [sys.executable, "manage.py", "runworker_streams", "--name", LONE],
                cwd=settings.BASE_DIR,
                env=self.plan.environment(through_proxies=True),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Stop everything: in order where it can be, by force where not."""
        self.heal()
        for process in (self._lone, self._up):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        for proxy in (self.redis_proxy, self.database_proxy):
            if proxy is not None:
                proxy.stop()
        self.redis.kill()
        if self.database is not None:
            self.database.kill()

    def heal(self) -> None:
        """Take back every fault that lasts: frozen processes go on, cut wires are whole, dead servers are started."""
        for proxy in (self.redis_proxy, self.database_proxy):
            if proxy is not None:
                proxy.heal()
        for server in (self.redis, self.database):
            if server is None or server.process is None:
                continue
            server.thaw()
            if server.process.poll() is not None:
                server.start()
        for pid in [*self.workers().values(), *self.web()]:
            send(pid, signal.SIGCONT)

    def pids(self) -> dict[str, int]:
        path = self.plan.folder / "data" / "instance.json"
        try:
            found: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))["pids"]
        except (OSError, ValueError, KeyError):
            return {}
        return found

    def workers(self) -> dict[str, int]:
        """Return the pids of the workers by name: the supervised ones, and the lone one."""
        found = {name: pid for name, pid in self.pids().items() if name.startswith("worker-")}
        if self._lone is not None and self._lone.poll() is None:
            found[LONE] = self._lone.pid
        return found

    def web(self) -> list[int]:
        return [pid for name, pid in self.pids().items() if name == "web"]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
