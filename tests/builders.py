"""Plain functions that make consistent rows: a run of a state has the transitions, attempts, hold and ledger of one.

Rows are written directly, because a builder must be able to make what no service would make any more. What they
write satisfies tests/invariants.py.
"""

import datetime as dt
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from quotas.api_keys import insert_key
from quotas.models import Account, ApiKey, Hold, LedgerEntry, Membership
from quotas.periods import period_key
from runs import states
from runs.archive import pack
from runs.events import Event
from runs.ids import new_run_id
from runs.models import Attempt, EventArchive, Run, Transition
from runs.states import EDGES, TERMINAL, Edge, RunState
from workers.case_filing import file_letters
from workers.models import DeadLetter, WorkerProcess

PASSWORD = "correct horse battery"  # of every persona
SCOPES = ["read", "submit", "cancel"]
OUR_APPS = ("quotas", "runs", "workers")
TIME_LIMIT_SECONDS = 600.0
QUEUE_WAIT_SECONDS = 1800.0
OUTCOMES = {
    RunState.SUCCEEDED: "succeeded",
    RunState.FAILED: "failed",
    RunState.CANCELLED: "cancelled",
    RunState.INTERRUPTED: "interrupted",
}
_numbers = itertools.count(1)


def make_account(name: str = "", **fields: Any) -> Account:
    """Make an account with the default limits; a name is made up if none is given."""
    return Account.objects.create(name=name or f"account-{next(_numbers)}", **fields)


def make_api_key(account: Account, *, scopes: list[str] | None = None, **fields: Any) -> tuple[ApiKey, str]:
    """Make a key; returns the row and the raw key."""
    return insert_key(account=account, scopes=scopes or SCOPES, **{"name": "test", **fields})


def make_user(username: str, *, account: Account | None = None, role: str = "member", **fields: Any) -> User:
    """Make a user with PASSWORD, as a member of `account` if one is given."""
    # One round instead of a million: the same algorithm, so that every process accepts it.
    password = PBKDF2PasswordHasher().encode(PASSWORD, "salt", iterations=1)
    user = User.objects.create(username=username, password=password, **fields)
    if account is not None:
        Membership.objects.create(account=account, user=user, role=role)
    return user


def make_operator(username: str, *, permissions: list[str] | None = None) -> User:
    """Make a staff user with every permission of our apps, or with the named codenames only."""
    user = make_user(username, is_staff=True)
    granted = Permission.objects.filter(content_type__app_label__in=OUR_APPS)
    if permissions is not None:
        granted = granted.filter(codename__in=permissions)
    user.user_permissions.set(granted)
    return user


@dataclass
class _Life:
    """The parts of a run's row that follow from its path through the states."""

    path: list[Edge]
    at: dt.datetime
    cost: int
    estimate: int
    number: int = 1
    transitions: list[Transition] = field(default_factory=list)

    @property
    def state(self) -> RunState:
        return self.path[-1].target

    @property
    def started(self) -> bool:
        return states.CLAIM in self.path

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    def moment(self, fence: int) -> dt.datetime:
        return self.at + dt.timedelta(milliseconds=10 * (fence - 1))


def _path(state: RunState, *, started: bool) -> list[Edge]:
    """Return the shortest way from submit to the state: through running, unless it never started."""
    if state == RunState.QUEUED:
        return [states.SUBMIT]
    if state == RunState.SCHEDULED:
        return [states.SUBMIT_LATER]
    if state == RunState.RUNNING:
        return [states.SUBMIT, states.CLAIM]
    source = RunState.RUNNING if started else RunState.QUEUED
    for edge in EDGES:
        if edge.target == state and source in edge.sources:
            return [*_path(source, started=started), edge]
    raise ValueError(f"no edge leads from {source} to {state}")


def make_run(
    state: str = RunState.QUEUED,
    *,
    account: Account | None = None,
    agent: str = "probe.ret",
    input: Any = None,  # noqa: A002  the word of the API
    result: Any = None,
    cost: int = 0,
    estimate: int = 0,
    started: bool = True,
    archived: bool = True,
    **fields: Any,
) -> Run:
    """Make a run in `state` with everything that belongs to it.

    `started=False` ends it without an attempt; `archived=False` leaves an ended run's log open; `fields` overwrite
    columns of the run. Nothing is written to Redis: a queued run waits for the relay. A scheduled run is due in an
    hour, or waits for the session slot it is given as `blocked_by_session`.
    """
    account = account or make_account()
    at = fields.pop("queued_at", None) or timezone.now()
    life = _Life(_path(RunState(state), started=started), at, cost if started else 0, estimate)
    columns = _columns(life, result, fields) | {"input_json": json.dumps({} if input is None else input)} | fields
    run = Run.objects.create(**({"id": new_run_id(), "account": account, "agent": agent} | columns))
    _write_transitions(run, life)
    _write_attempt(run, life)
    _write_money(run, life)
    if life.ended and archived:
        archive_log(run)
    return run


