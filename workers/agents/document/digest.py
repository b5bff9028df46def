"""`document.digest`: what a document says, chapter by chapter."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from runs.agents import OVERRIDES, agent
from runs.outcomes import ErrorClass
from runs.pricing import estimate_tokens
from workers.agents.document import keywords, rank
from workers.agents.document.chapters import CHAPTERS_MAX, Chapter, find_chapters
from workers.agents.document.embeddings import Embeddings, Vectors
from workers.agents.document.extract import Document, read_file, read_text
from workers.agents.document.render import as_markdown
from workers.agents.document.split import Chunk, chunks_of, sentences_of
from workers.agents.document.writer import (
    ANSWER_TOKENS,
    OVERALL_TOKENS,
    QUESTION_TOKENS,
    SUMMARY_TOKENS,
    Room,
    Writer,
)
from workers.agents.provider import connect
from workers.agents.tokens import tokens_of
from workers.context import Context

QUESTIONS = 1
QUESTIONS_MAX = 3
SENTENCES_MAX = 2400  # embedded of one document; a longer one is sampled evenly, every chunk keeps its share
KEY_SENTENCES = 8
KEY_WORDS = 12
CHAPTER_SENTENCES = 12
CHAPTER_WORDS = 5
LEAST_LETTERS = 30  # shorter sentences are never key sentences
TYPICAL_TOKENS = 25_000  # of an uploaded file, whose size is unknown at submit
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "file": {
            "type": "string",
            "format": "file",
            "title": "File",
            "description": "An uploaded PDF, HTML, markdown or text file.",
        },
        "text": {"type": "string", "minLength": 1, "title": "Text", "description": "The text itself, without a file."},
        "questions": {
            "type": "integer",
            "minimum": 0,
            "maximum": QUESTIONS_MAX,
            "default": QUESTIONS,
            "title": "Questions per chapter",
        },
        "language": {
            "type": "string",
            "minLength": 2,
            "maxLength": 40,
            "title": "Language",
            "description": "The language to write in, such as English; default: what the model makes of the text.",
        },
    },
    "oneOf": [{"required": ["text"]}, {"required": ["file"]}],
}


@dataclass(slots=True)
class Plan:
    """The document cut up: its chapters, each chapter's chunks, and the sentences that get vectors."""

    document: Document
    chapters: list[Chapter]
    chunks: list[Chunk]
    ranked: list[list[str]] = field(default_factory=list)  # per chunk
    words: list[list[str]] = field(default_factory=list)  # candidates for key words, per chapter

    def of_chapter(self, number: int) -> list[str]:
        """Return the chapter's sentences that have vectors, in order."""
        return [
            s for chunk, kept in zip(self.chunks, self.ranked, strict=True) if chunk.chapter == number for s in kept
        ]


def _models(_input: dict[str, Any]) -> list[str]:
    return [settings.AGENTOPS_MODEL, settings.AGENTOPS_EMBEDDING_MODEL]


