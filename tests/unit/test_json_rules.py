"""The JSON rules without a server: what is refused, and that the refusal names the place."""

import json
import math
import time

import pytest

from quotas.errors import Refusal
from quotas.json_rules import (
    DuplicateKey,
    InvalidJson,
    InvalidNumber,
    InvalidText,
    TooDeep,
    check_json,
    digest,
    parse,
)


@pytest.mark.parametrize(
    ("body", "refusal", "path"),
    [
        (rb'{"a":"x\u0000y"}', InvalidText, "a"),
        (rb'{"a":{"b":["ok","\u0000"]}}', InvalidText, "a.b[1]"),
        (rb'{"a":{"k\u0000":1}}', InvalidText, r'a["k\u0000"]'),
        (rb'{"input":"\ud83d"}', InvalidText, "input"),
        (rb'{"input":{"\udc00":1}}', InvalidText, r'input["\udc00"]'),
        (b'{"input":{"x":NaN}}', InvalidNumber, "input.x"),
        (b'{"input":[1,Infinity]}', InvalidNumber, "input[1]"),
        (b'{"input":-Infinity}', InvalidNumber, "input"),
        (b'{"input":1e999}', InvalidNumber, "input"),
        (b'{"input":9223372036854775808}', InvalidNumber, "input"),
        (b'{"input":' + b"9" * 10_000 + b"}", InvalidNumber, "input"),
        (b'{"a":{"b":1,"b":2}}', DuplicateKey, "a"),
        (b'{"a":1,"a":{"b":2,"b":3}}', DuplicateKey, "the top"),
        (b'{"a":"\xff"}', InvalidJson, ""),
        ('{"a":1}'.encode("utf-16"), InvalidJson, ""),
        (b'\xef\xbb\xbf{"a":1}', InvalidJson, ""),
        (b"", InvalidJson, ""),
        (b"{'a':1}", InvalidJson, ""),
        (b'{"a":1}}', InvalidJson, ""),
        (b'{"a', InvalidJson, ""),
    ],
)
def test_refusal_names_the_place(body, refusal, path):
    with pytest.raises(refusal) as caught:
        parse(body)
    assert caught.value.facts["path"] == path
    caught.value.message.encode("ascii")


@pytest.mark.parametrize("levels", [65, 10_000, 100_000, 500_000])
@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_counted_before_parsing(levels, start, end):
    with pytest.raises(TooDeep):
        parse(start * levels + b"1" + end * levels)


def test_sixty_four_levels_are_fine_and_strings_do_not_count():
    assert parse(b"[" * 64 + b"]" * 64)
    assert parse(json.dumps({"a": "[" * 1000 + '\\"[[{{' * 50}).encode())


@pytest.mark.parametrize(
    "body", [b'"' + rb"\"" * 500_000, b'"' * 1_000_000, b"[]," * 300_000, rb"\\" * 500_000, b"[" * 1_000_000]
)
def test_a_full_body_of_nonsense_is_refused_quickly(body):
    start = time.monotonic()
    with pytest.raises(Refusal):
        parse(body)
    assert time.monotonic() - start < 5


def test_good_values_pass_unchanged():
    value = {"text": "😀 e\u0301 \u200d", "n": [0, -1, 2**63 - 1, -(2**63), 1.5, 1e308], "b": [True, None], "": {}}
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value
    check_json(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**63, {"a": "\0"}, {1: 2}, {"a": {1, 2}}, "\ud800", b"x"])
def test_python_values_are_held_to_the_same_rules(value):
    with pytest.raises(Refusal):
        check_json(value)


def test_python_values_that_nest_too_deep_are_refused_without_recursion():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(TooDeep):
        check_json(value)


def test_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": True})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
