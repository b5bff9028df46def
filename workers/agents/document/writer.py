"""What the model writes about a chapter: small prompts, small answers, and no trust in their form.

A small model rambles, repeats itself or answers nothing. So nothing here parses a structure out of an answer, every
answer is trimmed to sentences, and where nothing usable is left the text's own key sentences stand in.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workers.agents.document.split import sentences_of
from workers.agents.document.stopwords import STOPWORDS
from workers.agents.provider import ChatRequest, stream_chat
from workers.agents.provider_errors import WindowExceeded
from workers.agents.tokens import tokens_of
from workers.usage import Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SUMMARY_TOKENS = 80
OVERALL_TOKENS = 140
QUESTION_TOKENS = 40
ANSWER_TOKENS = 60
MATERIAL_MAX = 6000  # tokens; larger windows are not filled: reading costs money too
TUNING = {"frequency_penalty": 0.4, "temperature": 0.2, "seed": 1}

_lead = re.compile(
    r"^\W*(?:(?:short |brief |the )?(?:summary|answer|question|text)|q|a)\s*\d{0,2}\s*[:\-\u2013]\s*", re.IGNORECASE
)
_question = re.compile(r"[^.!?。\uff01\uff1f\n]*[?\uff1f]")
_word = re.compile(r"\w{3,}")
_unspaced = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens a prompt's material and an answer may have in this window."""

    material: int
    answer: int

    @classmethod
    def of(cls, window: int) -> "Room":
        """Return a quarter of the window for each: the prompt's own words need some of the rest."""
        return cls(min(MATERIAL_MAX, window // 4), window // 4)


class Writer:
    """Asks the model, one small prompt after the other. `calls` counts the requests that were answered."""

    def __init__(self, client: "AsyncOpenAI", usage: Usage, *, model: str, window: int, language: str) -> None:
        self.room = Room.of(window)
        self.calls = 0
        self._client = client
        self._usage = usage
        self._model = model
        self._translates = bool(language)
        self._ending = f" Answer in {language}." if language else ""

    async def summary(self, sentences: Sequence[str], on_text: Callable[[str], None]) -> str:
        """Return one to three sentences about these key sentences of a chapter."""
        written = await self._ask("Summarize this text in two short sentences.", sentences, SUMMARY_TOKENS, on_text)
        return written or " ".join(sentences[:2])

    async def overall(self, summaries: Sequence[str], on_text: Callable[[str], None]) -> str:
        """Return a summary of the chapters' summaries, each cut to its share of the window."""
        share = max(1, self.room.material // max(1, len(summaries)))
        parts = [fitting(sentences_of(summary), share) or [summary[:share]] for summary in summaries]
        flat = [" ".join(part) for part in parts]
        written = await self._ask(
            "These are notes on the chapters of one document. Say in three sentences what the document is about.",
            flat,
            OVERALL_TOKENS,
            on_text,
        )
        return written or " ".join(flat[:3])

    async def question(self, sentences: Sequence[str], about: str) -> str:
        """Return a question that the sentences answer; `about` is what it should be about."""
        hint = f" The question should be about: {about}." if about else ""
        written = await self._ask(
            f"Read the text and write one short question that it answers.{hint}", sentences, QUESTION_TOKENS
        )
        found = _question.search(written)
        asked = _lead.sub("", found[0]).strip() if found else ""
        return asked or f"What does the text say about {about or 'its subject'}?"

    async def answer(self, question: str, sentences: Sequence[str], on_text: Callable[[str], None]) -> str:
        """Return the answer the sentences give; the sentences nearest to the question are read first."""
        nearest = by_words(question, sentences)
        written = await self._ask(
            f"Use the text to answer this question in one or two sentences: {question[:300]}",
            nearest[:8],
            ANSWER_TOKENS,
            on_text,
        )
        return written or " ".join(nearest[:1])

    async def _ask(
        self,
        instruction: str,
        sentences: Sequence[str],
        max_tokens: int,
        on_text: Callable[[str], None] = lambda _text: None,
    ) -> str:
        """Return the trimmed answer, or "" where the model said nothing usable or the text never fits."""
        material = self.room.material
        while material >= 32:
            text = " ".join(fitting(sentences, material))
            request = ChatRequest(
                model=self._model,
                messages=[{"role": "user", "content": f"{instruction}{self._ending}\n\nText: {text}"}],
                max_tokens=min(max_tokens, self.room.answer),
                tuning=TUNING,
            )
            try:
                answer = await stream_chat(self._client, self._usage, request, on_text)
            except WindowExceeded:  # a tokenizer far from our estimate, or a window smaller than the setting
                material //= 2
                continue
            self.calls += 1
            said = trimmed(answer.text, whole=answer.finish_reason != "length")
            return said if self._translates or grounded(said, text) else ""
        return ""


def fitting(sentences: Sequence[str], tokens: int) -> list[str]:
    """Return the sentences, in order, that fit; of a first one that is too long, its beginning."""
    kept: list[str] = []
    used = 0
    for sentence in sentences:
        size = tokens_of(sentence)
        if used + size > tokens:
            continue
        kept.append(sentence)
        used += size
    if not kept and sentences:
        kept = [sentences[0][: max(1, tokens // 3)]]
    return kept


def grounded(said: str, text: str) -> bool:
    """Return whether an answer shares a telling word with the text it is about, and so is not mere chatter."""
    if _unspaced.search(text):
        return bool(said)
    return bool(_telling(said) & _telling(text))


def _telling(text: str) -> set[str]:
    return {word.casefold() for word in _word.findall(text)} - STOPWORDS


def by_words(question: str, sentences: Sequence[str]) -> list[str]:
    """Return the sentences, those that share most words with the question first."""
    asked = _telling(question)
    return sorted(sentences, key=lambda sentence: -len(asked & _telling(sentence)))


def trimmed(text: str, *, whole: bool) -> str:
    """Return the answer's sentences once each, without a label in front and without a torn last sentence."""
    sentences = sentences_of(_lead.sub("", text.strip()))
    if not whole and len(sentences) > 1 and not sentences[-1].endswith((".", "!", "?", "…", "。", "”", '"')):
        sentences = sentences[:-1]
    unique = dict.fromkeys(" ".join(sentence.split()) for sentence in sentences)
    return " ".join(unique).strip()
