"""Become another program that dies with its parent: `python -I -S spawn.py PARENT_PID UID GID COMMAND…`.

A program of its own instead of Popen's `preexec_fn`: that one may deadlock in a process with threads, and warns
about it from Python 3.12 on. UID and GID of -1 keep the caller's. The pid stays the same across the exec.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, uid, gid = (int(word) for word in sys.argv[1:4])
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    # After the change of user, which clears it.
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    os.execvp(sys.argv[4], sys.argv[4:])


if __name__ == "__main__":
    main()
