"""How an attempt ends: a closed set of values, and the exceptions by which a handler chooses one."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ErrorClass(StrEnum):
    """What kind of failure it was: on the attempt, the run and the dead letter."""

    INPUT = "input"  # the input cannot be worked on; the same input will fail again
    AGENT_BUG = "agent_bug"  # the handler raised something nobody expected
    BAD_OUTPUT = "bad_output"  # the result does not fit the agent's output schema
    PROVIDER = "provider"  # a model or tool provider refused or broke
    NOT_CONFIGURED = "not_configured"  # something an operator has to set up is missing
    TIMEOUT = "timeout"  # the attempt's time limit passed
    LOST_WORKER = "lost_worker"  # the worker died or lost its lease
    UNKNOWN_PRICE = "unknown_price"  # usage of a model without a price
    UNKNOWN_AGENT = "unknown_agent"  # no worker knew the agent within the queue-wait limit
    POISON = "poison"  # delivered again and again, and never claimed
    QUOTA = "quota_exceeded"  # a lapsed hold found no room at the claim
    NOT_STORABLE = "result_not_storable"  # the database refused the run's own data


class Fatal(Exception):
    """The run cannot succeed, however often it is tried: it fails with this message."""

    def __init__(self, message: str, error_class: ErrorClass = ErrorClass.AGENT_BUG) -> None:
        super().__init__(message)
        self.error_class = error_class


class InvalidInput(Fatal):
    """The input fits the schema but cannot be worked on (a PDF without text, an unreadable file)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorClass.INPUT)


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned. `result_json` is its serialised result (JSON text)."""

    result_json: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, or may not go on. `partial_json` is what it had produced, if anything."""

    error_class: ErrorClass
    type: str
    message: str
    traceback: str = ""
    partial_json: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the shape stored in `Run.error` and sent with `run.failed`."""
        return {
            "class": self.error_class.value,
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
        }


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler stopped because the run was cancelled."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The attempt ended without an answer of its own: a drain by policy, a lost worker. `reason` is for people."""

    reason: str


Outcome = Succeeded | Failed | Cancelled | Interrupted
