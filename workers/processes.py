"""Which process is which on one machine: the proof that a worker's process is gone (protocol 8.4).

A pid alone proves nothing: it is used again, and means something else in another container or after another boot. So
a process is known by boot, namespaces, pid and start time together. Linux only; elsewhere nothing is ever proved.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from workers.models import WorkerProcess

PROC = Path("/proc")
STATE, THREADS, STARTED = 0, 17, 19  # fields of /proc/<pid>/stat after the name


@dataclass(frozen=True, slots=True)
class Identity:
    """What is stored of a process. `started` is in clock ticks after the boot. Empty where it cannot be known."""

    boot_id: str = ""
    pid_namespace: str = ""
    started: int = 0


def identity(pid: int | None = None) -> Identity:
    """Return what tells a process (default: this one) from every other one."""
    place = _place()
    fields = _stat(os.getpid() if pid is None else pid)
    return Identity(*place, int(fields[STARTED])) if place and fields else Identity()


def resident_memory() -> int | None:
    """Return the bytes of memory this process has; None where the system does not say. Its children's are not in it."""
    try:
        pages = int((PROC / "self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _place() -> tuple[str, str] | None:
    """Return (boot, namespaces) in which this process's pids and start times mean something.

    The time namespace belongs to it: start times are shown as its clock has them.
    """
    try:
        if os.readlink(PROC / "self") != str(os.getpid()):  # the /proc of another namespace
            return None
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        pids = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return None
    try:
        times = os.readlink(PROC / "self/ns/time")
    except OSError:  # a kernel without them
        times = ""
    return boot, f"{pids} {times}".strip()


def on_this_machine() -> dict[str, str] | None:
    """Return the condition for the rows about which something can be proved from here; None if there is no such row."""
    place = _place()
    return {"boot_id": place[0], "pid_namespace": place[1]} if place else None


def is_provably_dead(row: WorkerProcess) -> bool:
    """Whether the row's process existed here and does not any more. False wherever there is a doubt."""
    if not row.pid_started or _place() != (row.boot_id, row.pid_namespace):
        return False
    return not _may_exist(row.pid, row.pid_started)


def _may_exist(pid: int, started: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's process: it exists
    fields = _stat(pid)
    if fields is None:
        return True  # hidden from us, or gone in this moment
    if int(fields[STARTED]) != started:
        return False  # the pid was used again
    # One that only waits to be reaped does nothing any more, unless threads of it are left.
    return fields[STATE] not in {"Z", "X"} or int(fields[THREADS]) > 1


def _stat(pid: int) -> list[str] | None:
    """Return the fields after the name; the name may contain spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