def _columns(life: _Life, result: Any, fields: dict[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "state": life.state,
        "fence": len(life.path),
        "submitted_at": life.at,
        "queued_at": life.at,
        "time_limit_seconds": TIME_LIMIT_SECONDS,
        "queue_wait_seconds": QUEUE_WAIT_SECONDS,
        "budget": life.estimate,
    }
    waits_until = life.at + dt.timedelta(seconds=fields.get("queue_wait_seconds", QUEUE_WAIT_SECONDS))
    if life.state == RunState.SCHEDULED:
        blocked = fields.get("blocked_by_session") is not None
        columns |= {"not_before": None if blocked else life.at + dt.timedelta(hours=1)}
        columns |= {"waits_until": waits_until if blocked else None}
    if life.state == RunState.QUEUED:
        columns |= {"waits_until": waits_until}
    if life.started:
        columns |= {"started_at": life.moment(2), "worker": "built-worker", "cost": life.cost}
    if life.state == RunState.RUNNING:
        lease = timezone.now() + dt.timedelta(seconds=60)
        columns |= {"claim_token": new_run_id().hex, "lease_expires_at": lease}
        columns |= {"stop_at": life.moment(2) + dt.timedelta(seconds=TIME_LIMIT_SECONDS)}
    if life.ended:
        columns |= {"finished_at": life.moment(len(life.path))}
    if life.state == RunState.SUCCEEDED:
        columns |= {"result_json": json.dumps(result)}
    if life.state == RunState.FAILED:
        columns |= {"error": _error(), "error_class": "agent_bug"}
    return columns


def _error() -> dict[str, str]:
    return {"class": "agent_bug", "type": "RuntimeError", "message": "built to fail", "traceback": "", "cause": "fatal"}


def _write_transitions(run: Run, life: _Life) -> None:
    Transition.objects.bulk_create(
        Transition(
            run=run,
            fence=fence,
            kind=edge.event,
            at=life.moment(fence),
            actor="builder",
            prev=f"{fence - 1}-1" if fence > 1 else "",
        )
        for fence, edge in enumerate(life.path, start=1)
    )


def _write_attempt(run: Run, life: _Life) -> None:
    if not life.started:
        return
    Attempt.objects.create(
        run=run,
        fence=2,
        number=run.attempt,
        worker="built-worker",
        started_at=life.moment(2),
        ended_at=run.finished_at,
        outcome=OUTCOMES.get(life.state, ""),
        error=run.error,
        error_class=run.error_class,
        cost=life.cost,
    )


def _write_money(run: Run, life: _Life) -> None:
    """Write hold and ledger line, and move the account's counters as the services would have."""
    lapses = life.at + dt.timedelta(hours=2)
    hold = Hold(run_id=run.id, account=run.account, amount=life.estimate)
    hold.expires_at = lapses if life.state in {RunState.QUEUED, RunState.SCHEDULED} else None
    accounts = Account.objects.filter(pk=run.account_id)
    if not life.ended:
        hold.save()
        accounts.update(held=F("held") + life.estimate, in_flight=F("in_flight") + 1)
        return
    hold.state = Hold.State.SETTLED if life.started else Hold.State.RELEASED
    hold.actual, hold.closed_at = life.cost, run.finished_at
    hold.save()
    if life.started:
        period, settle = period_key(run.account, timezone.now()), LedgerEntry.Kind.SETTLE
        line = LedgerEntry(account=run.account, run_id=run.id, settle_key=run.id, kind=settle, amount=life.cost)
        line.period, line.agent = period, run.agent
        line.save()
        accounts.update(spent=F("spent") + life.cost, spent_period=period)


def archive_log(run: Run) -> EventArchive:
    """Close an ended run's log with the lifecycle events of its transitions."""
    pairs = [
        (Event(id=f"{t.fence}-1", run=str(run.id), at=t.at.isoformat(), kind=t.kind, data=t.data), t.prev)
        for t in run.transitions.order_by("fence")
    ]
    archive = EventArchive.objects.create(run=run, body=pack(pairs), event_count=len(pairs), last_id=pairs[-1][0]["id"])
    Run.objects.filter(pk=run.pk).update(log_closed_at=timezone.now())
    run.refresh_from_db()
    return archive


def make_dead_letter(run: Run | None = None, **fields: Any) -> DeadLetter:
    """Make a dead letter of a failed run (made here if none is given), open if nothing else is said, in its case."""
    run = run or make_run(RunState.FAILED)
    columns: dict[str, Any] = {"reason": DeadLetter.Reason.FATAL, "error_class": run.error_class}
    columns |= {"message": (run.error or {}).get("message", ""), "buried_at": timezone.now()}
    letter = DeadLetter(run=run, **(columns | fields))
    with transaction.atomic():
        file_letters([letter])
        letter.save()
    return letter


def make_worker(**fields: Any) -> WorkerProcess:
    """Make the row of a worker that is alive as far as its heartbeat says."""
    number = next(_numbers)
    columns: dict[str, Any] = {"name": f"worker-{number}", "host": "test", "pid": 4_000_000 + number}
    columns |= {"version": "0", "queues": ["default"], "concurrency": 4, "heartbeat_at": timezone.now()}
    return WorkerProcess.objects.create(**(columns | fields))
