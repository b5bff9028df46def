"""A chapter's text as sentences, and sentences as chunks that fit the model's window."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workers.agents.tokens import tokens_of

SENTENCE_TOKENS = 200  # a longer one is cut: embedding servers refuse inputs over their batch (512 tokens and more)
CHUNK_TOKENS = 900

_ends = re.compile(
    r"(?<=[.!?…])[\"'»”\u2019)\]]*\s+(?=[\"'«„“\u2018(\[¿¡]*[^\W_a-zà-ÿа-я])|(?<=[。\uff01\uff1f])[」』”]*\s*"
)
_abbreviation = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|Mr|Mrs|Ms|Dr|Prof|St|No|Nr|Fig|Figs|Abb|Bd|vs|etc|e\.g|i\.e|cf|ca|approx|z\.\s?B|d\.\s?h|bzw|usw|pp?|vol|Sr|Jr)\.$"
)
_blank = re.compile(r"\n\s*\n")
_bullet = re.compile(r"\n(?=\s*(?:[-*•·\u2013]|\d{1,2}[.)])\s)")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring sentences of one chapter that fit one request."""

    chapter: int
    sentences: tuple[str, ...]


def sentences_of(text: str) -> list[str]:
    """Return the sentences in order, blanks squeezed; blank lines and list items always end one."""
    found: list[str] = []
    for paragraph in _blank.split(text):
        for item in _bullet.split(paragraph):
            flat = " ".join(item.split()).lstrip("#>*•· ")
            for sentence in _of_paragraph(flat):
                found.extend(_pieces(sentence))
    return found


def _of_paragraph(text: str) -> Iterator[str]:
    begin = 0
    for end in _ends.finditer(text):
        head = text[begin : end.start()]
        if _abbreviation.search(head):
            continue
        if head.strip():
            yield text[begin : end.end()].strip()
        begin = end.end()
    if text[begin:].strip():
        yield text[begin:].strip()


def _pieces(sentence: str) -> Iterator[str]:
    """Cut what is too long for one input, at a blank where there is one."""
    while tokens_of(sentence) > SENTENCE_TOKENS:
        size = max(1, len(sentence) * SENTENCE_TOKENS // (2 * tokens_of(sentence)))
        while size > 1 and tokens_of(sentence[:size]) > SENTENCE_TOKENS:
            size //= 2
        at = sentence.rfind(" ", size // 2, size)
        cut = at if at > 0 else size
        yield sentence[:cut].strip()
        sentence = sentence[cut:].strip()
    if sentence:
        yield sentence


def chunks_of(chapter: int, sentences: Sequence[str], window: int) -> list[Chunk]:
    """Return the chapter's chunks, each well below `window` tokens."""
    room = min(CHUNK_TOKENS, window // 2)
    chunks: list[Chunk] = []
    held: list[str] = []
    size = 0
    for sentence in sentences:
        tokens = tokens_of(sentence)
        if held and size + tokens > room:
            chunks.append(Chunk(chapter, tuple(held)))
            held, size = [], 0
        held.append(sentence)
        size += tokens
    if held:
        chunks.append(Chunk(chapter, tuple(held)))
    return chunks
