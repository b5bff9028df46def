"""Sessions: at most one run of a session holds its slot; whoever empties the slot hands it on (protocol 4.3).

Every caller holds the account's lock, under which alone slots and places in line change. So what is read here stays
true until the commit.
"""

import datetime as dt
import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from quotas.database import database_time
from runs import limits
from runs.models import Run
from runs.services.moves import Moved
from runs.states import PROMOTE, RunState
from runs.transitions import Move, transition


def slot_of(session: str) -> str | None:
    """Return what a session's runs hold the slot by. Hashed: MySQL's collation takes `a`, `A` and `a ` for one."""
    return hashlib.sha256(session.encode()).hexdigest() if session else None


def successors(account_id: int, sessions: Iterable[str]) -> list[UUID]:
    """Return the oldest blocked run of each session: to be locked together with the runs that end (protocol 9)."""
    found = []
    for slot in sorted({slot for session in sessions if (slot := slot_of(session))}):
        oldest = next_in_line(account_id, slot)
        if oldest is not None:
            found.append(oldest)
    return found


def next_in_line(account_id: int, slot: str) -> UUID | None:
    rows = Run.objects.filter(account_id=account_id, blocked_by_session=slot, state=RunState.SCHEDULED)
    oldest: UUID | None = rows.order_by("session_number").values_list("pk", flat=True).first()
    return oldest


def hand_on(rows: Collection[Run], emptied: Iterable[str | None], *, actor: str) -> list[Moved]:
    """Give emptied slots to the successors among the locked `rows`. Returns those that are queued now.

    A successor whose time has not come takes the slot and stays scheduled.
    """
    by_slot = {
        row.blocked_by_session: row for row in rows if row.blocked_by_session and row.state == RunState.SCHEDULED
    }
    heirs = [by_slot[slot] for slot in dict.fromkeys(emptied) if slot in by_slot]
    due = [row for row in heirs if row.not_before is None or row.not_before <= database_time(row)]
    for row in heirs:
        if row not in due:
            Run.objects.filter(pk=row.pk, fence=row.fence).update(
                session_slot=row.blocked_by_session, blocked_by_session=None, waits_until=row.deadline_at
            )
    return start(due, actor=actor)


def start(rows: Sequence[Run], *, actor: str) -> list[Moved]:
    """Move locked scheduled rows to `queued`; those that were blocked take their session's slot."""
    moves = []
    for row in rows:
        now = database_time(row)
        changes: dict[str, Any] = {"not_before": None, "waits_until": _until(row, now), "queued_at": now}
        if row.blocked_by_session is not None:
            changes |= {"session_slot": row.blocked_by_session, "blocked_by_session": None}
        moves.append(Move(row, PROMOTE, actor=actor, at=now, changes=changes))
    moved = transition(moves)
    for move in moves:
        for name, value in move.changes.items():
            setattr(move.run, name, value)
    return [Moved(row, line) for row, line in zip(rows, moved, strict=True)]


def _until(row: Run, now: dt.datetime) -> dt.datetime:
    """Return the end of the queue wait: that of its place in line goes on, a delay or back-off begins a new one."""
    if row.blocked_by_session is not None and row.waits_until is not None:
        return row.waits_until
    return limits.queued_until(row, now)
