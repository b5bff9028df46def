"""What a handler's process prints: lines of the log with the run's id, never more than a bounded number."""

from structlog.testing import capture_logs

from workers.output import BURST_LINES, LINE_BYTES, TAIL_LINES, Output


def test_lines_are_logged_with_the_run_whole_and_in_order():
    output = Output("run-1")
    with capture_logs() as logged:
        for block in (b"one\ntw", b"o\n", b"\xff\nlast", b""):
            output.feed(block)

    assert [(entry["event"], entry["run_id"], entry["line"]) for entry in logged] == [
        ("handler.output", "run-1", line) for line in ("one", "two", "\ufffd", "last")
    ]
    assert output.tail() == "one\ntwo\n\ufffd\nlast"


def test_a_flood_is_cut_counted_and_its_end_kept():
    output = Output("run-1")
    with capture_logs() as logged:
        for number in range(10 * BURST_LINES):
            output.feed(b"line %d\n" % number)
        output.feed(b"")

    shown = sum(entry["event"] == "handler.output" for entry in logged)
    left_out = sum(entry["lines"] for entry in logged if entry["event"] == "handler.output_left_out")
    assert BURST_LINES <= shown < 3 * BURST_LINES
    assert shown + left_out == 10 * BURST_LINES
    assert output.tail().splitlines() == [f"line {9 * BURST_LINES + BURST_LINES - n}" for n in range(TAIL_LINES, 0, -1)]


def test_a_line_without_end_is_not_held():
    output = Output("run-1")
    with capture_logs() as logged:
        for _ in range(100):
            output.feed(b"x" * 1000)

    assert {len(entry["line"]) for entry in logged} == {LINE_BYTES}
