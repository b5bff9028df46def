"""How an attempt ends: a closed set of values, and the exceptions by which a handler chooses one."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from quotas.masking import mask


class ErrorClass(StrEnum):
    """What kind of failure it was: on the attempt, the run and the dead letter."""

    INPUT = "input"  # the input cannot be worked on; the same input will fail again
    AGENT_BUG = "agent_bug"  # the handler raised something nobody expected
    BAD_OUTPUT = "bad_output"  # the result does not fit the agent's output schema
    PROVIDER_TRANSIENT = "provider_transient"  # a model or tool provider broke, or could not be reached
    PROVIDER_LIMIT = "provider_limit"  # a provider's rate or quota limit
    NOT_CONFIGURED = "not_configured"  # something an operator has to set up is missing
    TIMEOUT = "timeout"  # a time limit passed: attempt, wall clock, deadline, no progress
    LOST_WORKER = "lost_worker"  # the worker died or lost its lease
    BUDGET = "budget"  # the run would have cost more than it may
    UNKNOWN_PRICE = "unknown_price"  # usage of a model without a price
    UNKNOWN_AGENT = "unknown_agent"  # no worker knew the agent within the queue-wait limit
    POISON = "poison"  # delivered again and again, and never claimed
    QUEUE_TIMEOUT = "queue_timeout"  # nobody started it within its queue wait
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


class Retryable(Exception):
    """The attempt failed, and another one may succeed: tried again while attempts are left.

    `after` is the seconds to wait, as a provider said; None: the agent's back-off.
    """

    def __init__(
        self, message: str, *, after: float | None = None, error_class: ErrorClass = ErrorClass.PROVIDER_TRANSIENT
    ) -> None:
        super().__init__(message)
        self.after = after
        self.error_class = error_class


class BadOutput(Exception):
    """A model's answer is of no use. Retried; the last one is kept with the dead letter. `answer` is JSON-able."""

    def __init__(self, message: str, answer: Any = None) -> None:
        super().__init__(message)
        self.answer = answer


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
    retry_in: float | None = None  # seconds to the next attempt, if one is left; None: not to be tried again
    cause: str = ""  # why there is no further attempt: a Cause
    is_masked: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Mask secrets, whoever says it: from here it goes to rows, events, dead letters, logs and answers.

        Once: masking takes milliseconds, and a copy of it is made under the account's lock.
        """
        if self.is_masked:
            return
        object.__setattr__(self, "is_masked", True)
        for name in ("type", "message", "traceback"):
            object.__setattr__(self, name, mask(getattr(self, name)))

    def as_json(self) -> dict[str, Any]:
        """Return the shape stored in `Run.error` and sent with `run.failed`."""
        return {
            "class": self.error_class.value,
            "type": self.type,
            "message": self.message,
            "traceback": self.traceback,
            "cause": self.cause,
        }


class Cause(StrEnum):
    """Why a failed run has no further attempt: in `Run.error`, and as the reason of its dead letter."""

    EXHAUSTED = "exhausted"  # its last attempt failed as well
    FATAL = "fatal"  # it failed in a way that another attempt does not mend
    CRASH_LOOP = "crash_loop"  # it lost its worker in every attempt
    POISON = "poison"
    UNKNOWN_AGENT = "unknown_agent"
    QUEUE_TIMEOUT = "queue_timeout"
    QUOTA = "quota_exceeded"
    BUDGET = "budget_exceeded"  # it spent more than was reserved for it, and could not get more


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler stopped because the run was cancelled."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The attempt ended without an answer of its own: a drain by policy, a lost worker. `reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt was ended by a drain, and the run goes back to its queue uncounted. `reason` is for people."""

    reason: str


Outcome = Succeeded | Failed | Cancelled | Interrupted | HandedBack
