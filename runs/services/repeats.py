"""What was submitted before: the run of an idempotency key, and the same input within an agent's dedupe window."""

import datetime as dt

from django.conf import settings
from django.db.models import Q

from runs.errors import DuplicateRun, IdempotencyMismatch
from runs.models import Run
from runs.services.asking import Request


def earlier_run(request: Request, now: dt.datetime) -> Run | None:
    """Return the run this submit repeats, raise what stands in its way, or None. One read, none for a plain run."""
    run = request.run
    clash = Q()
    if run.idempotency_key:
        clash |= Q(idempotency_key=run.idempotency_key)
    if run.fingerprint:
        clash |= Q(fingerprint=run.fingerprint, agent=run.agent)
    return _clashing(request, clash, now) if clash else None


def _clashing(request: Request, clash: Q, now: dt.datetime) -> Run | None:
    """Look at the runs that share a key or an input: the key first, because a replay is no conflict."""
    run = request.run
    rows = list(Run.objects.filter(clash, account_id=run.account_id).defer("input_json", "result_json"))
    for row in rows:
        if run.idempotency_key and row.idempotency_key == run.idempotency_key:
            replayed = _replay(request, row, now)
            if replayed is not None:
                return replayed
    for row in rows:
        if run.fingerprint and row.fingerprint == run.fingerprint and row.agent == run.agent:
            _refuse_duplicate(row, now)
    return None


def _replay(request: Request, row: Run, now: dt.datetime) -> Run | None:
    """Return the first run of an idempotency key; empty the key when its window is over; refuse another body."""
    if now - row.submitted_at > dt.timedelta(seconds=settings.IDEMPOTENCY_SECONDS):
        Run.objects.filter(pk=row.pk).update(idempotency_key=None)
        return None
    if row.idempotency_digest != request.run.idempotency_digest:
        raise IdempotencyMismatch(run=str(row.pk))
    row.account = request.run.account
    return row


def _refuse_duplicate(row: Run, now: dt.datetime) -> None:
    """Raise DuplicateRun inside the agent's dedupe window; after it, empty the fingerprint."""
    if row.dedupe_until is None or row.dedupe_until > now:
        raise DuplicateRun(run=str(row.pk))
    Run.objects.filter(pk=row.pk).update(fingerprint=None)
