"""Dead letters: buried in the transaction that ends a run, or for an entry that names none; requeued or discarded."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone
from redis.exceptions import RedisError

from quotas import audit
from quotas.database import in_transaction, later
from quotas.masking import mask
from quotas.models import Account
from runs import keys, scripts
from runs.errors import AlreadyRequeued
from runs.models import Run
from runs.services import requeue_run
from runs.services.requeue import UNCHANGED, Changes
from runs.text import clean_text
from workers import metrics
from workers.case_filing import count_open, file_letters
from workers.errors import NoSuchDeadLetter, NotOpen, NotRequeueable, NotRestorable
from workers.models import DeadLetter
from workers.stream import Entry

log = structlog.get_logger(__name__)
PAYLOAD_MAX = 4000
PUBLISH_PAGE = 200
ID_MAX = 2**63 - 1
RESTORE_DAYS = 7  # for which a discarded letter can be opened again
DAY = 24 * 3600.0


def bury(failed: Sequence[Run], entries: Mapping[UUID, Entry] | None = None) -> None:
    """Write the dead letters of runs that failed for good into their cases, in the caller's transaction.

    `entries` are the stream entries by which the runs came, where the caller has them.
    """
    if not failed:
        return
    rows = [
        DeadLetter(
            run=run,
            reason=(run.error or {}).get("cause") or DeadLetter.Reason.FATAL,
            error_class=run.error_class,
            message=str((run.error or {}).get("message", ""))[:2000],
            version=settings.AGENTOPS_RELEASE[:40],
            buried_at=timezone.now(),
            **_origin((entries or {}).get(run.pk)),
        )
        for run in failed
    ]
    file_letters(rows)
    DeadLetter.objects.bulk_create(rows)
    for row in rows:
        metrics.dead_letters.labels(row.reason).inc()


def _origin(entry: Entry | None) -> dict[str, str]:
    return {} if entry is None else {"stream": entry.stream[:200], "entry_id": entry.id[:40]}


def bury_entry(entry: Entry, reason: DeadLetter.Reason, message: str) -> None:
    """Write the dead letter of an entry that names no run of ours. Repeating it for the same entry is safe."""

    def work() -> bool:
        letter, made = DeadLetter.objects.get_or_create(
            entry_key=f"{entry.stream}|{entry.id}",
            defaults={
                "reason": reason,
                "message": mask(clean_text(message))[:2000],
                "version": settings.AGENTOPS_RELEASE[:40],
                "stream": entry.stream[:200],
                "entry_id": entry.id[:40],
                "payload": _readable(entry.fields),
                "buried_at": timezone.now(),
            },
        )
        if made:
            file_letters([letter])
            letter.save(update_fields=["case"])
        return made

    if in_transaction(work):
        metrics.dead_letters.labels(reason).inc()


def _readable(fields: dict[bytes, bytes]) -> str:
    """Return an entry's fields as lines `name: value`; bytes that are no text are escaped."""
    lines = (
        f"{name.decode('utf-8', 'backslashreplace')}: {value.decode('utf-8', 'backslashreplace')}"
        for name, value in fields.items()
    )
    return mask(clean_text("\n".join(lines)))[:PAYLOAD_MAX]


def publish(client: "redis.Redis", failed: Sequence[Run]) -> None:
    """Put the dead letters of these runs on the stream for outside consumers, after their commit.

    What fails here is brought by the sweeper: a consumer may see a letter twice, never miss one.
    """
    if not failed:
        return
    try:
        _publish(client, DeadLetter.objects.filter(run__in=failed, published_at=None))
    except (RedisError, DatabaseError) as error:
        log.warning("dead_letter.published_later", letters=len(failed), error=str(error))


def publish_due(client: "redis.Redis") -> None:
    """Put dead letters on the stream that are not there yet; all open ones again where the stream was lost."""
    if not client.exists(keys.dead_letters()):
        DeadLetter.objects.filter(state=DeadLetter.State.OPEN).exclude(published_at=None).update(published_at=None)
    _publish(client, DeadLetter.objects.filter(published_at=None).exclude(state=DeadLetter.State.DISCARDED))


