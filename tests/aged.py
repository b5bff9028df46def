"""Runs, files and workers of long ago: rows as they would be by now."""

import datetime as dt
import secrets
from typing import Any
from uuid import UUID

from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.utils import timezone

from runs.ids import first_id_at
from runs.models import Artifact, Run
from tests import builders


def ago(days: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(days=days)


def old_run(state: str, days: float, **fields: Any) -> Run:
    """Make a run that was submitted, and has ended if it has, so many days ago."""
    at = ago(days)
    run_id = UUID(int=first_id_at(at.timestamp()).int | secrets.randbits(12) << 64 | secrets.randbits(62))
    return builders.make_run(state, id=run_id, queued_at=at, submitted_at=at, **fields)


def make_artifact(run: Run, name: str = "report.md", data: bytes = b"# report", fence: int = 2) -> Artifact:
    """Make a file of a run, with its bytes."""
    path = storages["artifacts"].save(f"runs/{run.pk}/{fence}/{name}", ContentFile(data))
    return Artifact.objects.create(run=run, name=name, content_type="text/markdown", size=len(data), path=path, fence=2)


def files_under(path: str) -> list[str]:
    """Return what the storage has under a folder, folders without files included."""
    try:
        folders, names = storages["artifacts"].listdir(path)
    except FileNotFoundError:
        return []
    inside = [found for folder in folders for found in [f"{path}/{folder}/", *files_under(f"{path}/{folder}")]]
    return [f"{path}/{name}" for name in names] + inside
