"""Become another program that dies with its parent: `python -I -S tether.py PARENT_PID SIGNAL COMMAND…`.

A program of its own instead of Popen's `preexec_fn`, which may deadlock beside threads and warns about it from
Python 3.12 on. The pid stays the same across the exec. On Linux the kernel sends SIGNAL when the thread that forked
ends; elsewhere nothing does.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, death_signal = int(sys.argv[1]), int(sys.argv[2])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606  no shell on purpose


if __name__ == "__main__":
    main()
