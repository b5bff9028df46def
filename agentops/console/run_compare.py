"""Two attempts of a run side by side: what differs first, then what is the same."""

import datetime as dt
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from quotas.display import NOTHING, between, credits_of, moment, pretty_text, usage_rows
from runs.models import Attempt, Run

MOST = 100  # attempts to choose from
TEXT_MAX = 2000  # of a cell
Row = tuple[str, str, str]


def comparison(run: Run, asked: Mapping[str, str], now: dt.datetime, *, payload: bool) -> dict[str, Any]:
    """Return {options: [[fence, label]], a, b, left, right, rows: [[what, left, right, differs]]}.

    `left` and `right` are the labels of the two; below two attempts there are no rows.

    `asked` names the two by their fences, `a` and `b`; without, or wrong: the last two.
    """
    kept = list(run.attempts.order_by("-fence").values_list("fence", "number", "outcome")[:MOST])[::-1]
    labels = {fence: f"Attempt {number}, {outcome or 'running'}, fence {fence}" for fence, number, outcome in kept}
    chosen: dict[str, Any] = {"options": [list(item) for item in labels.items()], "a": 0, "b": 0, "rows": []}
    if len(kept) < 2:
        return chosen | {"left": "", "right": ""}
    fences = list(labels)
    a, b = (_chosen(asked.get(name), fences, default) for name, default in (("a", fences[-2]), ("b", fences[-1])))
    chosen |= {"a": a, "b": b, "left": labels[a], "right": labels[b]}
    found = {row.fence: row for row in run.attempts.filter(fence__in=(a, b))}
    if len(found) == len({a, b}):
        pairs = [[name, left, right, left != right] for name, left, right in _rows(found[a], found[b], now, payload)]
        chosen["rows"] = sorted(pairs, key=lambda pair: not pair[3])
    return chosen


def _chosen(asked: str | None, fences: list[int], default: int) -> int:
    known = {str(fence): fence for fence in fences}
    return known.get(asked or "", default)


def _rows(left: Attempt, right: Attempt, now: dt.datetime, payload: bool) -> Iterator[Row]:  # noqa: FBT001
    yield "Outcome", left.outcome or "running", right.outcome or "running"
    yield "Error", left.error_class or NOTHING, right.error_class or NOTHING
    if payload:
        yield "Message", _message(left.error), _message(right.error)
        yield from _first_line_that_differs(left.error, right.error)
    yield from _usage(left, right)
    yield "Cost", credits_of(left.cost), _number(right.cost, left.cost, credits_of)
    yield "Ran", between(left.started_at, left.ended_at or now), between(right.started_at, right.ended_at or now)
    yield "Progress", _progress(left), _progress(right)
    if payload and (left.result_json or right.result_json):
        yield "Answer that did not count", _answer(left), _answer(right)
    yield "Worker", left.worker, right.worker
    yield "Began", moment(left.started_at), moment(right.started_at)


def _message(error: Any) -> str:
    if not isinstance(error, dict):
        return NOTHING if error is None else str(error)[:TEXT_MAX]
    text = ": ".join(filter(None, (str(error.get("type") or ""), str(error.get("message") or ""))))
    return text[:TEXT_MAX] or NOTHING


def _first_line_that_differs(left: Any, right: Any) -> Iterator[Row]:
    """Yield the first line at which two tracebacks part; nothing where one of them has none, or they are the same."""
    ours, theirs = _lines(left), _lines(right)
    if not ours or not theirs:
        return
    for number, (one, other) in enumerate(zip_longest(ours, theirs, fillvalue=NOTHING), start=1):
        if one != other:
            yield f"Traceback from line {number}", one.strip()[:TEXT_MAX], other.strip()[:TEXT_MAX]
            return


def _lines(error: Any) -> list[str]:
    return str(error.get("traceback") or "").splitlines() if isinstance(error, dict) else []


def _usage(left: Attempt, right: Attempt) -> Iterator[Row]:
    """Yield the tokens of each model and kind that one of them used."""
    ours, theirs = _tokens(left), _tokens(right)
    for name in sorted({*ours, *theirs}):
        yield f"Tokens, {name}", ours.get(name, "0"), theirs.get(name, "0")


def _tokens(attempt: Attempt) -> dict[str, str]:
    return {f"{model} {kind}".strip(): tokens for model, kind, tokens in usage_rows(attempt.usage)}


def _number(value: int, other: int, shown: Any) -> str:
    """Return a number, and by how much it is more or less than the other one."""
    if value == other:
        return str(shown(value))
    return f"{shown(value)} ({'+' if value > other else ''}{shown(value - other)})"


def _progress(attempt: Attempt) -> str:
    progress = attempt.progress if isinstance(attempt.progress, dict) else {}
    return f"{progress.get('done')} of {progress.get('total')}" if progress.get("total") else NOTHING


def _answer(attempt: Attempt) -> str:
    return pretty_text(attempt.result_json)[:TEXT_MAX] or NOTHING
