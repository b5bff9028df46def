"""Reading of runs. Nothing here writes; lists never load inputs, results or tracebacks."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from quotas.database import exactly
from quotas.models import Account
from runs.errors import NoSuchArtifact, NoSuchRun
from runs.models import Artifact, Attempt, Run, Transition
from runs.states import RunState

LIST_DEFER = ("input_json", "result_json")
BACKLOG_AGE = 1.0
_backlog: dict[str, tuple[float, int]] = {}


def get_run(run_id: UUID, account: Account | None = None) -> Run:
    """Return the run, seen from an account (None: all of them). Raises NoSuchRun, also for another account's run."""
    rows = Run.objects.select_related("account").filter(pk=run_id)
    if account is not None:
        rows = rows.filter(account=account)
    run = rows.first()
    if run is None:
        raise NoSuchRun(run=str(run_id))
    return run


def list_runs(account: Account | None = None, **filters: Any) -> QuerySet[Run]:
    """Return runs, newest first, without their large texts. `filters` are column look-ups."""
    rows = without_texts(Run.objects.order_by("-pk"))
    if account is not None:
        rows = rows.filter(account=account)
    return rows.filter(**filters)


def without_texts(rows: QuerySet[Run]) -> QuerySet[Run]:
    """Return runs with their accounts and without their large texts."""
    return rows.select_related("account").defer(*LIST_DEFER)


def get_artifact(run: Run, name: str) -> Artifact:
    """Return an artifact of a run; raises NoSuchArtifact."""
    row = Artifact.objects.filter(run=run, name=name).first()
    if row is None:
        raise NoSuchArtifact(run=str(run.pk), name=name[:100])
    return row


def attempts_of(run_id: UUID) -> list[Attempt]:
    """Return a run's attempts, oldest first."""
    return list(Attempt.objects.filter(run_id=run_id).order_by("fence"))


def estimate_at_submit(run: Run) -> int | None:
    """Return what was held for a run when it was submitted, in micro-units.

    Until its first transition is followed by another one that is its `budget`, which may be raised later.
    """
    if run.fence == 1:
        return run.budget
    first = Transition.objects.filter(run_id=run.pk, fence=1).values_list("data", flat=True).first() or {}
    estimate: int | None = first.get("estimate")
    return estimate


def backlog_of(queue: str) -> int:
    """Return how many runs of a queue wait, counted up to the limit, at most a second old (protocol 4.4)."""
    now = time.monotonic()
    known = _backlog.get(queue)
    if known is None or now - known[0] > BACKLOG_AGE:
        rows = Run.objects.filter(state=RunState.QUEUED, queue=queue).values("pk")
        known = (now, rows[: settings.BACKLOG_LIMIT].count())
        _backlog[queue] = known
    return known[1]


def next_of_session(account_id: int, session: str, after: int) -> Run | None:
    """Return the session's first run with a number above `after`."""
    return (
        Run.objects.defer(*LIST_DEFER)
        .filter(exactly("session", session), account_id=account_id, session_number__gt=after)
        .order_by("session_number")
        .first()
    )


def unfinished(run_ids: Sequence[UUID]) -> dict[UUID, Run]:
    """Return rows by id, without large texts: for the hub's look at silent runs."""
    return {run.pk: run for run in Run.objects.defer(*LIST_DEFER).filter(pk__in=run_ids)}
