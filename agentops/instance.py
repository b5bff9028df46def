"""An instance's data folder: its lock, its secret key, and `instance.json`, where other commands read the rest."""

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

LOCK_WAIT_SECONDS = 3.0  # a broker whose supervisor was killed needs a moment to go


class FolderInUse(Exception):
    """Another `up` holds the folder. The message names it."""


def open_folder(path: Path) -> Path:
    """Make the folder (0700) with what belongs in it and return its absolute path."""
    folder = path.expanduser().absolute()
    for part in (folder, folder / "logs", folder / "valkey", folder / "files", folder / "static"):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def lock(folder: Path) -> int:
    """Take the folder's lock and return its open descriptor, which the broker inherits. Raises FolderInUse.

    The lock belongs to the open file, so it is free only when the supervisor and its broker are both gone.
    """
    path = folder / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    pause = threading.Event()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = path.read_text(encoding="utf-8").strip() or "unknown"
                os.close(descriptor)
                raise FolderInUse(
                    f"{folder} is in use by process {holder}. Stop that one first, or choose another --data-dir."
                ) from None
            pause.wait(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def ensure_secret_key(folder: Path) -> None:
    """Make the folder's secret key once, readable by its owner only."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(folder / "secret_key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_urlsafe(50))


def write(folder: Path, facts: dict[str, Any]) -> None:
    """Replace `instance.json` as a whole: a reader sees the old facts or the new ones."""
    fresh = folder / "instance.json.new"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=2)
    fresh.replace(folder / "instance.json")


def absolute_apps(places: Iterable[str]) -> list[str]:
    """Return `AGENTOPS_APPS` entries as they hold in any working folder: paths that exist made absolute."""
    paths = ((place, Path(place).expanduser()) for place in places)
    return [str(path.absolute()) if path.exists() else place for place, path in paths]


def sqlite_url(folder: Path) -> str:
    return "sqlite:///" + quote(str(folder / "agentops.sqlite3"))
