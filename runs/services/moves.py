"""What a service hands to whoever announces it: a run as it is now, and the transition that made it so."""

from dataclasses import dataclass, field, replace
from typing import Any

from runs.models import Run, Transition
from runs.outcomes import Cause, Failed

ERROR_TEXT_MAX = 2000


@dataclass(frozen=True, slots=True)
class Moved:
    """One run after its move. `run` carries the new state and fence."""

    run: Run
    row: Transition


@dataclass(frozen=True, slots=True)
class Left:
    """A run that somebody else than its running owner moved, and what came of it in the same transaction."""

    moved: Moved
    failed: list[Run] = field(default_factory=list)  # for good: to be buried in the same commit
    started: list[Moved] = field(default_factory=list)  # the successor in its session, queued now


def caused(error: Failed, cause: Cause) -> Failed:
    """Return the error of a run that gets no further attempt, with the reason."""
    return replace(error, retry_in=None, cause=cause.value)


def fail_columns(run: Run, error: Failed) -> dict[str, Any]:
    """Return the columns of a run that fails, and tell its row, so that its dead letter sees what is stored."""
    run.error, run.error_class = error.as_json(), error.error_class.value
    return {"error": run.error, "error_class": run.error_class}


def short(error: Failed) -> dict[str, Any]:
    """Return an error as events carry it: without its traceback."""
    return {**error.as_json(), "traceback": "", "message": error.message[:ERROR_TEXT_MAX]}


def retry_data(run: Run, error: Failed, columns: dict[str, Any]) -> dict[str, Any]:
    """Return what `run.retrying` and `run.retaken` say: which attempt comes, who pays, and what ended this one.

    The run comes with its account: it is locked, and no statement may be spent on its name.
    """
    at = columns["not_before"]
    return {
        "attempt": run.attempt + 1,
        "of": run.max_attempts,
        "paid_by": run.account.name,
        "not_before": None if at is None else at.isoformat(),
        "error": short(error),
    }