def _publish(client: "redis.Redis", letters: QuerySet[DeadLetter]) -> None:
    rows = list(letters.select_related("run").defer("run__result_json").order_by("pk")[:PUBLISH_PAGE])
    if not rows:
        return
    pipe = client.pipeline(transaction=False)
    for row in rows:
        pipe.xadd(keys.dead_letters(), _published(row))
    replies = pipe.execute(raise_on_error=False)
    sent = [row.pk for row, reply in zip(rows, replies, strict=True) if not isinstance(reply, Exception)]
    DeadLetter.objects.filter(pk__in=sent).update(published_at=Now())
    scripts.checked(replies)


def _published(letter: DeadLetter) -> dict[Any, Any]:
    """Return a letter as an entry of the stream: the original entry's fields, or the run's input, as `payload`."""
    run = letter.run
    return {
        "id": str(letter.pk),
        "reason": letter.reason,
        "class": letter.error_class,
        "message": letter.message,
        "run_id": "" if run is None else str(run.pk),
        "agent": "" if run is None else run.agent,
        "attempt": "" if run is None else str(run.attempt),
        "stream": letter.stream,
        "entry_id": letter.entry_id,
        "payload": letter.payload if run is None else run.input_json,
        "buried_at": letter.buried_at.isoformat(),
    }


def visible(account: Account | None = None) -> QuerySet[DeadLetter]:
    """Return dead letters, newest first; of one account's runs, or all (entries without a run too)."""
    rows = DeadLetter.objects.select_related("run", "run__account").order_by("-pk")
    rows = rows.defer("run__input_json", "run__result_json")
    return rows if account is None else rows.filter(run__account=account)


def in_state(rows: QuerySet[DeadLetter], state: str) -> QuerySet[DeadLetter]:
    """Narrow by the state that is shown: an open letter whose run was requeued is requeued, whoever did it."""
    is_requeued = Exists(Run.objects.filter(pk=OuterRef("run"), retried_by__isnull=False))  # its index has few runs
    if state == DeadLetter.State.REQUEUED:
        return rows.filter(Q(state=state) | Q(is_requeued, state=DeadLetter.State.OPEN))
    if state == DeadLetter.State.OPEN:
        return rows.filter(~is_requeued, state=state)
    return rows.filter(state=state)


def state_of(letter: DeadLetter) -> str:
    """Return the state to show: requeued when the run was, whoever did it (protocol 9)."""
    if letter.state == DeadLetter.State.OPEN and letter.run is not None and letter.run.retried_by is not None:
        return DeadLetter.State.REQUEUED
    return str(letter.state)


def get_dead_letter(dead_letter_id: int, account: Account | None = None) -> DeadLetter:
    """Return a dead letter seen from an account; raises NoSuchDeadLetter, also for another account's."""
    row = visible(account).filter(pk=dead_letter_id).first() if 0 < dead_letter_id <= ID_MAX else None
    if row is None:
        raise NoSuchDeadLetter(dead_letter=dead_letter_id)
    return row


def requeue(
    *,
    dead_letter_id: int,
    actor: str,
    reason: str,
    account: Account | None = None,
    request_id: str = "",
    changes: Changes = UNCHANGED,
) -> Run:
    """Make a new run of the dead letter's run, once. Raises NoSuchDeadLetter, NotOpen, NotRequeueable, refusals."""
    letter = get_dead_letter(dead_letter_id, account)
    if letter.run is None:
        raise NotRequeueable(dead_letter=letter.pk)
    run_id = letter.run.pk

    def work() -> Run:
        try:
            new = requeue_run(run_id=run_id, actor=actor, reason=reason, request_id=request_id, changes=changes).run
        except AlreadyRequeued as refusal:
            raise NotOpen(dead_letter=letter.pk, state=str(DeadLetter.State.REQUEUED), **refusal.facts) from refusal
        letter.refresh_from_db(fields=["state"])
        if letter.state != DeadLetter.State.REQUEUED:  # by run_requeued; else somebody discarded it meanwhile
            raise _not_open(letter)
        _audit("dead_letter.requeue", letter, actor, reason, request_id, after={"run": str(new.pk)})
        return new

    if state_of(letter) != DeadLetter.State.OPEN:
        raise _not_open(letter)
    return in_transaction(work)


