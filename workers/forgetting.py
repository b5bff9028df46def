"""Forgetting an account: everything of it goes but what it cost (docs/deploy.md, retention).

Who may act for it goes first, so that nothing new comes; then its runs, whatever their age and their dead letters say;
then its files. May be stopped and begun again at any point.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import redis
from django.core.files.storage import storages
from django.db.models import Count
from django.db.models.functions import Now

from quotas import audit
from quotas.api_keys import revoke_all
from quotas.database import in_transaction
from quotas.models import Account, Membership
from runs import keys, scripts
from runs.models import Run, StoredFile
from runs.services import pruning
from runs.services.files import STORAGE
from runs.states import OPEN
from workers import case_filing, stream
from workers.bulk import operations
from workers.models import DeadLetter

CHUNK = 20
LETTERS_PAGE = 500


@dataclass
class Forgotten:
    """How much of an account is gone."""

    api_keys: int = 0
    members: int = 0
    runs: int = 0
    uploads: int = 0
    ledger_texts: int = 0
    published_letters: int = 0


def open_runs(account: Account) -> dict[str, int]:
    """Return how many runs of the account have not ended, by state."""
    rows = Run.objects.filter(account=account, state__in=[str(state) for state in OPEN]).order_by()
    return dict(rows.values_list("state").annotate(n=Count("pk")))


def forget_account(
    client: "redis.Redis", account: Account, *, actor: str, reason: str, told: Callable[[Forgotten], Any]
) -> Forgotten:
    """Forget all that has ended; `told` hears of every step. Raises RedisError, DatabaseError, Busy: begin again then.

    A run that is open, or whose files cannot be deleted, stays: the caller looks (`open_runs`, `account.runs`).
    """
    gone = Forgotten()
    gone.api_keys = in_transaction(lambda: revoke_all(account))
    gone.members = Membership.objects.filter(account=account).delete()[0]
    told(gone)
    gone.published_letters = _unpublish(client, account)
    for chunk in _chunks(account):
        gone.runs += _forget_runs(client, chunk)
        told(gone)
    for file_ids in _uploads(account):
        gone.uploads += pruning.remove_uploads(file_ids)
        told(gone)
    if not StoredFile.objects.filter(account=account).exists():
        pruning.remove_tree(storages[STORAGE], f"uploads/{account.pk}")  # also what no row names

    def end() -> None:
        gone.ledger_texts = pruning.forget_who_and_why(account.pk)
        audit.record(
            actor=actor,
            action="account.forget",
            target_type="account",
            target_id=account.pk,
            after=asdict(gone),
            reason=reason,
        )

    case_filing.forget_account(account.pk)
    in_transaction(end)
    return gone


def _chunks(account: Account) -> Iterator[list[tuple[UUID, str]]]:
    """Yield (run id, queue) of runs that have ended, a chunk at a time, by primary key."""
    ended = Run.objects.filter(account=account).exclude(state__in=[str(state) for state in OPEN]).order_by("pk")
    after: UUID | None = None
    while True:
        rows = ended if after is None else ended.filter(pk__gt=after)
        page = list(rows.values_list("pk", "queue")[:CHUNK])
        if not page:
            return
        yield page
        after = page[-1][0]


def _forget_runs(client: "redis.Redis", chunk: Sequence[tuple[UUID, str]]) -> int:
    """Delete runs, what the audit trail says about them in words, and what Redis has of them."""
    ids = [run_id for run_id, _ in chunk]
    letters = list(DeadLetter.objects.filter(run__in=ids).values_list("pk", flat=True))

    def texts() -> None:
        audit.forget_texts(target_type="run", target_ids=ids)
        audit.forget_texts(target_type="dead_letter", target_ids=letters)
        case_filing.close_forgotten(letters)
        operations.forget_words(ids)

    in_transaction(texts)
    deleted = set(pruning.delete_runs(ids))

    def fill(pipe: "redis.client.Pipeline") -> None:
        for run_id, queue in chunk:
            if run_id in deleted:
                stream.ack_named(pipe, queue, run_id)
                pipe.delete(keys.log(run_id))

    for reply in scripts.execute(client, fill):
        if isinstance(reply, Exception):
            raise reply
    return len(deleted)


def _unpublish(client: "redis.Redis", account: Account) -> int:
    """Take the account's dead letters from the stream for outside consumers. Returns how many entries."""
    DeadLetter.objects.filter(run__account=account, published_at=None).update(published_at=Now())
    start, removed = "-", 0
    while True:
        page: Any = client.xrange(keys.dead_letters(), min=start, count=LETTERS_PAGE)
        named = {entry_id: _run_id(fields.get(b"run_id", b"")) for entry_id, fields in page}
        wanted = {run_id for run_id in named.values() if run_id is not None}
        ours = set(Run.objects.filter(pk__in=wanted, account=account).values_list("pk", flat=True))
        entries = [entry_id for entry_id, run_id in named.items() if run_id in ours]
        if entries:
            removed += int(client.xdel(keys.dead_letters(), *entries))
        if len(page) < LETTERS_PAGE:
            return removed
        start = "(" + page[-1][0].decode()


def _run_id(raw: bytes) -> UUID | None:
    try:
        return UUID(raw.decode("ascii"))
    except ValueError:
        return None


def _uploads(account: Account) -> Iterator[list[UUID]]:
    """Yield the account's files, a chunk at a time."""
    after: UUID | None = None
    while True:
        rows = StoredFile.objects.filter(account=account).order_by("pk")
        page = list((rows if after is None else rows.filter(pk__gt=after)).values_list("pk", flat=True)[:CHUNK])
        if not page:
            return
        yield page
        after = page[-1]
