"""Retention: payloads, run rows and keys that are old enough go, in bounded batches (protocol 10, 14).

Run ids are in order of submission, so a walk along the primary key sees the oldest first and needs no index of its
own. A walk stops at what is too young, remembers where it was, and begins again now and then for what was kept.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError
from django.db.models.functions import Now
from django.utils import timezone

from quotas.database import database_time, in_transaction, is_connection_lost
from runs.ids import first_id_at
from runs.models import Artifact, Run
from runs.services import pruning
from workers import case_filing, dead_letters
from workers.bulk import operations
from workers.models import DeadLetter

log = structlog.get_logger(__name__)
DAY = 24 * 3600.0
PAGE = 1000  # rows looked at by one statement
CHUNK = 20  # runs of one transaction: SQLite's other writers wait meanwhile
BATCH = 100  # runs a rule deletes a pass
BUDGET_SECONDS = 0.5  # of a pass: takeover must not wait for retention
EVERY_SECONDS = 60.0  # where nothing is due
AGAIN_SECONDS = 6 * 3600.0
# A walk passes a run once: so long after it became due by its submit, most have ended that long ago too.
LAG_SECONDS = 2 * 3600.0
LOOKED_AT = (
    "pk", "state", "submitted_at", "finished_at", "log_closed_at", "payload_pruned_at", "idempotency_key",
    "fingerprint", "dedupe_until",
)  # fmt: skip
Progress = Callable[[str, int], None]


def open_letters(run_ids: Sequence[UUID]) -> set[UUID]:
    """Return the runs that somebody may still requeue from their dead letter: they stay as they are.

    A discarded one may be restored first.
    """
    letters = DeadLetter.objects.filter(run__in=run_ids)
    kept = (dead_letters.in_state(letters, DeadLetter.State.OPEN), dead_letters.restorable(letters))
    return {run_id for rows in kept for run_id in rows.values_list("run__pk", flat=True)}


def _ended_before(run: Run, seconds: float) -> bool:
    """Whether a run ended so long ago, and its log is closed or cannot be any more."""
    if not run.is_terminal or run.finished_at is None:
        return False
    age = (database_time(run) - run.finished_at).total_seconds()
    return age > seconds and (run.log_closed_at is not None or age > 2 * settings.EVENT_TTL_SECONDS)


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of pruning: which of a page's runs are due after `seconds`, and what is done to them."""

    name: str
    seconds: float
    due: Callable[[Sequence[Run], float], list[UUID]]
    act: Callable[[Sequence[UUID]], int]


def _due_keys(page: Sequence[Run], seconds: float) -> list[UUID]:
    return [run.pk for run in page if run.is_terminal and _has_old_keys(run, seconds)]


def _has_old_keys(run: Run, seconds: float) -> bool:
    now = database_time(run)
    if run.idempotency_key is not None and (now - run.submitted_at).total_seconds() > seconds:
        return True
    return run.fingerprint is not None and run.dedupe_until is not None and run.dedupe_until < now


def _due_payloads(page: Sequence[Run], seconds: float) -> list[UUID]:
    """Return runs with an old payload, and those whose files were left behind by a crash."""
    pruned = [run.pk for run in page if run.payload_pruned]
    left = set(Artifact.objects.filter(run__in=pruned).values_list("run_id", flat=True)) if pruned else set()
    return [run.pk for run in page if run.pk in left or (not run.payload_pruned and _ended_before(run, seconds))]


def _due_runs(page: Sequence[Run], seconds: float) -> list[UUID]:
    return [run.pk for run in page if _ended_before(run, seconds)]


def _prune_payloads(run_ids: Sequence[UUID]) -> int:
    marked = pruning.prune_payloads(run_ids, open_letters)
    pruning.remove_artifacts(set(run_ids) - set(marked))
    if marked:
        in_transaction(lambda: operations.forget_words(marked))
    return len(marked)


