"""transition(): the only writer of `Run.state` (protocol 1.1, 3.1).

A set of moves is one conditional UPDATE that repeats every move's guard, and one INSERT of transition rows. The
caller has locked the rows (`lock_runs`), so the count of rows hit is the verdict on all of them.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Case, F, Field, Model, Q, Value, When
from django.db.models.expressions import BaseExpression
from django.db.models.functions import Cast, Now

from runs import metrics
from runs.errors import TransitionRefused
from runs.models import Run, Transition
from runs.states import CONFIRM_CANCEL, TERMINAL, Edge, RunState

BULKY = ("input_json", "result_json")
NO_OWNER = {
    "claim_token": None,
    "lease_expires_at": None,
    "stop_at": None,
    "quiet_at": None,
    "stop_requested": "",
    "stop_requested_at": None,
}
NO_PLACE = {"session_slot": None, "blocked_by_session": None, "not_before": None, "waits_until": None}


@dataclass(frozen=True, slots=True)
class Move:
    """One run's step along an edge. `run` is its row as locked; `changes` are further columns of the same UPDATE."""

    run: Run
    edge: Edge
    actor: str
    at: dt.datetime
    data: dict[str, Any] = field(default_factory=dict)
    prev: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    above: int = 0

    @property
    def fence(self) -> int:
        """The fence after the move: one more, or one above `above` where a log is ahead of its row."""
        return max(self.run.fence, self.above) + 1


def lock_runs(run_ids: Iterable[UUID], *, bulky: bool = False, **extra: BaseExpression) -> list[Run]:
    """Lock run rows in the order of their ids and return them, each with the database's time (`database_time`).

    `extra` are further annotations; what they read of other tables is not locked.
    """
    rows = Run.objects.annotate(db_now=Now(), **extra).select_for_update().filter(pk__in=set(run_ids)).order_by("pk")
    return list(rows if bulky else rows.defer(*BULKY))


def begin(run: Run, edge: Edge, *, actor: str, data: dict[str, Any]) -> Transition:
    """Insert a new run's row and its first transition, along one of submit's edges."""
    run.state, run.fence = edge.target, 1
    run.save(force_insert=True)
    return Transition.objects.create(run=run, fence=1, kind=edge.event, at=run.queued_at, actor=actor[:150], data=data)


def transition(moves: Sequence[Move]) -> list[Transition]:
    """Move every run along its edge, or raise TransitionRefused and change nothing.

    Returns the transition rows, in the order of the moves. The rows passed in carry the new state and fence after.
    """
    if not moves:
        return []
    columns: dict[str, list[Any]] = {}
    for number, move in enumerate(moves):
        for name, value in _columns(move).items():
            columns.setdefault(name, [F(name)] * len(moves))[number] = value
    guard = Q()
    for move in moves:
        guard |= _guard(move)
    moved = Run.objects.filter(guard).update(
        **{name: one_value(Run, name, [m.run.pk for m in moves], values) for name, values in columns.items()}
    )
    if moved != len(moves):
        raise TransitionRefused([move.run.pk for move in moves])
    rows = Transition.objects.bulk_create(_row(move) for move in moves)
    for move in moves:
        if move.edge.target in TERMINAL:
            seconds = (move.at - move.run.submitted_at).total_seconds()
            count = partial(metrics.count_end, move.run.agent, str(move.edge.target), seconds)
            transaction.on_commit(count, robust=True)
        move.run.state = move.edge.target
        move.run.fence = move.fence
    return rows


def _columns(move: Move) -> dict[str, Any]:
    """Return the columns of a move. No right side reads a column assigned here (protocol 1.6)."""
    columns: dict[str, Any] = {"state": str(move.edge.target), "fence": move.fence, **move.changes}
    if RunState.RUNNING in move.edge.sources:
        columns |= NO_OWNER
    if move.edge.target in TERMINAL:
        columns |= {"finished_at": move.at, **NO_PLACE}
    return columns


def _guard(move: Move) -> Q:
    guard = Q(pk=move.run.pk, fence=move.run.fence, state__in=[str(state) for state in move.edge.sources])
    if RunState.RUNNING in move.edge.sources:
        guard &= Q(claim_token=move.run.claim_token)
        if move.edge is not CONFIRM_CANCEL:
            guard &= Q(cancel_requested_at=None)  # a cancel mark wins over every other end (protocol 12.1)
    return guard


def _row(move: Move) -> Transition:
    return Transition(
        run_id=move.run.pk,
        fence=move.fence,
        kind=move.edge.event,
        at=move.at,
        actor=move.actor[:150],
        data=move.data,
        prev=move.prev,
    )


def one_value(model: type[Model], name: str, keys: Sequence[Any], values: Sequence[Any], *, by: str = "pk") -> Any:
    """Return the right side of `SET name = …` for a set of rows: the value they share, else a CASE by key."""
    column = cast("Field[Any, Any]", model._meta.get_field(name))  # noqa: SLF001  Django's public option API
    first = values[0]
    if all(value is first or (not isinstance(first, BaseExpression) and value == first) for value in values):
        return first
    whens = [
        When(**{by: key}, then=value if isinstance(value, BaseExpression | F) else Value(value, output_field=column))
        for key, value in zip(keys, values, strict=True)
    ]
    case = Case(*whens, default=F(name), output_field=column)
    # PostgreSQL takes the type of a CASE from its first arm, which may be an untyped NULL.
    return Cast(case, output_field=column) if connection.features.requires_casted_case_in_updates else case
