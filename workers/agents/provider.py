"""The OpenAI-compatible endpoint as the shipped agents use it: one client a run, streamed chat, embeddings.

Every request's tokens are counted as the provider reports them. What a broken or cancelled request cost is not
reported by anybody, so it is estimated: work that was done is never free.

The client library takes a second of CPU to import. Who asks a model pays it, in a thread; a web process never does.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from django.conf import settings

from runs.outcomes import ErrorClass, Fatal, Retryable
from workers.agents.provider_errors import in_our_words
from workers.usage import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream
    from openai.types import CompletionUsage
    from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

HOSTED = "https://api.openai.com/v1"
TIMEOUT = {"connect": 10, "read": 300, "write": 60, "pool": 10}  # seconds; read: between two tokens
LETTERS_PER_TOKEN = 4  # a usual figure, for what the provider did not report


Vector: TypeAlias = "array[float]"  # of float32


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What to ask. `tuning` are wishes: a model that refuses one of them is asked again without it."""

    model: str
    messages: Sequence[dict[str, str]]
    max_tokens: int
    temperature: float | None = None
    tuning: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Answer:
    """A streamed answer: the text, why it ended (`stop`, `length`, …), and what it cost in tokens."""

    text: str = ""
    finish_reason: str | None = None
    reported: "CompletionUsage | None" = None
    pieces: int = 0


@asynccontextmanager
async def connect() -> "AsyncIterator[AsyncOpenAI]":
    """Yield a client and close it whatever happens. Raises Fatal(not_configured) where no endpoint is set."""
    if not settings.OPENAI_BASE_URL and not settings.OPENAI_API_KEY:
        raise Fatal(
            "No model endpoint is configured. Set OPENAI_BASE_URL (any OpenAI-compatible server) or OPENAI_API_KEY "
            "and restart the workers, or start with `./run up` without --no-model, which brings a local model.",
            ErrorClass.NOT_CONFIGURED,
        )
    openai = await asyncio.to_thread(import_module, "openai")
    # Retries belong to the run protocol; the client's own would spend money that nobody counted.
    async with openai.AsyncOpenAI(
        base_url=settings.OPENAI_BASE_URL or HOSTED,
        api_key=settings.OPENAI_API_KEY or "none",
        max_retries=0,
        timeout=openai.Timeout(**TIMEOUT),
        # Servers close a kept connection after so many requests or seconds; a request sent into that moment is lost.
        default_headers={"Connection": "close"},
    ) as client:
        yield client


async def stream_chat(
    client: "AsyncOpenAI", usage: Usage, request: ChatRequest, on_text: Callable[[str], None]
) -> Answer:
    """Ask, call `on_text` for every piece as it arrives, and return the whole answer.

    Raises Retryable, Fatal, or InvalidInput when the provider refuses the request for its content.
    """
    answer = Answer()
    with in_our_words(request.model):
        stream = await _open(client, request)
        try:
            async with stream:
                async for chunk in stream:
                    _take(answer, chunk, on_text)
        finally:
            _count(usage, request, answer)
    if answer.finish_reason is None and answer.reported is None:
        raise Retryable(
            f"The model endpoint broke off the answer of {request.model} before its end. Check that OPENAI_BASE_URL "
            "is the address of an OpenAI-compatible API (it usually ends in /v1).",
        )
    return answer


async def _open(client: "AsyncOpenAI", request: ChatRequest) -> "AsyncStream[ChatCompletionChunk]":
    from openai import BadRequestError  # noqa: PLC0415  imported by now: connect() did

    options: dict[str, Any] = {"max_tokens": request.max_tokens, **request.tuning}
    if request.temperature is not None:
        options["temperature"] = request.temperature
    while True:
        try:
            stream: AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
                model=request.model,
                messages=cast("list[ChatCompletionMessageParam]", list(request.messages)),
                stream=True,
                stream_options={"include_usage": True},
                **options,
            )
        except BadRequestError as refusal:
            if not _without(options, refusal.param, request):
                raise
        else:
            return stream


def _without(options: dict[str, Any], refused: str | None, request: ChatRequest) -> bool:
    """Change `options` so that the refused parameter is gone; False when there is nothing to change."""
    if refused == "max_tokens" and refused in options:
        # Newer hosted models know the limit only under this name.
        options["max_completion_tokens"] = options.pop("max_tokens")
        return True
    return refused in request.tuning and options.pop(refused, None) is not None


def _take(answer: Answer, chunk: "ChatCompletionChunk", on_text: Callable[[str], None]) -> None:
    if chunk.usage is not None:
        answer.reported = chunk.usage
    for choice in chunk.choices or ():
        answer.finish_reason = choice.finish_reason or answer.finish_reason
        text = getattr(choice.delta, "content", None)  # some servers end with a choice without delta
        if text:
            answer.pieces += 1
            answer.text += text
            on_text(text)


def _count(usage: Usage, request: ChatRequest, answer: Answer) -> None:
    """Add the answer's tokens. The kinds do not overlap: cached are part of what was sent, reasoning of the output."""
    reported = answer.reported
    if reported is None:
        letters = sum(len(message["content"]) for message in request.messages)
        usage.add(request.model, input=letters // LETTERS_PER_TOKEN + 1, output=answer.pieces)
        return
    sent, made = reported.prompt_tokens_details, reported.completion_tokens_details
    cached = _part(sent.cached_tokens if sent else 0, reported.prompt_tokens)
    reasoning = _part(made.reasoning_tokens if made else 0, reported.completion_tokens)
    usage.add(
        request.model,
        input=reported.prompt_tokens - cached,
        output=reported.completion_tokens - reasoning,
        cached=cached,
        reasoning=reasoning,
    )


def _part(count: int | None, whole: int) -> int:
    return min(max(0, count or 0), whole)


async def embed(client: "AsyncOpenAI", usage: Usage, model: str, texts: Sequence[str]) -> list[Vector]:
    """Return one vector (float32) for each text, in order. Raises Retryable, Fatal, InvalidInput."""
    with in_our_words(model):
        reply = await client.embeddings.create(model=model, input=list(texts), encoding_format="float")
    reported = getattr(reply, "usage", None)  # not every server counts embeddings
    usage.add(model, embedding=reported.prompt_tokens if reported else _letters(texts) // LETTERS_PER_TOKEN + 1)
    vectors = [array("f", row.embedding) for row in sorted(reply.data, key=lambda row: row.index)]
    if len(vectors) != len(texts) or not all(vectors):
        raise Retryable(
            f"The model endpoint answered {len(vectors)} vectors for {len(texts)} texts ({model}).",
        )
    return vectors


def _letters(texts: Iterable[str]) -> int:
    return sum(map(len, texts))
