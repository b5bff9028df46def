"""What the list of runs shows of a run, once as cells of its table and once as the JSON that keeps these up to date.

`GET runs/run/rows.json?ids=<id,id>&newer_than=<id>&<filters of the list>` answers
`{"rows": {<id>: {"state", "tone", "note", "cells": {<name>: <text>}}}, "newer": {"count": 12, "shown": "12"}}`:
`rows` of the ids that exist, `newer` of the runs that the filters match above `newer_than`, counted to NEWER_CAP.
The table names its rows `data-row-id`, its cells `data-cell`; the list itself has `data-live-rows`, the address, and
`data-newest`, the `newer_than`; it is empty on a page of older runs, where nothing new is announced.
"""

import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import BadRequest
from django.utils import timezone

from quotas.display import NOTHING, TONES, between, credits_of, moment, short, span
from runs.filters import runs_matching
from runs.models import Run
from runs.states import RunState

IDS_MAX = 100
NEWER_CAP = 99
LARGE = ("input_json", "result_json", "error", "usage", "metadata", "tags")
HEADINGS = {
    "agent": "Agent",
    "account": "Account",
    "attempt": "Attempt",
    "cost": "Cost",
    "waiting": "Waiting",
    "duration": "Duration",
    "worker": "Worker",
    "changed": "Last change",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A run as the list shows it. `cells` are by the names of HEADINGS."""

    run: Run
    note: str
    cells: dict[str, str]
    changed_at: str

    @property
    def tone(self) -> str:
        return TONES.get(self.run.state, "plain")

    @property
    def short(self) -> str:
        return short(self.run.pk)

    def facts(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {"state": self.run.state, "tone": self.tone, "note": self.note, "cells": self.cells}


def row_of(run: Run, now: dt.datetime) -> Row:
    """Return what the list shows of a run at a moment."""
    changed = max(filter(None, (run.submitted_at, run.queued_at, run.started_at, run.finished_at)))
    cells = {
        "agent": run.agent,
        "account": run.account.name,
        "attempt": f"{run.attempt} of {run.max_attempts}",
        "cost": credits_of(run.cost),
        "waiting": _waiting(run, now),
        "duration": between(run.started_at, run.finished_at or now),
        "worker": run.worker or NOTHING,
        "changed": f"{span((now - changed).total_seconds())} ago",
    }
    return Row(run, _note(run, now), cells, moment(changed))


def _waiting(run: Run, now: dt.datetime) -> str:
    """Return how long it has waited for a worker, or had when it began or ended."""
    if run.state in {RunState.QUEUED, RunState.SCHEDULED}:
        return between(run.queued_at, now)
    return between(run.submitted_at, run.started_at or run.finished_at)


def _note(run: Run, now: dt.datetime) -> str:
    """Return what a run is about to do, as short as a list needs it."""
    if run.state == RunState.RUNNING and run.cancel_requested_at is not None:
        return "being cancelled"
    if run.state != RunState.SCHEDULED:
        return ""
    if run.blocked_by_session is not None:
        return "behind its session"
    left = (run.not_before - now).total_seconds() if run.not_before is not None else 0
    return f"in {span(left)}" if left > 0 else "due"


def rows_json(query: Mapping[str, str]) -> dict[str, Any]:
    """Answer the JSON above. Raises BadRequest, and the refusals of `runs_matching`."""
    asked = dict(query)
    ids, newest = _ids(asked.pop("ids", "")), _ids(asked.pop("newer_than", ""))
    if len(ids) > IDS_MAX or len(newest) > 1:
        raise BadRequest(f"At most {IDS_MAX} rows, newer than one.")
    now, count = timezone.now(), 0
    if newest:
        newer = runs_matching(asked).filter(pk__gt=newest[0]).order_by("pk")
        count = newer[: NEWER_CAP + 1].count()
    found = Run.objects.filter(pk__in=ids).select_related("account").defer(*LARGE)
    return {
        "rows": {str(run.pk): row_of(run, now).facts() for run in found},
        "newer": {"count": count, "shown": f"{NEWER_CAP}+" if count > NEWER_CAP else str(count)},
    }


def _ids(text: str) -> list[uuid.UUID]:
    try:
        return [uuid.UUID(one) for one in text.split(",") if one]
    except ValueError:
        raise BadRequest("These are no ids of runs.") from None