def _estimate(run_input: dict[str, Any]) -> int:
    """Return micro-units for embedding the text once and for the model's calls; files count as a typical document."""
    tokens = tokens_of(run_input["text"]) if "text" in run_input else TYPICAL_TOKENS
    chapters = min(CHAPTERS_MAX, tokens // 2000 + 1)
    questions = int(run_input.get("questions", QUESTIONS))
    room = Room.of(settings.AGENTOPS_MODEL_WINDOW)
    calls = chapters * (1 + 2 * questions) + 1
    made = chapters * (SUMMARY_TOKENS + questions * (QUESTION_TOKENS + ANSWER_TOKENS)) + OVERALL_TOKENS
    read = calls * min(room.material, tokens)
    return estimate_tokens(settings.AGENTOPS_MODEL, input=read, output=made) + estimate_tokens(
        settings.AGENTOPS_EMBEDDING_MODEL, embedding=tokens
    )


@agent(
    "document.digest",
    description="Reads a document and gives its summary, key words, key sentences, and questions with answers.",
    input_schema=SCHEMA,
    estimate=_estimate,
    extend=True,  # nobody knows how long a file is before it is read
    models=_models,
    time_limit_seconds=1800,
    wall_clock_seconds=3600,  # so that a second attempt has time for its work
    max_attempts=3,
    retry_on=(ErrorClass.PROVIDER_TRANSIENT, ErrorClass.PROVIDER_LIMIT),
    allow=OVERRIDES,
    sample={"text": "The lamp is lit at dusk. The keeper writes the hour in the log.", "questions": 1},
)
async def digest(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Return `{summary, key_words, key_sentences, chapters, pages, chunks, embedded}`; artifact `digest.md`.

    `embedded` is the number of texts that got a new vector: 0 for a document seen within a day.
    """
    questions = int(run_input.get("questions", QUESTIONS))
    plan = await _read(ctx, run_input)
    async with connect() as client:
        embeddings = Embeddings(client, ctx.usage, settings.AGENTOPS_EMBEDDING_MODEL)
        writer = Writer(
            client,
            ctx.usage,
            model=settings.AGENTOPS_MODEL,
            window=settings.AGENTOPS_MODEL_WINDOW,
            language=run_input.get("language", ""),
        )
        steps = _Steps(ctx, len(plan.chunks) + len(plan.chapters) * (1 + 2 * questions) + 1)
        await _embed(plan, embeddings, steps)
        result = await asyncio.to_thread(_rank, plan, embeddings.vectors)
        await _write(ctx, writer, result, questions, steps)
    for chapter in result["chapters"]:
        del chapter["material"]
    result |= {"pages": plan.document.pages, "chunks": len(plan.chunks), "embedded": embeddings.made}
    markdown = as_markdown(plan.document.name, result)
    await ctx.artifact("digest.md", markdown.encode(), "text/markdown; charset=utf-8")
    return result


class _Steps:
    """Progress over everything the run has to do: chunks to embed, then answers to write."""

    def __init__(self, ctx: Context, total: int) -> None:
        self._ctx = ctx
        self._total = total
        self._done = 0

    def done(self, message: str) -> None:
        self._done += 1
        self._ctx.progress(self._done, self._total, message)


# -- read -----------------------------------------------------------------------------------------------------------
async def _read(ctx: Context, run_input: dict[str, Any]) -> Plan:
    stop = threading.Event()
    try:
        if "text" in run_input:
            return await asyncio.to_thread(_plan, lambda: read_text(run_input["text"]))
        file = await ctx.open_file(run_input["file"])
        return await asyncio.to_thread(_plan, lambda: read_file(file.data, file.name, file.content_type, stop.is_set))
    finally:
        stop.set()  # a cancelled run's thread gives up at its next page


def _plan(read: Callable[[], Document]) -> Plan:
    document = read()
    chapters = find_chapters(document.text, document.name)
    chunks = [
        chunk
        for number, chapter in enumerate(chapters)
        for chunk in chunks_of(number, sentences_of(chapter.text), settings.AGENTOPS_MODEL_WINDOW)
    ]
    plan = Plan(document, chapters, chunks)
    plan.ranked = _ranked(chunks)
    plan.words = keywords.candidates(
        [[s for chunk in chunks if chunk.chapter == number for s in chunk.sentences] for number in range(len(chapters))]
    )
    return plan


def _ranked(chunks: Sequence[Chunk]) -> list[list[str]]:
    """Return per chunk the sentences to embed: all that say something, or an even sample of a very long document."""
    per_chunk = [_telling(chunk) for chunk in chunks]
    count = sum(map(len, per_chunk))
    if count <= SENTENCES_MAX:
        return per_chunk
    share = SENTENCES_MAX / count
    sampled = []
    for sentences in per_chunk:
        keep = max(1, int(len(sentences) * share))
        sampled.append([sentences[at * len(sentences) // keep] for at in range(keep)])
    return sampled


def _telling(chunk: Chunk) -> list[str]:
    return [s for s in dict.fromkeys(chunk.sentences) if len(s) >= LEAST_LETTERS or not s.isascii()] or [
        chunk.sentences[0]
    ]


async def _embed(plan: Plan, embeddings: Embeddings, steps: _Steps) -> None:
    everything = [text for texts in (*plan.ranked, *plan.words) for text in texts]
    await embeddings.recall(everything)
    for number, sentences in enumerate(plan.ranked, 1):
        await embeddings.make(sentences)
        steps.done(f"chunk {number} of {len(plan.chunks)} embedded")
    # The key words, and what was dropped on the way because its kept vector had another size.
    await embeddings.make(everything)


# -- rank -----------------------------------------------------------------------------------------------------------
def _rank(plan: Plan, known: Vectors) -> dict[str, Any]:
    """Return key words and key sentences of the document and of each chapter (with `material` for the writer)."""
    vectors = {text: rank.unit(vector) for text, vector in known.items()}
    everything = list(dict.fromkeys(s for sentences in plan.ranked for s in sentences))
    middle = rank.centroid([vectors[s] for s in everything])
    words = list(dict.fromkeys(word for found in plan.words for word in found))
    chapters = [_rank_chapter(plan, number, vectors) for number in range(len(plan.chapters))]
    return {
        "summary": "",
        "key_words": keywords.choose(words, [vectors[w] for w in words], middle, KEY_WORDS),
        "key_sentences": _key_sentences(everything, vectors, middle, KEY_SENTENCES),
        "chapters": chapters,
    }


def _rank_chapter(plan: Plan, number: int, vectors: Vectors) -> dict[str, Any]:
    chapter = plan.chapters[number]
    sentences = list(dict.fromkeys(plan.of_chapter(number)))
    middle = rank.centroid([vectors[s] for s in sentences])
    words = plan.words[number]
    return {
        "title": chapter.title,
        "summary": "",
        "key_words": keywords.choose(words, [vectors[w] for w in words], middle, CHAPTER_WORDS),
        "questions": [],
        "material": _key_sentences(sentences, vectors, middle, CHAPTER_SENTENCES),
    }


def _key_sentences(sentences: list[str], vectors: Vectors, middle: Sequence[float], count: int) -> list[str]:
    """Return the key sentences in the order in which the text has them."""
    picked = rank.pick([vectors[s] for s in sentences], middle, count)
    return [sentences[index] for index in sorted(picked)]


# -- write ----------------------------------------------------------------------------------------------------------
async def _write(ctx: Context, writer: Writer, result: dict[str, Any], questions: int, steps: _Steps) -> None:
    """Fill in the summaries and the questions with answers, streaming them as the viewer will read them."""
    for chapter in result["chapters"]:
        ctx.delta(f"## {chapter['title']}\n\n")
        chapter["summary"] = await writer.summary(chapter["material"], ctx.delta)
        ctx.delta("\n\n")
        steps.done(f"summary: {chapter['title']}")
        for about in _topics(chapter["key_words"], questions):
            await _ask(ctx, writer, chapter, about, steps)
    ctx.delta("## Summary\n\n")
    notes = [f"{chapter['title']}: {chapter['summary']}" for chapter in result["chapters"]]
    result["summary"] = await writer.overall(notes, ctx.delta)
    ctx.delta("\n")
    steps.done("summary of the whole")


def _topics(words: list[str], count: int) -> list[str]:
    return [*words, *[""] * count][:count]


async def _ask(ctx: Context, writer: Writer, chapter: dict[str, Any], about: str, steps: _Steps) -> None:
    question = await writer.question(chapter["material"], about)
    steps.done(f"question: {chapter['title']}")
    ctx.delta(f"**{question}** ")
    answer = await writer.answer(question, chapter["material"], ctx.delta)
    ctx.delta("\n\n")
    steps.done(f"answer: {chapter['title']}")
    chapter["questions"].append({"question": question, "answer": answer})
