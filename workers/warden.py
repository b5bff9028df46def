"""Keep one command, and end with all it started: `python -I -S warden.py PARENT_PID LIFELINE_FD LINK_FD COMMAND…`.

The command gets a process group of its own and LINK_FD. Everything is killed when the lifeline closes (whoever holds
its other end closed it, or died) or, on Linux, when the thread that forked us ends; also what left the group, because
on Linux orphans of ours come back to us. What a command that ended by itself has left behind is killed likewise. We
end as the command did: with its exit code, or by its signal.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")


def main() -> None:
    parent, lifeline, link = (int(word) for word in sys.argv[1:4])
    os.set_inheritable(lifeline, False)  # noqa: FBT003  the library's way
    bell, ring = os.pipe()
    os.set_blocking(bell, False)
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    # Handlers and not SIG_IGN, which the command would inherit.
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    libc = ctypes.CDLL(None, use_errno=True)
    _die_with_parent(libc, parent, signal.SIGTERM)
    if CHILDREN.exists():
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours = os.getpid()
    command = os.fork()
    if command == 0:
        os.setpgid(0, 0)
        _die_with_parent(libc, ours, signal.SIGKILL)
        os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606  no shell on purpose
    os.close(link)  # the command's alone: its end is seen at the other end
    with contextlib.suppress(OSError):  # it has done so itself, or is gone
        os.setpgid(command, command)
    while not stops and not _has_ended(command):
        if lifeline in select.select([lifeline, bell], [], [])[0]:
            break
        with contextlib.suppress(BlockingIOError):
            os.read(bell, 4096)
    _end_like(_clear(command))


def _die_with_parent(libc: ctypes.CDLL, parent: int, number: int) -> None:
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _has_ended(command: int) -> bool:
    """Whether the command has ended. It stays a zombie: its group keeps its number. Orphans that ended are let go."""
    while True:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None or found.si_pid == command:
            return found is not None
        os.waitpid(found.si_pid, 0)


def _clear(command: int) -> int:
    """Kill all that is left, and return the command's wait status."""
    status = 0
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command, signal.SIGKILL)
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, ended = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if pid == command:
            status = ended


def _children() -> list[int]:
    """Return our children, orphans that came to us among them; [] where the system does not tell."""
    try:
        return [int(word) for word in CHILDREN.read_text(encoding="ascii").split()]
    except OSError:
        return []


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its own
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main()
