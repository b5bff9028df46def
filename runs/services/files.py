"""Files: uploads for inputs and artifacts of runs, in one storage for web and workers."""

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import IO, Any
from uuid import UUID

from django.core.files import File
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.files.temp import NamedTemporaryFile

from quotas.database import in_transaction
from quotas.models import Account
from runs.agents import AgentSpec
from runs.errors import NoSuchFile
from runs.ids import new_run_id
from runs.models import Artifact, FileUse, Run, StoredFile
from runs.states import RunState

STORAGE = "artifacts"
NAME_MAX = 200


def clean_name(name: str) -> str:
    """Return a file name without folders, control characters or surprises; never empty."""
    last = PurePosixPath(name.replace("\\", "/")).name
    kept = "".join(c for c in last if c.isprintable() and c not in '<>:"|?*').strip(". ")
    return kept[:NAME_MAX] or "file"


def store_upload(*, account: Account, name: str, content_type: str, chunks: Iterable[bytes]) -> StoredFile:
    """Store an uploaded file and return its row, whose id an input field of format `file` may name."""
    file_id = new_run_id()
    with NamedTemporaryFile() as spool:
        size = 0
        for chunk in chunks:
            size += len(chunk)
            spool.write(chunk)
        spool.seek(0)
        path = storages[STORAGE].save(f"uploads/{account.pk}/{file_id}", File(spool))
    return StoredFile.objects.create(
        pk=file_id,
        account=account,
        name=clean_name(name),
        content_type=content_type[:100] or "application/octet-stream",
        size=size,
        path=path,
    )


def files_in(spec: AgentSpec, run_input: Any) -> list[UUID]:
    """Return the ids of the uploaded files that an input names, in order, each once. Raises NoSuchFile."""
    found: dict[UUID, None] = {}
    for name in spec.file_fields if isinstance(run_input, dict) else ():
        if name in run_input:
            try:
                found[UUID(str(run_input[name]))] = None
            except ValueError:
                raise NoSuchFile(file=str(run_input[name])[:60]) from None
    return list(found)


def check_files(spec: AgentSpec, run_input: Any, account: Account) -> None:
    """Raise NoSuchFile where an input names a file that the account does not have."""
    for file_id in files_in(spec, run_input):
        if not StoredFile.objects.filter(pk=file_id, account=account, removed_at=None).exists():
            raise NoSuchFile(file=str(file_id))


def use_files(run: Run, file_ids: Sequence[UUID]) -> None:
    """Keep the files that a run's input names for as long as it does. In the caller's transaction; raises NoSuchFile.

    Their rows are locked: a removal that began since they were checked has won.
    """
    if not file_ids:
        return
    rows = StoredFile.objects.select_for_update().filter(pk__in=file_ids, account_id=run.account_id, removed_at=None)
    there = set(rows.order_by("pk").values_list("pk", flat=True))
    for file_id in file_ids:
        if file_id not in there:
            raise NoSuchFile(file=str(file_id))
    FileUse.objects.bulk_create(FileUse(run=run, file_id=file_id) for file_id in file_ids)
    StoredFile.objects.filter(pk__in=file_ids).update(unused_since=None)


def read_upload(*, file_id: UUID, account_id: int) -> tuple[StoredFile, bytes]:
    """Return an account's uploaded file and its bytes; raises NoSuchFile."""
    row = StoredFile.objects.filter(pk=file_id, account_id=account_id, removed_at=None).first()
    if row is None:
        raise NoSuchFile(file=str(file_id))
    with storages[STORAGE].open(row.path) as stored:
        return row, stored.read()


def store_artifact(
    *, run_id: UUID, fence: int, claim_token: str, name: str, data: bytes, content_type: str
) -> dict[str, Any] | None:
    """Store a file made by an attempt. Returns None, and keeps nothing, if the attempt is not the owner any more.

    The bytes go first, under a name that carries the fence; the row follows in a transaction that takes the guarded
    run row (protocol 1.5), so a fenced attempt cannot replace what the owner made.
    """
    storage = storages[STORAGE]
    name = clean_name(name)
    path = storage.save(f"runs/{run_id}/{fence}/{name}", ContentFile(data))

    def keep() -> bool:
        owner = Run.objects.select_for_update().filter(
            pk=run_id, fence=fence, claim_token=claim_token, state=RunState.RUNNING
        )
        if owner.values_list("pk", flat=True).first() is None:
            return False
        values = {"content_type": content_type[:100], "size": len(data), "path": path, "fence": fence}
        if not Artifact.objects.filter(run_id=run_id, name=name).update(**values):
            Artifact.objects.create(run_id=run_id, name=name, **values)
        return True

    try:
        kept = in_transaction(keep)
    except Exception:
        storage.delete(path)  # nothing names it
        raise
    if not kept:
        storage.delete(path)
        return None
    return {"name": name, "content_type": content_type[:100], "size": len(data)}


def open_artifact(artifact: Artifact) -> IO[bytes]:
    """Return the artifact's bytes as an open file."""
    return storages[STORAGE].open(artifact.path)
