"""How a bulk operation acts, as its form says it and its row keeps it."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from quotas.models import Priority
from runs.errors import InvalidRequest
from runs.services import Changes
from runs.services.overrides import DELAY_MAX
from runs.services.requeue import KEPT
from workers.bulk.edits import applied
from workers.models import BulkOperation

PACE_MAX = 60_000  # items a minute
RUN_BULK = "workers.run_bulkoperation"
WAIVE = "quotas.write_off"
Kind: TypeAlias = BulkOperation.Kind
Source: TypeAlias = BulkOperation.Source
# What can be done with what a list shows.
ACTS: dict[str, tuple[Kind, ...]] = {
    Source.RUNS: (Kind.REQUEUE, Kind.CANCEL, Kind.REPRIORITISE),
    Source.LETTERS: (Kind.REQUEUE, Kind.DISCARD),
}
NEEDS: dict[tuple[str, str], str] = {
    (Source.RUNS, Kind.REQUEUE): "runs.requeue_run",
    (Source.RUNS, Kind.CANCEL): "runs.cancel_run",
    (Source.RUNS, Kind.REPRIORITISE): "runs.reprioritise_run",
    (Source.LETTERS, Kind.REQUEUE): "workers.requeue_deadletter",
    (Source.LETTERS, Kind.DISCARD): "workers.discard_deadletter",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the act is done with; `pace` items a minute at most, `delay` in seconds, None where nothing is said.

    `with_succeeded`: requeue runs that succeeded too. `waived`: nobody pays for the new runs. `edit` is made to the
    input of every target (workers/bulk/edits).
    """

    canary: bool = False
    pace: int | None = None
    priority: str | None = None
    delay: float | None = None
    with_succeeded: bool = False
    waived: bool = False
    edit: dict[str, Any] | None = None

    def checked(self, source: str, kind: str) -> "Options":
        """Return the options where they can be of this act; raises InvalidRequest."""
        if kind not in ACTS.get(source, ()):
            raise InvalidRequest(field="kind", problem=f"{source[:20]} cannot be given to {kind[:20]}")
        if self.priority is not None and self.priority not in Priority.values:
            raise InvalidRequest(field="priority", problem=f"one of {', '.join(Priority.values)}")
        if kind == Kind.REPRIORITISE and self.priority is None:
            raise InvalidRequest(field="priority", problem="say which one")
        if self.canary and kind != Kind.REQUEUE:
            raise InvalidRequest(field="canary", problem="only a requeue makes a run that can be waited for")
        if self.waived and kind != Kind.REQUEUE:
            raise InvalidRequest(field="payer", problem="only the runs of a requeue can be waived")
        if self.pace is not None and not 1 <= self.pace <= PACE_MAX:
            raise InvalidRequest(field="pace", problem=f"1 to {PACE_MAX} a minute")
        if self.delay is not None and not 0 <= self.delay <= DELAY_MAX.total_seconds():
            raise InvalidRequest(field="delay", problem=f"seconds from 0 to {DELAY_MAX.total_seconds():.0f}")
        return self

    def changes(self, before: Any) -> Changes:
        """Return what the requeue of a run with this input changes; raises InvalidRequest where the edit cannot be."""
        edited = KEPT if self.edit is None else applied(self.edit, before)
        return Changes(input=edited, priority=self.priority, delay=self.delay, waived=self.waived)

    @property
    def stored(self) -> dict[str, Any]:
        """The part that has no column of its own in the operation's row."""
        said = {"priority": self.priority, "delay": self.delay, "edit": self.edit}
        chosen = {"with_succeeded": self.with_succeeded, "waived": self.waived}
        kept = {name: value for name, value in said.items() if value is not None}
        return kept | {name: True for name, is_chosen in chosen.items() if is_chosen}


def permissions_for(operation: BulkOperation) -> tuple[str, ...]:
    """Return what somebody needs for an operation to go on; one on a single target is an act like any other."""
    needed = [NEEDS[Source(operation.source), Kind(operation.kind)]]
    needed += [RUN_BULK] if operation.total > 1 else []
    return (*needed, WAIVE) if operation.options.get("waived") else tuple(needed)


def options_of(operation: BulkOperation) -> Options:
    """Return the options an operation was started with."""
    return Options(canary=operation.canary, pace=operation.pace, **operation.options)
