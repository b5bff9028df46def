"""The log file of a child process: written by the child itself, copied line by line to our stderr with a prefix.

The child holds the file, not a pipe: a supervisor that is paused or gone never blocks it.
"""

import contextlib
import os
import select
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

FILE_MAX = 10 * 1024 * 1024  # a larger file becomes `<name>.log.1`
LAG_MAX = 1024 * 1024  # what stderr cannot take in time is left to the file
READ_BYTES = 64 * 1024
PIPE_BYTES = 4096  # what a writable pipe always takes


class ChildLog:
    """One log file. `tail()` is for messages, `pump()` copies what is new."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._began = self._shown = 0
        self.rotate()
        self._began = self._shown = self._size()  # what is before belongs to an earlier start

    @property
    def where(self) -> str:
        """Return the end of a sentence: where to read on."""
        return f" Its log: {self.path}"

    def open(self) -> BinaryIO:
        """Return the file for a child to write to; the caller closes it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.open("ab")

    def rotate(self) -> None:
        """Set a large file aside. Copied and cut, because the child goes on appending to the same file."""
        if self._size() > FILE_MAX:
            shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
            os.truncate(self.path, 0)
            self._began = self._shown = 0

    def tail(self, lines: int = 6) -> str:
        """Return the last lines written since our start, for the message about a child that failed."""
        with self.path.open("rb") as file:
            file.seek(max(self._began, self._size() - READ_BYTES))
            text = file.read().decode("utf-8", errors="replace")
        return "\n".join(text.strip().splitlines()[-lines:])

    def pump(self, write: Callable[[bytes], bool]) -> None:
        """Copy complete new lines through `write`, which answers False when it can take no more now."""
        size = self._size()
        if size < self._shown:
            self._began = self._shown = 0
        if size - self._shown > LAG_MAX:
            write(f"[{self.name}] … {size - self._shown} bytes not shown, see {self.path}\n".encode())
            self._shown = size
        if size == self._shown:
            return
        with self.path.open("rb") as file:
            file.seek(self._shown)
            block = file.read(READ_BYTES)
        complete = block.rfind(b"\n") + 1 or (len(block) if len(block) == READ_BYTES else 0)
        for line in block[:complete].splitlines(keepends=True):
            if not write(f"[{self.name}] ".encode() + line):
                return
            self._shown += len(line)

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


class OwnStderr:
    """In the place of a log: the child writes to our own stdout and stderr, and nothing is copied."""

    where = ""

    def open(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def rotate(self) -> None:
        pass

    def pump(self, write: Callable[[bytes], bool]) -> None:
        pass

    def tail(self) -> str:
        return "see above"


def write_to_stderr(line: bytes) -> bool:
    """Write without ever blocking: a terminal held by Ctrl+S must not stop the supervision."""
    try:
        out = sys.stderr.fileno()
        for start in range(0, len(line), PIPE_BYTES):
            if not select.select([], [out], [], 0 if start == 0 else 1)[1]:
                return start > 0
            os.write(out, line[start : start + PIPE_BYTES])
    except (OSError, ValueError):
        return True  # nobody reads it any more; the file has it
    return True
