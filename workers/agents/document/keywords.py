"""Key words: candidate word groups by frequency, to be ranked by the likeness of their vectors to the text's."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from workers.agents.document import rank
from workers.agents.document.stopwords import STOPWORDS

CANDIDATES = 48  # of a document, but at least CHAPTER_LEAST of each chapter
CHAPTER_LEAST = 8
LONGER = 0.6  # what each further word of a group adds to its weight
GROUP_MAX = 3  # words in a group
SHORT_TEXT = 60  # sentences: below this, a group that occurs once may be a key word
COMMON_SHARE = 0.25  # a short word in more sentences than this is a function word in any language
COMMON_LETTERS = 4

_word = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_unspaced = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2,}")
_breaks = re.compile(r"[^\w\s'\u2019-]+")


def candidates(chapters: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return for each chapter's sentences its likeliest groups of 1 to 3 words, as the text mostly spells them.

    A group counts more the more often a chapter has it and the fewer other chapters do.
    """
    everything = [sentence for sentences in chapters for sentence in sentences]
    common = _common_words(everything)
    counts: list[Counter[str]] = []
    spellings: dict[str, Counter[str]] = {}
    for sentences in chapters:
        groups = [group for sentence in sentences for group in _groups(sentence, common)]
        counts.append(Counter(group.casefold() for group in groups))
        for group in groups:
            spellings.setdefault(group.casefold(), Counter())[group] += 1
    spread = Counter(key for counted in counts for key in counted)
    least = 1 if len(everything) < SHORT_TEXT else 2
    room = max(CHAPTER_LEAST, CANDIDATES // max(1, len(chapters)))
    found = []
    for counted in counts:
        weights = {
            key: count * (1 + key.count(" ") * LONGER) * math.log(1 + len(chapters) / spread[key])
            for key, count in counted.items()
            if count >= least
        }
        kept = _kept(weights, counted, room)
        found.append([spellings[key].most_common(1)[0][0] for key in kept])
    return found


def _kept(weights: dict[str, float], counted: Counter[str], room: int) -> list[str]:
    """Return the weightiest groups; one that mostly occurs inside a longer one is left out."""
    kept: list[str] = []
    for key in sorted(weights, key=lambda key: (-weights[key], key)):
        if not any(_within(key, other) and counted[other] * 2 > counted[key] for other in kept):
            kept.append(key)
        if len(kept) == room:
            break
    return kept


def choose(words: Sequence[str], vectors: Sequence[Sequence[float]], middle: Sequence[float], count: int) -> list[str]:
    """Return `count` of the words: likest to `middle`, unlike each other, none a part of another."""
    chosen: list[str] = []
    for index in rank.pick(vectors, middle, len(words), among=count * rank.AMONG):
        word = words[index]
        if not any(_within(word.casefold(), c.casefold()) or _within(c.casefold(), word.casefold()) for c in chosen):
            chosen.append(word)
        if len(chosen) == count:
            break
    return chosen


def _within(short: str, long: str) -> bool:
    return f" {short} " in f" {long} "


def _common_words(sentences: Sequence[str]) -> frozenset[str]:
    if len(sentences) < SHORT_TEXT:
        return frozenset()
    counts = Counter(word for s in sentences for word in {w.casefold() for w in _word.findall(s)})
    return frozenset(
        word for word, count in counts.items() if len(word) <= COMMON_LETTERS and count > COMMON_SHARE * len(sentences)
    )


def _groups(sentence: str, common: frozenset[str]) -> Iterator[str]:
    for part in _breaks.split(sentence):
        row: list[str] = []
        for word in part.split():
            if _word.fullmatch(word) and not _empty(word, common):
                row.append(word)
            else:
                yield from _of_row(row)
                row = []
        yield from _of_row(row)
    for run in _unspaced.findall(sentence):  # scripts without blanks: short runs of characters
        for size in (2, 3, 4):
            yield from (run[at : at + size] for at in range(len(run) - size + 1))


def _of_row(row: list[str]) -> Iterator[str]:
    for size in range(1, GROUP_MAX + 1):
        yield from (" ".join(row[at : at + size]) for at in range(len(row) - size + 1))


def _empty(word: str, common: frozenset[str]) -> bool:
    lower = word.casefold()
    return len(lower) < 3 or lower in STOPWORDS or lower in common or _unspaced.search(word) is not None
