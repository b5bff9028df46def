"""Ranking by vectors in plain Python: the likest to the whole, and no two alike."""

import math
from array import array
from collections.abc import Sequence
from operator import mul

from workers.agents.provider import Vector

AMONG = 4  # times as many as wanted: only the nearest so many are looked at, or diversity would pick outsiders


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


def pick(
    vectors: Sequence[Sequence[float]], middle: Sequence[float], count: int, among: int | None = None
) -> list[int]:
    """Return the indexes of `count` vectors, best first: near `middle`, far from those already picked (MMR).

    Only the nearest `among` are looked at. Nearness and likeness weigh the same: only then does it not matter that
    small models put all texts close together.
    """
    nearness = [dot(vector, middle) for vector in vectors]
    pool = sorted(range(len(vectors)), key=lambda i: -nearness[i])[: among or AMONG * count]
    likeness = dict.fromkeys(pool, -1.0)
    picked: list[int] = []
    while pool and len(picked) < count:
        best = max(pool, key=lambda i: nearness[i] - likeness[i])
        picked.append(best)
        pool.remove(best)
        for index in pool:
            likeness[index] = max(likeness[index], dot(vectors[index], vectors[best]))
    return picked
