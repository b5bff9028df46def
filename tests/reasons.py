"""Asking why a run is not moving, and workers that are but a row: with a heartbeat as old as the situation wants it."""

import datetime as dt
from typing import Any

from django.utils import timezone

from runs.models import Run
from runs.why import why_not_moving
from tests import builders, crowds
from workers.models import WorkerProcess

AGENTS = ["probe.ret", "probe.spend", "probe.sleep", crowds.FEW]


def worker(**fields: Any) -> WorkerProcess:
    return builders.make_worker(**({"agents": AGENTS} | fields))


def why(run: Run) -> Any:
    """Return {code, text, facts} as the API does, or None."""
    found = why_not_moving(Run.objects.select_related("account").get(pk=run.pk))
    return None if found is None else found.as_json()


def ago(seconds: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(seconds=seconds)


def changed(run: Run, **columns: Any) -> Run:
    Run.objects.filter(pk=run.pk).update(**columns)
    return run
