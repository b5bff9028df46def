"""Events on the wire: encoding, cutting, ids, and the reader's test of order."""

import datetime as dt
import uuid

import orjson
import pytest

from runs import events, reader
from runs.errors import InvalidCursor
from runs.reader import Follower

AT = dt.datetime(2026, 11, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
RUN = uuid.uuid4()
LIMIT = 16 * 1024


def encoded(data, kind="probe.tick"):
    body = events.encode(kind, data, AT)
    assert len(body) <= LIMIT
    stored = orjson.loads(body)
    assert (stored["kind"], stored["at"]) == (kind, "2026-11-29T12:00:00.123Z")
    return stored["data"]


def test_a_small_event_is_stored_as_it_is():
    data = {"text": "ä😀", "n": 1, "nested": {"list": [1, 2.5, None, True]}}

    assert encoded(data) == data


def test_an_event_of_exactly_the_limit_is_not_cut():
    overhead = len(events.encode("probe.tick", {"text": ""}, AT))

    assert encoded({"text": "x" * (LIMIT - overhead)}) == {"text": "x" * (LIMIT - overhead)}
    assert encoded({"text": "x" * (LIMIT - overhead + 1)})["truncated"] is True


@pytest.mark.parametrize("letter", ["x", "ä", "😀", "\n", "\x01"])
def test_a_long_text_is_cut_between_letters_and_marked(letter):
    data = encoded({"text": letter * 100_000, "n": 7})

    assert data["truncated"] is True
    assert data["n"] == 7
    assert data["text"].endswith("… (cut)")
    assert set(data["text"].removesuffix("… (cut)")) == {letter}


@pytest.mark.parametrize(
    "data",
    [
        {"rows": [{"k": "v" * 50} for _ in range(2000)]},
        {f"key {n}": n for n in range(5000)},
        {"k" * 20_000: 1},
        {"a": "x" * 9000, "b": "y" * 9000, "c": ["z" * 9000]},
    ],
)
def test_a_large_structure_is_cut_and_stays_json(data):
    assert encoded(data)["truncated"] is True


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        ({"n": 2**70}, {"n": str(2**70)}),
        ({"n": float("nan")}, {"n": None}),
        ({"text": "\ud83d"}, {"text": "\ufffd\ufffd\ufffd"}),
        ({"text": "a\0b"}, {"text": "a\0b"}),
        ({1: 2}, {"1": 2}),
        ({"when": AT}, {"when": "2026-11-29T12:00:00.123456+00:00"}),
        ({"what": RUN}, {"what": str(RUN)}),
    ],
)
def test_odd_values_are_stored_as_readers_take_them(data, stored):
    assert encoded(data) == stored


def test_a_long_text_with_half_a_pair_is_cut_too():
    assert encoded({"text": "\ud83d" * 30_000})["truncated"] is True


@pytest.mark.parametrize(
    ("value", "parts"),
    [("", (0, 0)), ("1-1", (1, 1)), ("12-345", (12, 345)), (f"{2**63}-{2**63}", (2**63, 2**63))],
)
def test_an_event_id_is_split_into_fence_and_number(value, parts):
    assert events.split_id(value) == parts


@pytest.mark.parametrize(
    "value",
    ["1", "1-", "-1", "a-1", "1-1-1", "1 -1", "+1-1", "²-1", "1-٣", "$", "9" * 40 + "-1", f"{2**64}-1", f"1-{2**64}"],
)
def test_what_is_no_event_id_is_refused(value):
    with pytest.raises(ValueError, match=r".*"):
        events.split_id(value)
    with pytest.raises(InvalidCursor):
        reader.check_cursor(value)


def event(event_id, kind="probe.tick"):
    return {"id": event_id, "run": str(RUN), "at": "", "kind": kind, "data": {}}


@pytest.mark.parametrize(
    ("before", "after", "prev", "verdict"),
    [
        ("", "1-1", "", True),
        ("", "1-2", "", False),
        ("", "2-1", "1-1", False),
        ("1-1", "2-1", "1-1", True),
        ("2-1", "2-2", "", True),
        ("2-1", "2-3", "", False),
        ("2-5", "3-1", "2-5", True),
        ("2-5", "3-1", "2-6", False),
        ("2-5", "3-2", "2-5", False),
        ("1-1", "3-1", "2-1", False),
    ],
)
def test_the_next_event_is_the_next_number_or_the_next_fence_that_names_the_last(before, after, prev, verdict):
    assert events.follows(before, event(after), prev) is verdict


@pytest.fixture
def follow(monkeypatch):
    """Feed a follower ids (`id` or `id<prev`, `!` marks the end) and return what it gives out."""
    monkeypatch.setattr(reader, "gap", lambda run_id, after, before, run: {"id": "", "kind": f"{after}..{before}"})

    def feed(cursor, *ids):
        pairs = []
        for text in ids:
            event_id, _, prev = text.rstrip("!").partition("<")
            pairs.append((event(event_id, "run.succeeded" if text.endswith("!") else "probe.tick"), prev))
        follower = Follower(RUN, cursor)
        return [each["id"] or each["kind"] for each in follower.accept(pairs)], follower

    return feed


def test_a_follower_gives_each_event_once_and_in_order(follow):
    given, follower = follow("", "1-1", "2-1<1-1", "2-1<1-1", "1-1", "2-2", "2-2", "3-1<2-2!")

    assert given == ["1-1", "2-1", "2-2", "3-1"]
    assert (follower.cursor, follower.ended) == ("3-1", True)


def test_a_follower_leaves_out_what_is_before_its_cursor(follow):
    assert follow("2-1", "1-1", "2-1<1-1", "2-2")[0] == ["2-2"]


def test_a_follower_says_what_is_missing(follow):
    assert follow("", "1-1", "2-1<1-1", "2-4", "3-1<2-9!")[0] == ["1-1", "2-1", "2-1..2-4", "2-4", "2-4..3-1", "3-1"]
    assert follow("2-3", "2-7")[0] == ["2-3..2-7", "2-7"]


def test_a_follower_from_the_beginning_says_that_the_beginning_is_missing(follow):
    assert follow("", "2-500", "2-501")[0] == ["..2-500", "2-500", "2-501"]


def test_a_follower_gives_nothing_after_the_end(follow):
    assert follow("", "1-1", "2-1<1-1!", "2-2", "3-1<2-2")[0] == ["1-1", "2-1"]
