"""What becomes of a model's answers, whatever they are."""

import pytest

from workers.agents.document.writer import Room, by_words, fitting, grounded, trimmed
from workers.agents.tokens import tokens_of


@pytest.mark.parametrize(
    ("said", "whole", "kept"),
    [
        ("Summary: The lamp is lit. The lamp is lit. It burns.", True, "The lamp is lit. It burns."),
        ("The lamp is lit. And then the", False, "The lamp is lit."),
        ("The lamp and then the", False, "The lamp and then the"),
        ("  \n ", True, ""),
        ("A: At dusk.", True, "At dusk."),
    ],
)
def test_answers_are_trimmed_to_sentences_said_once(said, whole, kept):
    assert trimmed(said, whole=whole) == kept


def test_chatter_is_not_taken_for_an_answer():
    text = "The wick of the lamp is trimmed at dusk."

    assert grounded("It says that the wick is short.", text)
    assert not grounded("Sure! I am happy to help you with that.", text)
    assert grounded("灯", "灯台の光。")


def test_material_fits_its_room_in_order():
    sentences = [f"Sentence {n} tells of the harbour and of the pilot boats." for n in range(50)]

    kept = fitting(sentences, 100)

    assert kept == sentences[: len(kept)]
    assert 0 < sum(map(tokens_of, kept)) <= 100
    assert len(fitting(["x" * 9000], 90)[0]) <= 90
    assert fitting([], 90) == []


def test_room_grows_with_the_window_and_never_fills_it():
    assert Room.of(256) == Room(64, 64)
    assert Room.of(2048) == Room(512, 512)
    assert Room.of(1_000_000).material == 6000


def test_sentences_nearest_to_the_question_come_first():
    assert (
        by_words("When is the wick trimmed?", ["The boat sails.", "The wick is trimmed."])[0] == "The wick is trimmed."
    )
