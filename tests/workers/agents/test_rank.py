"""Ranking by vectors, and key words."""

import math
from array import array

import pytest

from workers.agents.document import keywords, rank


def vector(*values: float) -> array:
    return rank.unit(array("f", values))


def test_the_centroid_is_the_direction_of_the_mean():
    middle = rank.centroid([vector(1, 0), vector(0, 1)])

    assert list(middle) == pytest.approx([math.sqrt(0.5)] * 2, abs=1e-6)
    assert list(rank.unit(array("f", [0, 0]))) == [0, 0]


def test_the_nearest_comes_first_and_its_twin_comes_last():
    vectors = [vector(1, 0.05, 0), vector(1, 0.05, 0), vector(1, 0.4, 0.3), vector(0, 0, 1)]
    middle = vector(1, 0.1, 0)

    picked = rank.pick(vectors, middle, 3)

    assert picked[0] == 0
    assert picked[1] == 2
    assert rank.pick(vectors, middle, 9)[-1] in {1, 3}
    assert rank.pick([], middle, 3) == []


def test_candidates_are_frequent_groups_without_stopwords():
    sentences = ["The storm lantern hangs in the tower.", "Light the storm lantern at dusk.", "A Tower needs light."]

    [found] = keywords.candidates([sentences])

    assert found[0] == "storm lantern"
    assert not any(word.casefold() in {"the", "at", "a", "in"} for group in found for word in group.split())


def test_candidates_of_a_script_without_blanks():
    assert "灯台" in keywords.candidates([["灯台は古い。", "灯台の光。", "古い灯台。"]])[0]


def test_a_chapters_candidates_are_its_own_matters():
    rule = "Inspectors ask about this chapter first. "
    chapters = [[rule, f"The {thing} is old.", f"Clean the {thing}."] for thing in ("storm lantern", "fog horn")]

    lantern, horn = keywords.candidates(chapters)

    assert (lantern[0], horn[0]) == ("storm lantern", "fog horn")


def test_outsiders_are_not_picked_for_being_different():
    near = [vector(1, n / 100, 0) for n in range(8)]

    assert 8 not in rank.pick([*near, vector(-1, 0, 1)], vector(1, 0, 0), 2)


def test_chosen_words_are_no_parts_of_each_other():
    words = ["storm lantern", "lantern", "tower"]
    vectors = [vector(1, 0), vector(1, 0.01), vector(0.9, 0.5)]

    assert keywords.choose(words, vectors, vector(1, 0), 3) == ["storm lantern", "tower"]
