"""Key words: candidate word groups by frequency, to be ranked by the likeness of their vectors to the text's."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from workers.agents.document import rank
from workers.agents.document.stopwords import STOPWORDS

CANDIDATES = 48
GROUP_MAX = 3  # words in a group
SHORT_TEXT = 60  # sentences: below this, a group that occurs once may be a key word
COMMON_SHARE = 0.25  # a short word in more sentences than this is a function word in any language
COMMON_LETTERS = 4

_word = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_unspaced = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]{2,}")
_breaks = re.compile(r"[^\w\s'\u2019-]+")


def candidates(sentences: Sequence[str]) -> list[str]:
    """Return up to CANDIDATES groups of 1 to 3 words in the spelling the text uses most, the likeliest first."""
    common = _common_words(sentences)
    counts: Counter[str] = Counter()
    spellings: dict[str, Counter[str]] = {}
    for sentence in sentences:
        for group in _groups(sentence, common):
            key = group.casefold()
            counts[key] += 1
            spellings.setdefault(key, Counter())[group] += 1
    least = 1 if len(sentences) < SHORT_TEXT else 2
    weights = {key: count * (1 + key.count(" ") * 0.6) for key, count in counts.items() if count >= least}
    best = sorted(weights, key=lambda key: (-weights[key], key))
    kept: list[str] = []
    for key in best:
        if not any(_within(key, other) and counts[other] * 2 > counts[key] for other in kept):
            kept.append(key)
        if len(kept) == CANDIDATES:
            break
    return [spellings[key].most_common(1)[0][0] for key in kept]


def choose(words: Sequence[str], vectors: Sequence[Sequence[float]], middle: Sequence[float], count: int) -> list[str]:
    """Return `count` of the words: likest to `middle`, unlike each other, none a part of another."""
    chosen: list[str] = []
    for index in rank.pick(vectors, middle, min(len(words), count * 3)):
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
