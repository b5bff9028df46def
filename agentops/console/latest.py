"""What a page reads for everybody: once in so many seconds a process, however many look."""

import threading
import time
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """The last answer of `read`, at most `seconds` old. Threads that ask at once share a read; a failed one is none."""

    _all: ClassVar[list["Latest[object]"]] = []

    def __init__(self, read: Callable[[], T], seconds: float) -> None:
        self._read, self._seconds = read, seconds
        self._lock = threading.Lock()
        self._known: tuple[float, T] | None = None
        Latest._all.append(self)  # type: ignore[arg-type]

    def get(self) -> T:
        """Return what is known, read again if it is too old. Raises what `read` raises."""
        with self._lock:
            if self._known is None or time.monotonic() - self._known[0] > self._seconds:
                answer = self._read()
                self._known = (time.monotonic(), answer)
            return self._known[1]

    @classmethod
    def forget(cls) -> None:
        """Have the next question to each of them read."""
        for one in cls._all:
            one.drop()

    def drop(self) -> None:
        """Know nothing any more."""
        self._known = None
