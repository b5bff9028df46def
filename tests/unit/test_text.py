"""Text at the border: what no database takes is replaced."""

import json

import pytest

from runs.results import dumps
from runs.text import clean_json, clean_text


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a\0b", "a\ufffdb"),
        ("\ud83d", "\ufffd\ufffd\ufffd"),
        ("half \udc00 pair", "half \ufffd\ufffd\ufffd pair"),
        ("whole 😀 pair", "whole 😀 pair"),
        ("line\nbreak\ttab\x07bell", "line\nbreak\ttab\x07bell"),
    ],
)
def test_text_keeps_everything_a_database_takes(dirty, clean):
    assert clean_text(dirty) == clean
    clean_text(dirty).encode("utf-8")


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (2**63 - 1, 2**63 - 1),
        (2**63, str(2**63)),
        (-(2**63) - 1, str(-(2**63) - 1)),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ({1: "a\0"}, {"1": "a\ufffd"}),
        ((1, [2, {"k": ()}]), [1, [2, {"k": []}]]),
        (b"bytes", "b'bytes'"),
    ],
)
def test_json_gets_only_what_every_reader_takes(dirty, clean):
    assert clean_json(dirty) == clean


def test_json_deeper_than_64_levels_is_cut():
    deep = []
    for _ in range(500):
        deep = [deep]

    text = json.dumps(clean_json(deep))

    assert text.count("[") == 65
    assert "…" in json.loads(text.replace("[", "").replace("]", ""))


def test_half_a_surrogate_pair_becomes_a_replacement_that_any_answer_can_carry():
    assert json.loads(dumps({"a": "x\ud83d"})) == {"a": "x\ufffd\ufffd\ufffd"}


@pytest.mark.parametrize("value", [{"ä": "😀"}, "a\0b", 2**70, [None, 1.5]])
def test_a_result_survives_its_text(value):
    text = dumps(value)

    text.encode("utf-8")
    assert "\0" not in text
    assert json.loads(text) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, {(1, 2): 3}])
def test_what_is_not_json_is_no_result(value):
    with pytest.raises((TypeError, ValueError)):
        dumps(value)
