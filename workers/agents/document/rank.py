"""Ranking by vectors in plain Python: the likest to the whole, and no two alike."""

import math
from array import array
from collections.abc import Iterable, Sequence
from operator import mul

from workers.agents.provider import Vector

RELEVANCE = 0.7  # the rest is diversity
POOL = 400  # candidates that diversity looks at: keeps a long document's ranking short


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return float(sum(map(mul, left, right)))


def unit(vector: Sequence[float]) -> Vector:
    """Return the vector at length 1; a vector of zeros stays."""
    length = math.sqrt(dot(vector, vector))
    return array("f", (value / length for value in vector)) if length else array("f", vector)


def centroid(vectors: Sequence[Sequence[float]]) -> Vector:
    """Return the direction of the mean of the vectors. Raises ValueError without vectors."""
    if not vectors:
        raise ValueError("a centroid needs a vector")
    return unit([sum(column) for column in zip(*vectors, strict=True)])


def pick(vectors: Sequence[Sequence[float]], middle: Sequence[float], count: int) -> list[int]:
    """Return the indexes of `count` vectors, best first: near `middle`, far from those already picked (MMR)."""
    nearness = [dot(vector, middle) for vector in vectors]
    pool = sorted(range(len(vectors)), key=lambda i: -nearness[i])[:POOL]
    likeness = dict.fromkeys(pool, 0.0)
    scale = _Scale([nearness[i] for i in pool])
    picked: list[int] = []
    while pool and len(picked) < count:
        best = max(pool, key=lambda i: RELEVANCE * scale.of(nearness[i]) - (1 - RELEVANCE) * likeness[i])
        picked.append(best)
        pool.remove(best)
        for index in pool:
            likeness[index] = max(likeness[index], dot(vectors[index], vectors[best]))
    return picked


class _Scale:
    """Spreads the similarities over 0..1: small models put all sentences of a text close together."""

    def __init__(self, values: Iterable[float]) -> None:
        known = list(values)
        self._low = min(known, default=0.0)
        self._width = max(known, default=0.0) - self._low

    def of(self, value: float) -> float:
        return (value - self._low) / self._width if self._width else 1.0
