"""A line of runs in the session `s`, and where each of them stands."""

from collections.abc import Iterable
from typing import Any

from quotas.models import Account
from runs.models import Run
from runs.outcomes import Outcome
from runs.services.moves import Moved
from runs.services.sessions import slot_of
from tests import invariants, working

SLOT = slot_of("s")
HOLDS, WAITS = ("queued", True, False), ("scheduled", False, True)


def line(account: Account, count: int = 3, **fields: Any) -> list[Run]:
    """Submit runs into one session, each behind the other. Returns them in the order of the line."""
    return [working.submit(account, session="s", on_busy="enqueue", **fields) for _ in range(count)]


def place(run: Run) -> tuple[str, bool, bool]:
    """Return (state, whether it holds its slot, whether it stands in line)."""
    run.refresh_from_db()
    return run.state, run.session_slot is not None, run.blocked_by_session is not None


def places(*runs: Run) -> list[tuple[str, bool, bool]]:
    return [place(run) for run in runs]


def finalise(run: Run, outcome: Outcome | None = None) -> list[Moved]:
    """Claim a run and end its attempt. Returns the runs that were started by it."""
    (claimed,) = working.claim(run)
    return working.finish(working.finish_of(claimed, outcome, session="s")).started


def check(accounts: Iterable[Account]) -> None:
    """P6 and the money: one holder a session, and only what is scheduled stands in line."""
    invariants.check_money(accounts)
    held = list(Run.objects.exclude(session_slot=None).values_list("account_id", "session_slot"))
    assert len(held) == len(set(held))
    assert not Run.objects.filter(blocked_by_session__isnull=False).exclude(state="scheduled").exists()