def rules(*, runs_days: float, payloads_days: float) -> list[Rule]:
    """Return the rules for these ages; 0 days keep for ever."""
    found = [Rule("keys", settings.IDEMPOTENCY_SECONDS, _due_keys, pruning.empty_keys)]
    if payloads_days:
        found.append(Rule("payloads", payloads_days * DAY, _due_payloads, _prune_payloads))
    if runs_days:
        found.append(Rule("runs", runs_days * DAY, _due_runs, lambda ids: len(pruning.delete_runs(ids, open_letters))))
    return found


@dataclass
class Walk:
    """One rule's way along the runs, of all accounts or of one. `lag`: see LAG_SECONDS; negative reads further."""

    rule: Rule
    account_id: int | None = None
    lag: float = LAG_SECONDS
    dry_run: bool = False
    found: int = 0
    _after: UUID | None = field(default=None, init=False)
    _again_at: float = field(default=math.inf, init=False)

    def work(self, *, until: float = math.inf, most: float = math.inf, told: Progress | None = None) -> bool:
        """Go on until `most` runs are done, or the monotonic clock says `until`. Returns whether more may be due."""
        if time.monotonic() > self._again_at:
            self._after, self._again_at = None, math.inf
        done = 0
        while page := self._page():
            for chunk in _chunks(self.rule.due(page, self.rule.seconds)):
                count = self._act(chunk)
                done += len(chunk)
                self.found += count
                self._after = chunk[-1]
                if told is not None:
                    told(self.rule.name, self.found)
                if done >= most or time.monotonic() > until:
                    return True
            self._after = page[-1].pk
            if len(page) < PAGE:
                break
            if time.monotonic() > until:
                return True
        self._again_at = min(self._again_at, time.monotonic() + AGAIN_SECONDS)
        return False

    def _page(self) -> list[Run]:
        bound = timezone.now().timestamp() - self.rule.seconds - self.lag
        rows = Run.objects.annotate(db_now=Now()).only(*LOOKED_AT).order_by("pk")
        rows = rows.filter(pk__lt=first_id_at(bound))
        if self.account_id is not None:
            rows = rows.filter(account_id=self.account_id)
        return list((rows if self._after is None else rows.filter(pk__gt=self._after))[:PAGE])

    def _act(self, run_ids: Sequence[UUID]) -> int:
        """Do a chunk; where it cannot be done together, run by run. Raises Busy, and on a lost connection."""
        if self.dry_run:
            return len(run_ids if self.rule.name == "keys" else pruning.prunable(run_ids, open_letters))
        try:
            return self.rule.act(run_ids)
        except DatabaseError as error:
            if is_connection_lost(error):
                raise
            log.warning("retention.split", rule=self.rule.name, runs=len(run_ids), error=str(error))
        return sum(self._alone(run_id) for run_id in run_ids)

    def _alone(self, run_id: UUID) -> int:
        try:
            return self.rule.act([run_id])
        except DatabaseError as error:
            log.warning("retention.left", rule=self.rule.name, run_id=str(run_id), error=str(error))
            return 0


def _chunks(run_ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(run_ids), CHUNK):
        yield run_ids[start : start + CHUNK]


class Retention:
    """The sweeper's duty: a bounded piece of every rule a pass, at most once a minute while nothing is due."""

    def __init__(self) -> None:
        ages = {"runs_days": settings.RETAIN_RUNS_DAYS, "payloads_days": settings.RETAIN_PAYLOADS_DAYS}
        self._walks = [Walk(rule) for rule in rules(**ages)]
        self._next = 0.0

    def run_once(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_SECONDS
        before = {walk.rule.name: walk.found for walk in self._walks}
        share = BUDGET_SECONDS / len(self._walks)
        more = [walk.work(until=time.monotonic() + share, most=BATCH) for walk in self._walks]
        uploads = pruning.remove_uploads(pruning.unused_uploads(CHUNK))
        cases = case_filing.prune(settings.RETAIN_RUNS_DAYS)
        bulk = operations.prune(settings.RETAIN_RUNS_DAYS)
        done = {walk.rule.name: walk.found - before[walk.rule.name] for walk in self._walks}
        done |= {"uploads": uploads, "cases": cases, "bulk": bulk}
        if any(done.values()):
            log.info("sweep.pruned_rows", **done)
        if any(more) or uploads == CHUNK:
            self._next = 0.0
