"""Scheduled runs: promoted when they are due, started when their session is free (protocol 10: promote, session).

All conditional and bounded: two sweepers at once, or one twice, do what one does once.
"""

import datetime as dt
from collections.abc import Sequence
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from quotas import services as money
from quotas.database import database_time
from runs.models import Run
from runs.services import sessions
from runs.services.moves import Moved
from runs.states import RunState
from runs.transitions import lock_runs

PAGE = 100  # a transaction on SQLite keeps every other writer out


def due(limit: int = PAGE) -> list[UUID]:
    """Return scheduled runs whose time has come by the database's clock and that nothing blocks, the oldest first."""
    rows = Run.objects.filter(state=RunState.SCHEDULED, not_before__lte=Now(), blocked_by_session=None)
    return list(rows.order_by("not_before").values_list("pk", flat=True)[:limit])


def promote(run_ids: Sequence[UUID], *, actor: str) -> list[Moved]:
    """Queue those of the runs that are due.

    Must run in the caller's transaction. Touches no money and no slot, so it takes no account lock.
    """
    rows = [row for row in lock_runs(run_ids) if _is_due(row)] if run_ids else []
    return sessions.start(rows, actor=actor)


def promote_due(*, actor: str, limit: int = PAGE) -> list[Moved]:
    """Queue what is due, in the caller's transaction."""
    return promote(due(limit), actor=actor)


def _is_due(row: Run) -> bool:
    return (
        row.state == RunState.SCHEDULED
        and row.blocked_by_session is None
        and row.not_before is not None
        and row.not_before <= database_time(row)
    )


def seconds_to_next() -> float | None:
    """Return how long it is to the next promotion by the database's clock (not above 0: overdue), or None."""
    row = (
        Run.objects.filter(state=RunState.SCHEDULED, blocked_by_session=None, not_before__isnull=False)
        .annotate(db_now=Now())
        .order_by("not_before")
        .only("pk", "not_before")
        .first()
    )
    if row is None or row.not_before is None:
        return None
    return (row.not_before - database_time(row)) / dt.timedelta(seconds=1)


def stalled_sessions(limit: int = PAGE) -> list[tuple[int, str]]:
    """Return (account id, slot) of sessions in which a run is blocked and nobody holds the slot."""
    holder = Run.objects.filter(account_id=OuterRef("account_id"), session_slot=OuterRef("blocked_by_session"))
    rows = Run.objects.filter(blocked_by_session__isnull=False, state=RunState.SCHEDULED).filter(~Exists(holder))
    pairs = rows.order_by().values_list("account_id", "blocked_by_session").distinct()[:limit]
    return [(account_id, slot) for account_id, slot in pairs if slot is not None]


def start_blocked(account_id: int, slot: str, *, actor: str) -> list[Moved]:
    """Give a free slot to the oldest run that waits for it. Must run in the caller's transaction."""
    money.lock_account(account_id)
    if Run.objects.filter(account_id=account_id, session_slot=slot).exists():
        return []
    oldest: UUID | None = sessions.next_in_line(account_id, slot)
    return [] if oldest is None else sessions.hand_on(lock_runs([oldest]), [slot], actor=actor)
