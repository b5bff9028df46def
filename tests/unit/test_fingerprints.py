"""Which failures are one case: what differs from run to run is left out, what tells causes apart stays."""

import json
import traceback
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.fingerprints import FRAMES, PATTERN_MAX, fingerprint_of, frames_of, pattern_of

FACTS = {"agent": "billing.sum", "reason": "fatal", "error_class": "agent_bug", "message": ""}
TEXT = st.text(max_size=60)


def of(message="it broke", *, error_type="ValueError", trace="", **facts):
    error = {"type": error_type, "message": message, "traceback": trace}
    return fingerprint_of(**(FACTS | facts), error=error).value


def trace_of(*names, path="/srv/app/agents/billing.py", line=10):
    frames = "".join(f'  File "{path}", line {line + n}, in {name}\n    x()\n' for n, name in enumerate(names))
    return f"Traceback (most recent call last):\n{frames}ValueError: it broke\n"


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("Order 4711 has -3 items for 1,234.50", "Order # has # items for #"),
        ("run 0190a3f2-1111-7abc-8def-aabbccddeeff is gone", "run # is gone"),
        ("commit deadbeefcafe, object at 0x7f00beef", "commit #, object at #"),
        ("'abc' is not of type \"integer\"", '"…" is not of type "…"'),
        ("can't open 'the file' of John's", "can't open \"…\" of John's"),
        ("cannot read /tmp/a/b-7.txt: C:\\data\\x.csv", "cannot read <path>: <path>"),
        ("input/output error", "input/output error"),
        ("write to ada@example.org (or bob@example.org)", "write to <address> (or <address>)"),
        ("GET https://host/path?q=1 failed", "GET <url> failed"),
        ("10.0.0.7:8080 and fe80::1 time out after 3.25s", "# and # time out after #"),
        ("at 2026-11-29T12:30:01.5Z", "at #"),
        ("  many \n spaces\tin it ", "many spaces in it"),
        ("", ""),
    ],
)
def test_what_differs_is_left_out_of_a_message(message, pattern):
    assert pattern_of(message) == pattern


@given(st.integers(), st.uuids(), st.text("0123456789abcdef", min_size=8, max_size=40), st.floats(0, 1e6), TEXT)
def test_ids_and_numbers_and_quotes_make_no_other_case(number, unique, digest, seconds, quoted):
    first = of(f"Order {number} of {unique} ({digest}) took {seconds} s: {json.dumps(quoted)}")

    assert first == of(f'Order 1 of {uuid.UUID(int=7)} (00000000) took 2.5 s: "x"')


@given(st.sampled_from(["agent", "reason", "error_class"]), TEXT.filter(lambda text: text not in FACTS.values()))
def test_another_agent_reason_or_class_is_another_case(name, value):
    assert of(**{name: value}) != of()


def test_another_type_message_or_place_is_another_case():
    cases = [
        of(),
        of(error_type="KeyError"),
        of("it broke elsewhere"),
        of(trace=trace_of("handle", "total")),
        of(trace=trace_of("handle", "average")),
        of(trace=trace_of("handle", "total", path="/srv/app/agents/orders.py")),
    ]

    assert len(set(cases)) == len(cases)


def test_lines_and_the_place_of_installation_make_no_other_case():
    here = of(trace=trace_of("handle", "total", line=10))

    assert of(trace=trace_of("handle", "total", line=99)) == here
    assert of(trace=trace_of("handle", "total", path="/opt/v2/agents/billing.py")) == here
    assert of(trace=trace_of("handle", "total", path="C:\\app\\agents\\billing.py")) == here


def test_the_innermost_frames_of_the_agents_own_code_count():
    library = '  File "/venv/lib/python3.12/site-packages/httpx/a.py", line 3, in send\n    x()\n'
    own = trace_of("a", "b", "c", "d", "e", "f", "g")
    text = own.replace("ValueError", library + "ValueError")

    assert frames_of(text) == [f"agents/billing.py {name}" for name in "cdefg"] == frames_of(own)
    assert frames_of("Traceback (most recent call last):\n" + library) == ["httpx/a.py send"]
    assert len(frames_of(own)) == FRAMES


def test_a_recursion_is_one_frame_however_deep():
    def sink(depth):
        if not depth:
            raise ValueError("bottom")
        sink(depth - 1)

    traces = []
    for depth in (3, 12):
        try:
            sink(depth)
        except ValueError:
            traces.append(traceback.format_exc())

    assert frames_of(traces[0]) == frames_of(traces[1])


def test_a_message_that_looks_like_frames_is_none():
    faked = trace_of("handle") + '  File "/tmp/evil.py", line 1, in other\n'

    assert frames_of(faked) == ["agents/billing.py handle"]


@pytest.mark.parametrize(
    "unit", ["x", "'", '"', "a ", "a@", ":", "1:", "/", "\\", "'\\", "#-", "0a", "é1", "http:", "'a", "\0"]
)
def test_a_megabyte_is_read_no_further_than_its_beginning(unit):
    message = unit * (1_000_000 // len(unit))

    assert pattern_of(message) == pattern_of(message[:5000])
    assert len(pattern_of(message)) <= PATTERN_MAX


def test_three_thousand_frames_are_read_no_further_than_their_beginning():
    text = trace_of(*(f"f{n}" for n in range(3000)))

    assert frames_of(text) == frames_of(text[:9000])
    assert len(frames_of(text)) == FRAMES


@pytest.mark.parametrize("error", [None, "a text", ["a"], {}, {"message": None, "type": 3, "traceback": {"a": 1}}])
def test_odd_errors_have_a_fingerprint(error):
    found = fingerprint_of(**FACTS | {"message": "said 7 times"}, error=error)

    assert (len(found.value), found.pattern) == (64, "said # times")


@given(TEXT, TEXT, TEXT)
def test_any_text_has_a_fingerprint_and_always_the_same(message, kind, trace):
    assert of(message, error_type=kind, trace=trace) == of(message, error_type=kind, trace=trace)