def discard(
    *, dead_letter_id: int, actor: str, reason: str, account: Account | None = None, request_id: str = ""
) -> DeadLetter:
    """Set a dead letter aside, restorable for RESTORE_DAYS. Raises NoSuchDeadLetter, NotOpen."""
    letter = get_dead_letter(dead_letter_id, account)

    def work() -> None:
        if state_of(letter) != DeadLetter.State.OPEN:
            raise _not_open(letter)
        if not _close(letter.pk, DeadLetter.State.DISCARDED, actor, reason):
            letter.refresh_from_db(fields=["state"])
            raise NotOpen(dead_letter=letter.pk, state=letter.state)
        _audit("dead_letter.discard", letter, actor, reason, request_id, after={})

    in_transaction(work)
    letter.refresh_from_db()
    return letter


def restorable(rows: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
    """Narrow to the discarded letters that may still be restored."""
    return rows.filter(state=DeadLetter.State.DISCARDED, resolved_at__gt=later(-RESTORE_DAYS * DAY))


def restore(
    *, dead_letter_id: int, actor: str, reason: str, account: Account | None = None, request_id: str = ""
) -> DeadLetter:
    """Open a discarded letter again, within RESTORE_DAYS. Raises NoSuchDeadLetter, NotRestorable."""
    letter = get_dead_letter(dead_letter_id, account)

    def work() -> None:
        if letter.run_id is not None:  # the run before its letter, as a requeue has it: who comes second sees the first
            Run.objects.select_for_update().only("pk").get(pk=letter.run_id)
        opened = {"resolved_at": None, "resolved_by": "", "resolved_reason": ""}
        # A run that was requeued meanwhile by its own page leaves nothing to open.
        rows = restorable(DeadLetter.objects.filter(pk=letter.pk)).filter(run__retried_by=None)
        ids = list(rows.values_list("pk", flat=True))
        if not restorable(DeadLetter.objects.filter(pk__in=ids)).update(state=DeadLetter.State.OPEN, **opened):
            letter.refresh_from_db()
            raise NotRestorable(dead_letter=letter.pk, state=state_of(letter), days=RESTORE_DAYS)
        count_open(letter.pk, 1)
        before = {"state": "discarded", "by": letter.resolved_by, "why": letter.resolved_reason}
        audit.record(
            actor=actor,
            action="dead_letter.restore",
            target_type="dead_letter",
            target_id=letter.pk,
            before=before,
            after={"state": "open"},
            reason=reason,
            request_id=request_id,
        )

    in_transaction(work)
    letter.refresh_from_db()
    return letter


def _not_open(letter: DeadLetter) -> NotOpen:
    """Return the refusal. It names the new run of a requeue, whose first answer may have been lost (protocol 1.8)."""
    retried_by = letter.run.retried_by if letter.run is not None else None
    facts: dict[str, Any] = {} if retried_by is None else {"retried_by": str(retried_by)}
    return NotOpen(dead_letter=letter.pk, state=state_of(letter), **facts)


def run_requeued(run: UUID, actor: str, reason: str) -> None:
    """Close the dead letter of a run that is requeued, whoever does it. Told in the requeue's transaction."""
    for letter_id in DeadLetter.objects.filter(run=run).values_list("pk", flat=True):
        _close(letter_id, DeadLetter.State.REQUEUED, actor, reason)


def _close(letter_id: int, state: DeadLetter.State, actor: str, reason: str) -> bool:
    """Take a dead letter out of `open`, if nobody did before: the row count is the verdict."""
    hit = DeadLetter.objects.filter(pk=letter_id, state=DeadLetter.State.OPEN).update(
        state=state, resolved_at=Now(), resolved_by=actor[:150], resolved_reason=reason[:500]
    )
    if hit:
        count_open(letter_id, -1)
    return hit == 1


def _audit(action: str, letter: DeadLetter, actor: str, reason: str, request_id: str, *, after: dict[str, Any]) -> None:
    audit.record(
        actor=actor,
        action=action,
        target_type="dead_letter",
        target_id=letter.pk,
        before={"state": "open"},
        after=after,
        reason=reason,
        request_id=request_id,
    )
