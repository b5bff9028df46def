"""A provider's errors in our words: which class of failure, and a sentence that helps, without any secret."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.conf import settings

from runs.outcomes import ErrorClass, Fatal, InvalidInput, Retryable

if TYPE_CHECKING:
    from openai import APIError, APIStatusError

MESSAGE_MAX = 300
KEY_LIKE = re.compile(r"\b(?:sk|pk|key|Bearer)[-_ ][\w*.-]{6,}", re.IGNORECASE)
CONTEXT_WORDS = re.compile(
    r"context[ _]?(?:length|size|window)|exceed_context|maximum context|too many tokens|too large to process"
    r"|prompt is too long|reduce the length",
    re.IGNORECASE,
)


class WindowExceeded(InvalidInput):
    """The text is longer than the model's window."""


@contextmanager
def in_our_words(model: str) -> Iterator[None]:
    """Turn whatever the client raises into Retryable, Fatal or InvalidInput.

    The original is not chained: its request and response may carry the key and the account.
    """
    import openai  # noqa: PLC0415  imported by now: its client is there

    try:
        yield
    except openai.APIStatusError as error:
        raise _of_status(model, error) from None
    except openai.APITimeoutError:
        raise _provider(f"The model endpoint {_place()} did not answer in time.") from None
    except openai.APIConnectionError:
        raise _provider(
            f"The model endpoint {_place()} cannot be reached or closed the connection. Check OPENAI_BASE_URL."
        ) from None
    except openai.APIError as error:  # an error inside a stream that began well
        raise _of_text(model, error.message, None) from None
    except (json.JSONDecodeError, openai.OpenAIError) as error:
        raise _provider(
            f"The model endpoint {_place()} gave an answer that is not of the OpenAI API "
            f"({type(error).__name__}). Check OPENAI_BASE_URL."
        ) from None


def _of_status(model: str, error: "APIStatusError") -> Fatal | Retryable:
    status = error.status_code
    if status in {401, 403}:
        # The provider's sentence is left out: it often repeats a part of the key.
        return Fatal(
            f"The model endpoint {_place()} refused the API key (HTTP {status}). Check OPENAI_API_KEY.",
            ErrorClass.NOT_CONFIGURED,
        )
    if status == 404:
        return Fatal(
            f"The model endpoint {_place()} does not know the model {model!r} or the address (HTTP 404). "
            "Check AGENTOPS_MODEL and OPENAI_BASE_URL.",
            ErrorClass.NOT_CONFIGURED,
        )
    if status == 429:
        said = _clean(_message(error.body, error))
        return Retryable(
            f"The model endpoint limits the rate or the budget (HTTP 429): {said}",
            after=_retry_after(error),
            error_class=ErrorClass.PROVIDER_LIMIT,
        )
    return _of_text(model, _message(error.body, error), status)


def _retry_after(error: "APIStatusError") -> float | None:
    """Return the seconds the provider asks to wait; None where it says nothing, or a date."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def _of_text(model: str, text: str, status: int | None) -> Fatal | Retryable:
    """Return the failure for a message of the provider; what a request's content caused is the input's fault."""
    said = _clean(text)
    if CONTEXT_WORDS.search(text):
        return WindowExceeded(f"The text is too long for the window of the model {model}: {said}")
    if status in {400, 413, 422}:
        return InvalidInput(f"The model endpoint refused the request (HTTP {status}): {said}")
    number = "" if status is None else f" (HTTP {status})"
    return _provider(f"The model endpoint failed{number}: {said}")


def _provider(message: str) -> Retryable:
    return Retryable(message, error_class=ErrorClass.PROVIDER_TRANSIENT)


def _message(body: object, error: "APIError") -> str:
    inner = body.get("error", body) if isinstance(body, dict) else body
    said = inner.get("message") if isinstance(inner, dict) else inner
    return said if isinstance(said, str) and said else error.message


def _clean(text: str) -> str:
    key = settings.OPENAI_API_KEY
    if key:
        text = text.replace(key, "[key]")
    text = " ".join(KEY_LIKE.sub("[key]", text).split())
    return text if len(text) <= MESSAGE_MAX else text[:MESSAGE_MAX] + "…"


def _place() -> str:
    """Return scheme, host and port of the endpoint: never its user, password or query."""
    parts = urlsplit(settings.OPENAI_BASE_URL or "https://api.openai.com")
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
