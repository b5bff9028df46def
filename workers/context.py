"""What a handler sees: `ctx`. Plain calls are buffered; only `artifact`, `open_file` and `flush` wait for anything."""

from dataclasses import dataclass
from typing import Any, NoReturn, Protocol
from uuid import UUID

from runs.outcomes import BadOutput, InvalidInput
from runs.text import clean_text
from workers.event_buffer import EventBuffer
from workers.usage import Usage

RESERVED = frozenset({"gap", "output.rollback", "budget.warning", "budget.extended"})  # the service's to say
TEXT_MAX = 256 * 1024  # letters of output text that an attempt keeps, for the case that it is stopped


@dataclass(frozen=True, slots=True)
class InputFile:
    """An uploaded file as a handler gets it."""

    name: str
    content_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """Which attempt of which run this is."""

    run_id: UUID
    agent: str
    attempt: int
    fence: int
    worker: str
    account_id: int
    metadata: dict[str, Any]
    request_id: str = ""  # of the submit

    @property
    def log_fields(self) -> dict[str, Any]:
        """What every log line of this attempt carries, also those of the agent and of the libraries it calls."""
        fields = {"run_id": str(self.run_id), "agent": self.agent, "attempt": self.attempt, "fence": self.fence}
        return fields | ({"request_id": self.request_id} if self.request_id else {})


class Ports(Protocol):
    """What a context needs from outside: the worker's real ones, or those of `agentops.testing`."""

    async def store_artifact(self, name: str, data: bytes, content_type: str) -> dict[str, Any]: ...

    async def open_file(self, file_id: UUID) -> InputFile: ...

    async def flush(self) -> None: ...


class Context:
    """One attempt's hands: events, progress, usage, files. Everything it writes belongs to its fence."""

    def __init__(self, identity: Identity, buffer: EventBuffer, ports: Ports) -> None:
        self.identity = identity
        self.usage = Usage()
        self.progress_now: dict[str, Any] = {}
        self._buffer = buffer
        self._ports = ports
        self._cancelled = False
        self._text: list[str] = []
        self._letters = 0
        self.was_told = False  # that it has to stop: it looked, or was cancelled at an await

    @property
    def run_id(self) -> str:
        return str(self.identity.run_id)

    @property
    def agent(self) -> str:
        return self.identity.agent

    @property
    def attempt(self) -> int:
        return self.identity.attempt

    @property
    def fence(self) -> int:
        return self.identity.fence

    @property
    def worker(self) -> str:
        return self.identity.worker

    @property
    def metadata(self) -> dict[str, Any]:
        return self.identity.metadata

    @property
    def cancelled(self) -> bool:
        """Whether the attempt has been asked to stop. A sync handler has to look; an async one is cancelled."""
        self.was_told = self.was_told or self._cancelled  # what it returns from now on is not the whole of it
        return self._cancelled

    def mark_cancelled(self) -> None:
        self._cancelled = True

    def emit(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Append an event of the agent's own kind. Kinds that begin with `run.` are the service's, and a few more."""
        if kind.startswith("run.") or not kind or kind in RESERVED:
            raise ValueError(
                f"An agent cannot emit {kind!r}: {', '.join(sorted(RESERVED))} and kinds beginning with 'run.' are the "
                "service's."
            )
        self._buffer.emit(kind, data or {})

    def delta(self, text: str) -> None:
        """Append output text; gathered into at most ten `output.delta` events a second."""
        self._buffer.delta(text)
        if self._letters < TEXT_MAX:
            self._text.append(text[: TEXT_MAX - self._letters])
            self._letters += len(text)

    @property
    def text(self) -> str:
        """The output text so far, at most its first TEXT_MAX letters."""
        return "".join(self._text)

    def progress(self, done: int, total: int, message: str = "") -> None:
        """Say how far the run is: a `run.progress` event, and the run's `progress`."""
        # Stored with the lease beat of all runs: what one run says must not be what the database refuses.
        self.progress_now = {"done": _whole(done), "total": _whole(total), "message": clean_text(str(message)[:300])}
        self._buffer.emit("run.progress", self.progress_now)

    def operation_id(self, name: str) -> str:
        """Return a key that is the same in every attempt of this run: an idempotency key for outside calls."""
        return f"{self.identity.run_id}:{name}"

    def bad_output(self, message: str, answer: Any = None) -> NoReturn:
        """End the attempt because a model's answer is of no use: tried again while attempts are left.

        `answer` (anything JSON can hold) is kept with the attempt, the last one with the failed run as well.
        """
        raise BadOutput(message, answer)

    async def artifact(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> dict[str, Any]:
        """Keep a file with the run. The same name again replaces it. Returns {name, size, content_type}."""
        stored = await self._ports.store_artifact(name, bytes(data), content_type)
        self._buffer.emit("artifact", stored)
        return stored

    async def open_file(self, file_id: str) -> InputFile:
        """Return an uploaded file of the run's account. Raises InvalidInput when there is none of that id."""
        try:
            wanted = UUID(str(file_id))
        except ValueError:
            raise InvalidInput(f"{str(file_id)[:60]!r} is not the id of an uploaded file.") from None
        return await self._ports.open_file(wanted)

    async def flush(self) -> None:
        """Store the buffered events now: for handlers that emit thousands without a pause."""
        await self._ports.flush()


def _whole(number: float) -> int:
    """Return a whole number that is exact in every JSON reader."""
    return max(-(2**53), min(2**53, int(number)))
