"""Lifecycle events: from transition rows to the log, with the repair of a log that lost or lacks some (protocol 3.3).

The row is the truth; the event is its announcement. So everything here can be repeated, and is, by the closer and
the sweeper, until the log ends as the row says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from uuid import UUID

import redis

from runs import events, keys
from runs.events import Answer, Append, Line
from runs.models import Run, Transition
from runs.states import CLAIM

UNKNOWN = "unknown"  # the `prev` of an event before which an owner may have stored events that are gone


def lines_of(rows: Iterable[Transition]) -> list[Line]:
    """Return the lifecycle of a log that is made again from its rows, in order.

    Whoever ended a lost owner's attempt does not know the owner's last number (no `prev`): what the attempt emitted is
    gone with the log, so its end says that it does not follow.
    """
    lines: list[Line] = []
    begun = False
    for row in rows:
        line = line_of(row)
        lines.append(replace(line, prev=UNKNOWN) if begun and not line.prev else line)
        begun = row.kind == CLAIM.event
    return lines


def line_of(transition: Transition) -> Line:
    """Return the `<fence>-1` event of a transition row."""
    return Line(
        id=events.event_id(transition.fence, 1),
        body=events.encode(transition.kind, transition.data, transition.at),
        prev=transition.prev,
    )


def append_of(transition: Transition, *, run: Run | None = None) -> Append:
    """Return the append of one lifecycle event. `1-1` opens the log and wakes the session's viewers as well."""
    first = transition.fence == 1
    wakes = [keys.session_wake(run.account_id, run.session)] if first and run is not None and run.session else []
    return Append(transition.run_id, transition.fence, [line_of(transition)], opening=first, wakes=wakes)


def announce(client: "redis.Redis", transitions: Sequence[Transition]) -> dict[UUID, Answer]:
    """Append the lifecycle events of changes made by somebody who is not the run's owner, and repair what lacks.

    Returns the last answer of each run: OK or FENCED (a later change was announced already).
    """
    answers = events.append_all(client, [append_of(transition) for transition in transitions])
    result = {}
    for transition, (answer, last) in zip(transitions, answers, strict=True):
        if answer in {Answer.GAP, Answer.NOKEY}:
            answer = repair(client, transition.run_id, transition.fence, last)  # noqa: PLW2901  the final answer
        result[transition.run_id] = answer
    return result


def repair(client: "redis.Redis", run_id: UUID, fence: int, last: str) -> Answer:
    """Append all lifecycle events after the log's last id up to `fence`, opening the log if it is gone."""
    return events.append_all(client, [rebuilt(run_id, fence, last)])[0][0]


def rebuilt(run_id: UUID, fence: int, last: str, extra: Iterable[Line] = ()) -> Append:
    """Return the append that brings a log from its last id to `fence` by the transition rows, then `extra`."""
    known, _ = events.split_id(last)
    rows = Transition.objects.filter(run_id=run_id, fence__gt=known, fence__lte=fence).order_by("fence")
    # A log that is there and lacks `run.started` had no owner's events: handlers begin after it is stored (6.6).
    lines = [line_of(row) for row in rows] if last else lines_of(rows)
    return Append(run_id, fence, [*lines, *extra], opening=True)


def transitions_at(pairs: Iterable[tuple[UUID, int]]) -> list[Transition]:
    """Return the transition rows of (run id, fence) pairs, in the order given."""
    wanted = list(pairs)
    rows = {
        (row.run_id, row.fence): row for row in Transition.objects.filter(run_id__in=[run_id for run_id, _ in wanted])
    }
    return [rows[pair] for pair in wanted if pair in rows]
