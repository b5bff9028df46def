"""The owner's buffer: numbers without holes, whatever is stored, lost or closed in between."""

import datetime as dt
import threading

import orjson
import pytest

from tests import working
from workers import event_buffer
from workers.event_buffer import EventBuffer


@pytest.fixture
def buffer():
    return EventBuffer(3, dt.timedelta(0))


def ids(lines):
    return [line.id for line in lines]


def data(line):
    return orjson.loads(line.body)["data"]


def texts(lines):
    return [data(line)["text"] for line in lines if orjson.loads(line.body)["kind"] == "output.delta"]


def test_numbers_begin_at_two_because_one_is_the_lifecycle_event(buffer):
    assert buffer.last_seq == 1
    buffer.emit("a", {})
    buffer.emit("b", {})

    assert ids(buffer.take()) == ["3-2", "3-3"]
    assert buffer.last_seq == 3


def test_lines_stay_until_they_are_stored(buffer):
    for number in range(4):
        buffer.emit("a", {"n": number})
    assert ids(buffer.take()) == ids(buffer.take())

    buffer.stored("3-3")

    assert ids(buffer.take()) == ["3-4", "3-5"]
    assert ids(buffer.after("3-2")) == ["3-3", "3-4", "3-5"]
    assert ids(buffer.after("2-9")) == ["3-2", "3-3", "3-4", "3-5"]


def test_deltas_are_gathered_and_keep_their_place_before_other_events(buffer):
    buffer.delta("Hel")
    buffer.delta("lo")
    buffer.delta("")
    buffer.emit("a", {})
    buffer.delta("!")

    lines = buffer.take(everything=True)

    assert ids(lines) == ["3-2", "3-3", "3-4"]
    assert texts(lines) == ["Hello", "!"]


def test_a_young_delta_waits_for_company(buffer, monkeypatch):
    buffer.delta("young")
    assert buffer.take() == []

    monkeypatch.setattr(event_buffer, "DELTA_SECONDS", 0.0)

    assert texts(buffer.take()) == ["young"]


def test_much_delta_does_not_wait(buffer):
    for _ in range(300):
        buffer.delta("0123456789")

    assert "".join(texts(buffer.take())).startswith("0123456789")


@pytest.mark.parametrize("letter", ["x", "😀", "\x01"])
def test_a_delta_of_any_length_arrives_whole(buffer, letter):
    buffer.delta(letter * 50_000)

    lines = buffer.take(everything=True)

    assert "".join(texts(lines)) == letter * 50_000
    assert all(len(line.body) <= 16 * 1024 for line in lines)
    assert ids(lines) == [f"3-{number}" for number in range(2, len(lines) + 2)]


def test_a_closed_buffer_keeps_what_was_said_and_takes_nothing_more(buffer):
    buffer.delta("last words")
    buffer.close()
    buffer.close()
    buffer.emit("a", {})
    buffer.delta("too late")

    assert texts(buffer.take(everything=True)) == ["last words"]
    assert buffer.last_seq == 2


def test_the_tail_is_bounded(buffer):
    for number in range(1200):
        buffer.emit("a", {"n": number})
        buffer.stored(f"3-{number + 2}")

    assert buffer.take() == []
    assert ids(buffer.after(""))[0] == "3-702"
    assert len(buffer.after("")) == 500


def test_large_events_lower_the_cap(buffer, settings):
    settings.EVENT_CAP, settings.EVENT_CAP_BYTES = 10_000, 1_000_000
    assert buffer.cap == 10_000

    for _ in range(10):
        buffer.emit("a", {"text": "x" * 5000})

    assert 150 < buffer.cap < 200


def test_threads_number_without_holes_and_without_repeats(buffer):
    def work():
        for _ in range(200):
            buffer.emit("a", {})
            buffer.delta("x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = buffer.after("")
    buffer.close()
    lines = buffer.after("")
    assert ids(lines) == [f"3-{number}" for number in range(2, len(lines) + 2)]
    assert len("".join(texts(lines))) == 800


@pytest.mark.parametrize("kind", ["", "run.succeeded", "run.progress"])
def test_the_services_own_kinds_are_not_an_agents_to_emit(kind):
    with pytest.raises(ValueError, match=r"run\."):
        working.context().emit(kind, {})


def test_a_kind_and_its_data_are_cleaned():
    ctx = working.context()
    ctx.emit("odd\0kind" + "x" * 100, {"text": "\ud83d", "n": 2**70})

    stored = orjson.loads(ctx._buffer.take()[0].body)

    assert stored["kind"].startswith("odd\ufffdkind")
    assert len(stored["kind"]) == 60
    assert stored["data"] == {"text": "\ufffd\ufffd\ufffd", "n": str(2**70)}


@pytest.mark.parametrize("message", ["a\0b", "\ud83d", "x" * 1000])
def test_progress_is_storable_on_every_database(message):
    ctx = working.context()
    ctx.progress(2**70, 3, message)

    assert "\0" not in ctx.progress_now["message"]
    assert len(ctx.progress_now["message"].encode("utf-8")) <= 900
    assert (ctx.progress_now["done"], ctx.progress_now["total"]) == (2**53, 3)
