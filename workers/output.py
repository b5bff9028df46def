"""What a handler's process prints: lines of the worker's log, so many and so long at most, and the last ones kept."""

import time
from collections import deque

import structlog

log = structlog.get_logger(__name__)
LINE_BYTES = 2000  # a longer line is logged in pieces
BURST_LINES, LINES_A_SECOND = 500, 20.0
TAIL_LINES = 40


class Output:
    """The output of one process, stdout and stderr together, as it comes in."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._part = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._left_out = 0
        self._allowance = float(BURST_LINES)
        self._counted_at = time.monotonic()

    def feed(self, block: bytes) -> None:
        """Take what was read; empty at the end of the output."""
        held = self._part + block
        if not block:
            held += b"\n"
        *lines, self._part = held.split(b"\n")
        for line in lines:
            self._take(line)
        while len(self._part) >= LINE_BYTES:
            self._take(self._part[:LINE_BYTES])
            self._part = self._part[LINE_BYTES:]
        if not block:
            self._tell_left_out()

    def tail(self) -> str:
        """Return the last lines, for the message about a process that died."""
        return "\n".join(self._tail)

    def _take(self, line: bytes) -> None:
        for start in range(0, len(line), LINE_BYTES):
            text = line[start : start + LINE_BYTES].decode("utf-8", errors="replace").rstrip()
            if text:
                self._tail.append(text)
                self._log(text)

    def _log(self, text: str) -> None:
        now = time.monotonic()
        self._allowance = min(BURST_LINES, self._allowance + (now - self._counted_at) * LINES_A_SECOND)
        self._counted_at = now
        if self._allowance < 1:
            self._left_out += 1
            return
        self._allowance -= 1
        self._tell_left_out()
        log.info("handler.output", run_id=self._run_id, line=text)

    def _tell_left_out(self) -> None:
        if self._left_out:
            log.warning("handler.output_left_out", run_id=self._run_id, lines=self._left_out)
            self._left_out = 0
