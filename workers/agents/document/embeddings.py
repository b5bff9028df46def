"""Vectors of texts, kept for a day under the hash of model and text, so that a second run embeds nothing."""

import asyncio
import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import structlog
from django.core.cache import cache

from workers.agents.provider import Vector, embed
from workers.usage import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEPT_SECONDS = 24 * 3600
BATCH = 16  # texts a request: small enough that progress moves and a cancel is soon
READ = 256  # keys a cache read

logger = structlog.get_logger(__name__)
Vectors: TypeAlias = dict[str, Vector]


class Embeddings:
    """The vectors of one document's texts. `made` counts those that no earlier run had left in the cache."""

    def __init__(self, client: "AsyncOpenAI", usage: Usage, model: str) -> None:
        self.vectors: Vectors = {}
        self.made = 0
        self._client = client
        self._usage = usage
        self._model = model

    async def recall(self, texts: Iterable[str]) -> None:
        """Take what the cache still has."""
        wanted = [text for text in dict.fromkeys(texts) if text not in self.vectors]
        for begin in range(0, len(wanted), READ):
            part = wanted[begin : begin + READ]
            self.vectors.update(await asyncio.to_thread(_read, self._model, part))

    async def make(self, texts: Iterable[str], on_batch: Callable[[], None] = lambda: None) -> None:
        """Embed what has no vector yet, in batches; every batch is kept at once, so a lost run repeats little."""
        missing = [text for text in dict.fromkeys(texts) if text not in self.vectors]
        for begin in range(0, len(missing), BATCH):
            part = missing[begin : begin + BATCH]
            made = dict(zip(part, await embed(self._client, self._usage, self._model, part), strict=True))
            self.made += len(made)
            self._drop_others(len(next(iter(made.values()))))
            self.vectors.update(made)
            await asyncio.to_thread(_keep, self._model, made)
            on_batch()

    def _drop_others(self, dimensions: int) -> None:
        """Forget kept vectors of another size: the endpoint serves another model under the same name now."""
        self.vectors = {text: vector for text, vector in self.vectors.items() if len(vector) == dimensions}


def _key(model: str, text: str) -> str:
    return "embedding:" + hashlib.sha256(f"{model}\0{text}".encode()).hexdigest()


def _read(model: str, texts: Sequence[str]) -> Vectors:
    keys = {_key(model, text): text for text in texts}
    try:
        kept = cache.get_many(list(keys))
    except Exception as error:  # noqa: BLE001  a broken cache is a miss, whatever breaks in it
        logger.warning("embedding_cache_unreadable", action="read", error=type(error).__name__)
        return {}
    vectors: Vectors = {}
    for key, data in kept.items():
        if isinstance(data, bytes) and data and len(data) % 4 == 0:
            vectors[keys[key]] = array("f", data)
    return vectors


def _keep(model: str, vectors: Vectors) -> None:
    try:
        cache.set_many({_key(model, text): vector.tobytes() for text, vector in vectors.items()}, KEPT_SECONDS)
    except Exception as error:  # noqa: BLE001  the run has its vectors; only the next run pays again
        logger.warning("embedding_cache_unwritable", action="write", error=type(error).__name__)
