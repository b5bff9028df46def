"""Deleting what is old: payloads, run rows, idempotency keys, files that no run names (protocol 10, retention).

Only runs that have ended are touched. Every step is conditional under the rows' locks and may be repeated. The order
leaves work behind a crash, never a leak: a run is marked, then its files go, then its rows; a file is marked, then its
bytes go, then its row.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.core.files.storage import Storage, storages
from django.db.models import QuerySet
from django.db.models.functions import Now

from quotas import services as money
from quotas.database import in_transaction, later
from quotas.models import Hold
from runs import archive, events, lifecycle
from runs.models import Artifact, Attempt, EventArchive, FileUse, Run, StoredFile, Transition
from runs.services.files import STORAGE
from runs.states import OPEN, TERMINAL
from runs.transitions import lock_runs

log = structlog.get_logger(__name__)
NO_INPUT = "null"
BULK_OF_ERRORS = ("traceback", "answer")  # class, type, message and cause stay with the row
UPLOAD_KEPT_SECONDS = 7 * 24 * 3600.0
Keep = Callable[[Sequence[UUID]], Collection[UUID]]


def keep_none(_run_ids: Sequence[UUID]) -> Collection[UUID]:
    """Keep nothing beyond what must stay."""
    return ()


def prunable(run_ids: Sequence[UUID], keep: Keep) -> list[UUID]:
    """Return those of ended runs that nothing holds: no open hold, no open run that was requeued from it, not kept."""
    stay = {
        *keep(run_ids),
        *Hold.objects.filter(run_id__in=run_ids)
        .exclude(state__in=(Hold.State.SETTLED, Hold.State.RELEASED))
        .values_list("run_id", flat=True),
        *Run.objects.filter(retry_of__in=run_ids, state__in=_names(OPEN)).values_list("retry_of_id", flat=True),
    }
    return [run_id for run_id in run_ids if run_id not in stay]


def prune_payloads(run_ids: Sequence[UUID], keep: Keep = keep_none) -> list[UUID]:
    """Take input, result, the attempts' results, tracebacks and the owner's events from ended runs, and their files.

    Returns the runs that were marked now. Their row, states, error message, usage, cost, tags and metadata stay.
    """
    archives = _lifecycles(run_ids)

    def work() -> list[UUID]:
        ended = [run for run in lock_runs(run_ids) if run.is_terminal and not run.payload_pruned]
        due = prunable([run.pk for run in ended], keep)
        if due:
            _empty([run for run in ended if run.pk in set(due)], archives)
        return due

    marked = in_transaction(work) if run_ids else []
    remove_artifacts(marked)
    return marked


def _empty(runs: Sequence[Run], archives: dict[UUID, tuple[bytes, int]]) -> None:
    ids = [run.pk for run in runs]
    Run.objects.filter(pk__in=ids).update(input_json=NO_INPUT, result_json=None, payload_pruned_at=Now())
    Attempt.objects.filter(run_id__in=ids).update(result_json=None, progress={})
    _cut_errors(Run.objects.filter(pk__in=ids))
    _cut_errors(Attempt.objects.filter(run_id__in=ids))
    for run_id in ids:
        if run_id in archives:
            body, count = archives[run_id]
            EventArchive.objects.filter(run_id=run_id).update(body=body, event_count=count)
    _let_go_of_files(FileUse.objects.filter(run_id__in=ids))


def _cut_errors(rows: QuerySet[Any]) -> None:
    for pk, error in rows.exclude(error=None).values_list("pk", "error"):
        kept = {name: value for name, value in error.items() if name not in BULK_OF_ERRORS}
        if kept != error:
            rows.model.objects.filter(pk=pk).update(error=kept)


def _lifecycles(run_ids: Sequence[UUID]) -> dict[UUID, tuple[bytes, int]]:
    """Return archives made of the transition rows alone: a reader is told of the gap where the owner's events were."""
    rows: dict[UUID, list[Transition]] = {}
    for row in Transition.objects.filter(run_id__in=run_ids).order_by("fence"):
        rows.setdefault(row.run_id, []).append(row)
    made = {}
    for run_id, life in rows.items():
        pairs = [(events.decode(run_id, line.id, line.body), line.prev) for line in lifecycle.lines_of(life)]
        made[run_id] = (archive.pack(pairs), len(pairs))
    return made


def _let_go_of_files(uses: QuerySet[FileUse]) -> None:
    file_ids = set(uses.values_list("file_id", flat=True))
    if not file_ids:
        return
    list(StoredFile.objects.select_for_update().filter(pk__in=file_ids).order_by("pk").values_list("pk", flat=True))
    uses.delete()
    StoredFile.objects.filter(pk__in=file_ids, uses=None).update(unused_since=Now())


