"""The place of a new run in its session: the slot, the end of the line, or none (protocol 4.3)."""

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Max, Q

from quotas.models import Account
from runs.errors import SessionBusy
from runs.models import Run
from runs.services import sessions
from runs.services.cancel import cancel_waiting, mark_running
from runs.services.moves import Moved
from runs.states import RunState
from runs.transitions import lock_runs


def take_place(run: Run, account: Account, *, on_busy: str) -> list[Moved]:
    """Give the run its session's slot, or its place in line, on the locked account. Returns the runs cancelled for it.

    Raises SessionBusy where the session has a run and `on_busy` is "reject".
    """
    taken = Run.objects.filter(account=account, session=run.session).aggregate(n=Max("session_number"))["n"]
    run.session_number = (taken or 0) + 1
    others = check_busy(run, account, on_busy=on_busy)
    changed = _replace(account, others, run) if others and on_busy == "replace" else []
    left = set(others) - {moved.run.pk for moved in changed}
    slot = sessions.slot_of(run.session)
    # Both, always: a try that a deadlock took back has written into the same object.
    run.session_slot, run.blocked_by_session = (None, slot) if left else (slot, None)
    return changed


def check_busy(run: Run, account: Account, *, on_busy: str) -> list[UUID]:
    """Return the runs that hold the slot of the run's session or wait for it; raises SessionBusy as `take_place`."""
    slot = sessions.slot_of(run.session)
    busy = Q(session_slot=slot) | Q(blocked_by_session=slot)
    others = list(Run.objects.filter(busy, account=account).values_list("pk", flat=True))
    if others and on_busy == "reject":
        raise SessionBusy(session=run.session, run=str(_holder(account, slot) or others[0]))
    return others


def outlook(run: Run, account: Account, *, on_busy: str) -> tuple[bool, list[UUID]]:
    """Return whether the run would wait for its session now, and the waiting runs it would replace, without any lock.

    Raises SessionBusy as `take_place`.
    """
    others = check_busy(run, account, on_busy=on_busy)
    if on_busy != "replace":
        return bool(others), []
    running = set(Run.objects.filter(pk__in=others, state=RunState.RUNNING).values_list("pk", flat=True))
    return bool(running), [run_id for run_id in others if run_id not in running]


def _holder(account: Account, slot: str | None) -> UUID | None:
    return Run.objects.filter(account=account, session_slot=slot).values_list("pk", flat=True).first()


def _replace(account: Account, others: Sequence[UUID], run: Run) -> list[Moved]:
    """Cancel the session's runs: those that wait at once, a running holder is marked, and the new run waits for it."""
    changed = []
    for row in lock_runs(others):
        row.account = account
        if row.state == RunState.RUNNING:
            mark_running(row)
        elif not row.is_terminal:
            reason = f"replaced by the run {run.pk}"
            changed.append(cancel_waiting(row, account, actor=run.submitted_by, reason=reason))
    return changed
