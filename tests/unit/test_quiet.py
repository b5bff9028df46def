"""A log during an outage: one line of a kind, then silence with a count; what differs is always written."""

import pytest
import structlog

from agentops.quiet import KINDS_MAX, Repeats


def test_a_repeated_warning_is_written_once():
    quiet = Repeats()

    quiet(None, "warning", {"event": "take.retried", "error": "Connection refused"})

    with pytest.raises(structlog.DropEvent):
        quiet(None, "warning", {"event": "take.retried", "error": "Connection refused"})


def test_the_next_line_says_how_many_were_not_written():
    quiet = Repeats(every=0.0)
    quiet._seen["take.retried", "Connection refused"] = (0.0, 7)

    line = quiet(None, "warning", {"event": "take.retried", "error": "Connection refused"})

    assert line["repeats"] == 7


@pytest.mark.parametrize(
    "other",
    [
        {"event": "beat.postponed", "error": "Connection refused"},
        {"event": "take.retried", "error": "out of memory"},
        {"event": "run.taken_over", "run_id": "1"},
    ],
)
def test_what_differs_is_written(other):
    quiet = Repeats()
    quiet(None, "warning", {"event": "take.retried", "error": "Connection refused"})

    assert quiet(None, "warning", dict(other)) == other


def test_news_without_an_error_is_never_dropped():
    quiet = Repeats()

    for _ in range(3):
        assert quiet(None, "warning", {"event": "run.taken_over", "run_id": "1"})
        assert quiet(None, "info", {"event": "run.lost", "error": "the same"})


def test_the_memory_is_bounded():
    quiet = Repeats()

    for number in range(2 * KINDS_MAX):
        quiet(None, "error", {"event": f"kind {number}", "error": "x"})

    assert len(quiet._seen) == KINDS_MAX