def remove_artifacts(run_ids: Iterable[UUID]) -> list[UUID]:
    """Delete the files of runs whose payload is marked as pruned, then the rows that named them.

    Returns the runs that have none any more; one whose files cannot be deleted now keeps its rows.
    """
    storage, done = storages[STORAGE], []
    for run_id in Run.objects.filter(pk__in=list(run_ids)).exclude(payload_pruned_at=None).values_list("pk", flat=True):
        try:
            for path in Artifact.objects.filter(run_id=run_id).values_list("path", flat=True):
                storage.delete(path)
            remove_tree(storage, f"runs/{run_id}")  # also what an attempt that was killed had not named yet
        except Exception as error:  # noqa: BLE001  every kind of storage has errors of its own
            log.warning("prune.files_left", run_id=str(run_id), error=str(error))
        else:
            done.append(run_id)
    Artifact.objects.filter(run_id__in=done).delete()
    return done


def remove_tree(storage: Storage, path: str) -> None:
    """Delete a folder with everything in it, where the storage can list one. Raises OSError."""
    try:
        folders, names = storage.listdir(path)
    except (FileNotFoundError, NotImplementedError):
        return
    for name in names:
        storage.delete(f"{path}/{name}")
    for folder in folders:
        remove_tree(storage, f"{path}/{folder}")
    with contextlib.suppress(FileNotFoundError):
        storage.delete(path)  # an empty folder; object stores have none


def delete_runs(run_ids: Sequence[UUID], keep: Keep = keep_none) -> list[UUID]:
    """Delete ended runs with all that is theirs but the ledger. Returns those that are gone.

    Their payloads and files go first; a run whose files could not be deleted stays.
    """
    prune_payloads(run_ids, keep)
    bare = remove_artifacts(run_ids)

    def work() -> list[UUID]:
        rows = lock_runs(bare)
        due = prunable([run.pk for run in rows if run.is_terminal and run.payload_pruned], keep)
        money.forget_holds(due)
        Run.objects.filter(pk__in=due).only("pk").delete()
        return due

    return in_transaction(work) if bare else []


def empty_keys(run_ids: Sequence[UUID]) -> int:
    """Take the idempotency keys and fingerprints whose windows are over from ended runs. Returns how many runs."""

    def work() -> int:
        ended = Run.objects.filter(pk__in=run_ids, state__in=_names(TERMINAL))
        fingerprints = ended.exclude(fingerprint=None).filter(dedupe_until__lt=Now())
        over = set(fingerprints.values_list("pk", flat=True))
        Run.objects.filter(pk__in=over).update(fingerprint=None)
        named = ended.exclude(idempotency_key=None).filter(submitted_at__lt=later(-settings.IDEMPOTENCY_SECONDS))
        keys = set(named.values_list("pk", flat=True))
        Run.objects.filter(pk__in=keys).update(idempotency_key=None)
        return len(over | keys)

    return in_transaction(work)


def unused_uploads(limit: int) -> list[UUID]:
    """Return uploaded files that no run has named for a week, and those whose removal was begun."""
    begun = StoredFile.objects.exclude(removed_at=None).values_list("pk", flat=True)[:limit]
    unused = StoredFile.objects.filter(removed_at=None, unused_since__lt=later(-UPLOAD_KEPT_SECONDS), uses=None)
    return [*begun, *unused.values_list("pk", flat=True)[: limit - len(begun)]]


def remove_uploads(file_ids: Sequence[UUID]) -> int:
    """Remove uploaded files that no run names. Returns how many are gone."""

    def mark() -> list[StoredFile]:
        rows = list(StoredFile.objects.select_for_update().filter(pk__in=file_ids).order_by("pk"))
        used = set(FileUse.objects.filter(file__in=rows).values_list("file_id", flat=True))
        free = [row for row in rows if row.pk not in used]
        StoredFile.objects.filter(pk__in=[row.pk for row in free], removed_at=None).update(removed_at=Now())
        return free

    gone = []
    for row in in_transaction(mark) if file_ids else []:
        try:
            storages[STORAGE].delete(row.path)
        except Exception as error:  # noqa: BLE001
            log.warning("prune.upload_left", file=str(row.pk), error=str(error))
        else:
            gone.append(row.pk)
    StoredFile.objects.filter(pk__in=gone).delete()
    return len(gone)


def forget_who_and_why(account_id: int) -> int:
    """Empty the texts of an account's ledger lines. Returns how many lines had any."""
    return money.forget_who_and_why(account_id)


def _names(states: Iterable[Any]) -> list[str]:
    return [str(state) for state in states]
