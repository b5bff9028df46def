"""A dry run: what a submit or a requeue would be answered now. Checks all of it, locks nothing, writes nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings

from quotas import services as money
from quotas.database import database_time
from quotas.errors import Refusal
from quotas.models import Account
from quotas.selectors import account_now, quota_figures
from runs.models import Run
from runs.services.asking import PRIORITY_ORDER, Request, prepare
from runs.services.placement import outlook
from runs.services.submit import called_like, check_backlog
from runs.states import RunState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Preview:
    """What would come of a submit. `account` has the figures as the submit would find them."""

    run: Run  # not stored
    estimate: int
    account: Account
    limits_hit: list[Refusal]
    state: RunState
    queue_position: int | None  # 1: the next one; None where it would not be queued at once

    @property
    def is_allowed(self) -> bool:
        return not self.limits_hit

    @property
    def facts(self) -> dict[str, Any]:
        """What API and commands answer."""
        return {
            "dry_run": True,
            "agent": self.run.agent,
            "queue": self.run.queue,
            "priority": self.run.priority,
            "estimate": self.estimate,
            "allowed": self.is_allowed,
            "limits_hit": [_told(refusal) for refusal in self.limits_hit],
            "state": self.state.value if self.is_allowed else None,
            "queue_position": self.queue_position,
            **quota_figures(self.account, database_time(self.account)),
        }


def _told(refusal: Refusal) -> dict[str, Any]:
    wait = {} if refusal.retry_after is None else {"retry_after": max(1, round(refusal.retry_after))}
    return {"code": refusal.code, "status": refusal.status, "detail": refusal.message, **wait, **refusal.facts}


@called_like(prepare)
def preview_run(**asked: Any) -> Preview:
    """Return what `submit_run` would do now, or raise what it would refuse however much room there is.

    Neither idempotency nor dedupe: what was submitted before is not looked at.
    """
    return preview(prepare(**asked))


def preview(request: Request) -> Preview:
    """Return what would come of a checked request now. Raises InvalidRequest for times that cannot be."""
    run = request.run
    account = account_now(run.account_id)
    request.timing.apply(run, database_time(account))
    hit: list[Refusal] = []
    _try(hit, lambda: check_backlog(run.queue))
    waits, replaced = False, list[UUID]()
    if run.session:
        found = _try(hit, lambda: outlook(run, account, on_busy=request.on_busy))
        waits, replaced = found or (False, [])
    if replaced:
        account = account_now(run.account_id, without=replaced)
    _try(hit, lambda: money.check_in_flight(account))
    _try(hit, lambda: money.check_available(account, request.estimate, database_time(account)))
    state = RunState.SCHEDULED if waits or run.not_before else RunState.QUEUED
    position = _position(run) if state == RunState.QUEUED and not hit else None
    return Preview(run, request.estimate, account, hit, state, position)


def _try(hit: list[Refusal], check: Callable[[], T]) -> T | None:
    """Return what a check returns; a refusal is added to those that were hit."""
    try:
        return check()
    except Refusal as refusal:
        hit.append(refusal)
        return None


def _position(run: Run) -> int:
    """Return the run's place among those that wait for a worker, by priority."""
    ahead = PRIORITY_ORDER[: PRIORITY_ORDER.index(run.priority) + 1]
    waiting = Run.objects.filter(state=RunState.QUEUED, queue=run.queue, priority__in=ahead).values("pk")
    return waiting[: settings.BACKLOG_LIMIT].count() + 1
