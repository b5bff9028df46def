"""What went wrong in an attempt, as a value: its class, its words cut and masked, and whether it is tried again."""

import traceback

from quotas.errors import UnknownPrice
from quotas.masking import mask
from runs.agents import AgentSpec
from runs.outcomes import BadOutput, ErrorClass, Failed, Fatal, Retryable
from runs.results import dumps
from runs.retry import is_retryable
from runs.text import clean_text

MESSAGE_MAX = 4000
TRACEBACK_MAX = 20_000
READ_MAX = 100_000  # the middle of a longer text is cut away unread: masking takes time, in the event loop


def failure_of(error: BaseException, spec: AgentSpec, attempt: int) -> Failed:
    """Return the failure for what a handler raised in an attempt.

    `Retryable` and `Fatal` say themselves whether it is tried again; of the former `fatal_on` may think otherwise.
    """
    error_class = _class_of(error)
    retry_on = (*spec.retry_on, Retryable) if isinstance(error, Retryable) else spec.retry_on
    may = is_retryable(error_class, error, retry_on=retry_on, fatal_on=spec.fatal_on)
    after = _after_of(error) if isinstance(error, Retryable) else None
    return Failed(
        error_class,
        mask(type(error).__name__)[:120],
        _said(_message_of(error), MESSAGE_MAX),
        _said(_traceback_of(error), TRACEBACK_MAX),
        partial_json=_answer_of(error) if isinstance(error, BadOutput) else None,
        retry_in=spec.backoff.delay(attempt, after) if may and not isinstance(error, Fatal) else None,
    )


def failure(
    spec: AgentSpec, attempt: int, error_class: ErrorClass, name: str, message: str, *, partial: str | None = None
) -> Failed:
    """Return a failure that we found ourselves, not one that was raised."""
    may = is_retryable(error_class, retry_on=spec.retry_on, fatal_on=spec.fatal_on)
    return Failed(
        error_class,
        name,
        _said(message, MESSAGE_MAX),
        partial_json=partial,
        retry_in=spec.backoff.delay(attempt) if may else None,
    )


def _class_of(error: BaseException) -> ErrorClass:
    """Return the class an author gave, in whatever way they gave it (a subclass may not call ours)."""
    match error:
        case UnknownPrice():
            return ErrorClass.UNKNOWN_PRICE
        case BadOutput():
            return ErrorClass.BAD_OUTPUT
        case Fatal() | Retryable():
            try:
                return ErrorClass(getattr(error, "error_class", ErrorClass.AGENT_BUG))
            except ValueError:
                return ErrorClass.AGENT_BUG
        case _:
            return ErrorClass.AGENT_BUG


def _after_of(error: Retryable) -> float | None:
    after = getattr(error, "after", None)
    return float(after) if isinstance(after, int | float) else None


def _answer_of(error: BadOutput) -> str | None:
    """Return the answer that was of no use, as JSON text; its repr where it is not JSON."""
    answer = getattr(error, "answer", None)
    if answer is None:
        return None
    try:
        return dumps(answer)
    except (TypeError, ValueError, RecursionError):
        return dumps(clean_text(cut(repr(answer), TRACEBACK_MAX)))


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a broken __str__ must not hide the failure
        return f"({type(error).__name__} cannot be shown)"


def _traceback_of(error: BaseException) -> str:
    """Return the traceback without our own frames in front; at most 50 frames of it are formatted."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    try:
        return "".join(traceback.format_exception(type(error), error, trace, limit=50, chain=False))
    except Exception:  # noqa: BLE001  as above
        return ""


def _said(text: str, limit: int) -> str:
    """Return a text to keep: masked before it is cut, because half a secret has no form any more."""
    return cut(mask(clean_text(cut(text, READ_MAX))), limit)


def cut(text: str, limit: int) -> str:
    """Return the text, cut in the middle with a mark when it is longer than the limit."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters cut) …\n{text[-half:]}"
