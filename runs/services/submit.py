"""Submit: one transaction under the account's lock, so that every refusal is a rollback (protocol 4)."""

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import Error, connection, transaction
from django.db.models import Max, Q
from jsonschema.exceptions import ValidationError

from quotas import services as money
from quotas.database import database_time, in_transaction, is_connection_lost
from quotas.errors import Refusal
from quotas.json_rules import check_json
from quotas.models import AMOUNT_MAX, Account, Priority
from quotas.prices import PriceTable
from runs import announcing, limits
from runs.agents import AgentNotRegistered, AgentSpec, get_agent
from runs.errors import (
    BacklogFull,
    DuplicateRun,
    IdempotencyMismatch,
    InvalidInputRefused,
    InvalidRequest,
    PriorityTooHigh,
    SessionBusy,
    UnknownAgent,
    Unsupported,
)
from runs.ids import new_run_id
from runs.models import Run, Transition
from runs.selectors import backlog_of
from runs.services import files, overrides, sessions
from runs.services.cancel import cancel_waiting, mark_running
from runs.services.holding import lapse_seconds, seconds_until_due
from runs.services.moves import Moved
from runs.services.overrides import ON_BUSY, Timing
from runs.states import SUBMIT, SUBMIT_LATER, RunState
from runs.transitions import begin, lock_runs

log = structlog.get_logger(__name__)
T = TypeVar("T")
PRIORITY_ORDER = list(Priority.values)  # most urgent first


@dataclass(frozen=True, slots=True)
class Submitted:
    """The run a submit leads to. `replayed`: it was there already, by the same idempotency key and body."""

    run: Run
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A checked submit, everything serialised: what is left to do needs the account's lock."""

    run: Run
    estimate: int
    idempotency_key: str | None
    digest: str
    dedupe_seconds: float
    retry_of: UUID | None = None
    on_busy: str = "enqueue"
    timing: Timing = field(default_factory=Timing)
    files: Sequence[UUID] = ()


def submit_run(  # noqa: PLR0913  every fact of a submit, keyword-only
    *,
    account: Account,
    agent: str,
    input: Any,  # noqa: A002  the API's own word
    actor: str,
    priority: str | None = None,
    session: str = "",
    on_busy: str = "reject",
    idempotency_key: str | None = None,
    idempotency_digest: str | None = None,
    metadata: dict[str, Any] | None = None,
    tags: list[str] | None = None,
    delay: float | None = None,
    start_at: dt.datetime | None = None,
    deadline_seconds: float | None = None,
    time_limit: float | None = None,
    max_attempts: int | None = None,
    on_lost: str | None = None,
    request_id: str = "",
    traceparent: str = "",
) -> Submitted:
    """Accept a run, or raise a Refusal and leave nothing behind.

    Durable at the commit; dispatched after it (of the caller's transaction, inside one). When Redis is away then,
    the sweeper dispatches later: the row is its own outbox.

    `delay` (seconds) or `start_at`: not before then; `deadline_seconds`: over by then, counted from now. `on_busy`
    says what to do when the session has a run: "reject", "enqueue" behind it, "replace" it and whoever waits for it.
    """
    _check_on_busy(on_busy)
    spec = find_spec(agent)
    timing = Timing.checked(delay=delay, start_at=start_at, deadline_seconds=deadline_seconds)
    check_input(agent, input, account=account)
    metadata, tags = metadata or {}, tags or []
    _check_own(metadata, tags)
    run = Run(
        pk=new_run_id(),
        account=account,
        agent=spec.name,
        queue=spec.queue,
        priority=allowed_priority(account, priority or spec.priority),
        input_json=_serialised(input),
        session=session,
        metadata=metadata,
        tags=tags,
        **overrides.columns_of(spec, time_limit=time_limit, max_attempts=max_attempts, on_lost=on_lost),
        submitted_by=actor[:150],
        request_id=request_id[:64],
        traceparent=traceparent[:60],
    )
    run.idempotency_key = route_key("submit", idempotency_key)
    run.idempotency_digest = idempotency_digest or fingerprint_of(account, run)
    request = Request(
        run, estimate_of(spec, input), run.idempotency_key, run.idempotency_digest, spec.dedupe_seconds, on_busy=on_busy
    )
    return admit(replace(request, timing=timing, files=files.files_in(spec, input)))


def _check_on_busy(on_busy: str) -> None:
    if on_busy not in ON_BUSY:
        raise Unsupported(field="on_busy", value=on_busy[:60], use=", ".join(ON_BUSY))


def route_key(route: str, key: str | None) -> str | None:
    """Return the stored form of an idempotency key: unique per account and route, whatever the collation equates."""
    return f"{route}:{_sha256(key)}" if key else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_spec(agent: str) -> AgentSpec:
    """Return the agent's specification; raises UnknownAgent."""
    try:
        return get_agent(agent)
    except AgentNotRegistered:
        raise UnknownAgent(agent=agent[:120]) from None


def check_input(agent: str, run_input: Any, *, account: Account | None = None) -> None:
    """Check an input against the agent's schema, its files against the account, its models against the prices.

    Raises UnknownAgent, InvalidInputRefused (facts.errors: [{path, message}]), NoSuchFile, UnknownPrice.
    """
    spec = find_spec(agent)
    found = sorted(spec.validator.iter_errors(run_input), key=lambda error: list(map(str, error.absolute_path)))
    if found:
        errors = [{"path": _path_of(e.absolute_path), "message": _readable(e)[:300]} for e in found[:20]]
        raise InvalidInputRefused(agent=spec.name, errors=errors)
    if account is not None:
        files.check_files(spec, run_input, account)
    if spec.models is not None:
        table = PriceTable.current()
        for model in _asked(spec, "models", spec.models, run_input):
            table.require(model)


def _path_of(parts: Iterable[str | int]) -> str:
    return "/".join(map(str, parts))


def _readable(error: ValidationError) -> str:
    """Return what is wrong. Of several alternatives that all fail: what each of them misses, joined by `or`."""
    if not error.context:
        return str(error.message)
    alternatives: dict[Any, list[str]] = {}
    for inner in error.context:
        path = _path_of(inner.relative_path)
        said = f"{path}: {_readable(inner)}" if path else _readable(inner)
        alternatives.setdefault(inner.relative_schema_path[0], []).append(said)
    return ", or ".join(dict.fromkeys(" and ".join(said) for said in alternatives.values()))


def _check_own(metadata: Any, tags: Any) -> None:
    """Check what the submitter may attach. The API has done so; a call from Python comes here first."""
    for name, value, kind in (("metadata", metadata, dict), ("tags", tags, list)):
        if not isinstance(value, kind):
            raise InvalidRequest(field=name, problem=f"a {kind.__name__} is needed, not a {type(value).__name__}")
        try:
            check_json(value)
        except Refusal as refusal:
            raise InvalidRequest(field=name, problem=refusal.message.rstrip(".")) from None
    for tag in tags:
        if not isinstance(tag, str):
            raise InvalidRequest(field="tags", problem=f"a tag is a text, not a {type(tag).__name__}")


def _serialised(run_input: Any) -> str:
    try:
        return json.dumps(run_input, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(field="input", problem=f"it is not JSON ({error})") from None


def allowed_priority(account: Account, priority: str) -> str:
    if priority not in PRIORITY_ORDER:
        raise InvalidRequest(field="priority", problem=f"one of {', '.join(PRIORITY_ORDER)}")
    if PRIORITY_ORDER.index(priority) < PRIORITY_ORDER.index(account.max_priority):
        raise PriorityTooHigh(priority=priority, account=account.name, max_priority=account.max_priority)
    return priority


def estimate_of(spec: AgentSpec, run_input: Any) -> int:
    """Return the amount to hold for an input. Raises UnknownPrice, InvalidInputRefused, InvalidRequest."""
    amount = _asked(spec, "estimate", spec.estimate.of, run_input)
    if amount > AMOUNT_MAX:
        raise InvalidRequest(field="input", problem="its estimate is above 2^53 micro-units")
    return amount


def _asked(spec: AgentSpec, what: str, function: Callable[[Any], T], run_input: Any) -> T:
    """Ask an agent's own function about an input. One that breaks on it is a bug of the agent, told as a 400."""
    try:
        return function(run_input)
    except Refusal:
        raise
    except Exception as error:
        log.exception("agent.function_broke", agent=spec.name, function=what)
        message = f"the agent's {what} function cannot work on this input ({type(error).__name__})"
        raise InvalidInputRefused(agent=spec.name, errors=[{"path": "", "message": message}]) from error


def fingerprint_of(account: Account, run: Run) -> str:
    """Return the digest of what was asked: account, agent and the input in canonical form."""
    canonical = json.dumps(json.loads(run.input_json), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{account.pk}\n{run.agent}\n{run.session}\n{canonical}".encode()).hexdigest()


def admit(request: Request) -> Submitted:
    """Take the account's lock, decide, insert, and dispatch after the commit."""
    run = request.run
    check_backlog(run.queue)
    if request.dedupe_seconds and request.retry_of is None:
        run.fingerprint = fingerprint_of(run.account, run)
    return committed_or_found(run, lambda: admit_locked(request))


def check_backlog(queue: str) -> None:
    """Raise BacklogFull when the queue is full. Called before the lock (protocol 4.4)."""
    backlog = backlog_of(queue)
    if backlog >= settings.BACKLOG_LIMIT:
        raise BacklogFull(queue=queue, backlog=backlog, limit=settings.BACKLOG_LIMIT)


def committed_or_found(run: Run, work: Callable[[], Submitted]) -> Submitted:
    """Do the work of a submit in a transaction. An answer to COMMIT that was lost is not a failure (protocol 1.8).

    The run's own id tells: if its row is there, the submit was accepted, and is announced now.
    """
    try:
        return in_transaction(work)
    except Error as error:
        if connection.in_atomic_block or not is_connection_lost(error):
            raise
        connection.close()
        found = Run.objects.select_related("account").filter(pk=run.pk).first()
        if found is None:
            raise
        if found.fence == 1:
            announcing.announce_moved([Moved(found, Transition.objects.get(run=found, fence=1))])
        return Submitted(found)


def admit_locked(request: Request) -> Submitted:
    """Decide on a submit under the account's lock: replay, refuse by raising, or insert run, transition and hold."""
    run = request.run
    account = money.lock_account(run.account_id)
    now = database_time(account)
    earlier = _earlier(request, now)
    if earlier is not None:
        return Submitted(earlier, replayed=True)
    run.submitted_at = run.queued_at = now
    request.timing.apply(run, now)
    changed = _take_place(request, account) if run.session else []
    money.check_in_flight(account)
    edge = SUBMIT_LATER if run.blocked_by_session or run.not_before else SUBMIT
    begins = run.not_before or now
    run.waits_until = limits.queued_until(run, begins) if edge is SUBMIT or run.blocked_by_session else run.deadline_at
    if run.fingerprint:
        run.dedupe_until = now + dt.timedelta(seconds=request.dedupe_seconds)
    first = begin(run, edge, actor=run.submitted_by, data=_first_data(request))
    files.use_files(run, request.files)
    lapses = seconds_until_due(run, now) + lapse_seconds(run)
    money.place_hold(account, run_id=run.pk, amount=request.estimate, lapses_after=lapses)
    transaction.on_commit(lambda: announcing.announce_moved([*changed, Moved(run, first)]))
    return Submitted(run)


def _first_data(request: Request) -> dict[str, Any]:
    run = request.run
    data: dict[str, Any] = {"agent": run.agent, "estimate": request.estimate}
    if run.not_before is not None:
        data["not_before"] = run.not_before.isoformat()
    if run.blocked_by_session is not None:
        data["blocked_by_session"] = run.session
    return data


def _take_place(request: Request, account: Account) -> list[Moved]:
    """Give the run its session's slot, or its place in line (protocol 4.3). Returns the runs cancelled for it."""
    run = request.run
    taken = Run.objects.filter(account=account, session=run.session).aggregate(n=Max("session_number"))["n"]
    run.session_number = (taken or 0) + 1
    slot = sessions.slot_of(run.session)
    busy = Q(session_slot=slot) | Q(blocked_by_session=slot)
    others = list(Run.objects.filter(busy, account=account).values_list("pk", flat=True))
    if others and request.on_busy == "reject":
        raise SessionBusy(session=run.session, run=str(_holder(account, slot) or others[0]))
    changed = _replace(account, others, run) if others and request.on_busy == "replace" else []
    left = set(others) - {moved.run.pk for moved in changed}
    # Both, always: a try that a deadlock took back has written into the same object.
    run.session_slot, run.blocked_by_session = (None, slot) if left else (slot, None)
    return changed


def _holder(account: Account, slot: str | None) -> UUID | None:
    return Run.objects.filter(account=account, session_slot=slot).values_list("pk", flat=True).first()


def _replace(account: Account, others: Sequence[UUID], run: Run) -> list[Moved]:
    """Cancel the session's runs: those that wait at once, a running holder is marked, and the new run waits for it."""
    changed = []
    for row in lock_runs(others):
        row.account = account
        if row.state == RunState.RUNNING:
            mark_running(row)
        elif not row.is_terminal:
            reason = f"replaced by the run {run.pk}"
            changed.append(cancel_waiting(row, account, actor=run.submitted_by, reason=reason))
    return changed


def _earlier(request: Request, now: dt.datetime) -> Run | None:
    """Return the run this submit repeats, raise what stands in its way, or None. One read, none for a plain run."""
    run = request.run
    clash = Q()
    if request.idempotency_key:
        clash |= Q(idempotency_key=request.idempotency_key)
    if run.fingerprint:
        clash |= Q(fingerprint=run.fingerprint, agent=run.agent)
    return _clashing(request, clash, now) if clash else None


def _clashing(request: Request, clash: Q, now: dt.datetime) -> Run | None:
    """Look at the runs that share a key or an input: the key first, because a replay is no conflict."""
    run = request.run
    rows = list(Run.objects.filter(clash, account_id=run.account_id).defer("input_json", "result_json"))
    for row in rows:
        if request.idempotency_key and row.idempotency_key == request.idempotency_key:
            replayed = _replay(request, row, now)
            if replayed is not None:
                return replayed
    for row in rows:
        if run.fingerprint and row.fingerprint == run.fingerprint and row.agent == run.agent:
            _refuse_duplicate(row, now)
    return None


def _replay(request: Request, row: Run, now: dt.datetime) -> Run | None:
    """Return the first run of an idempotency key; empty the key when its window is over; refuse another body."""
    if now - row.submitted_at > dt.timedelta(seconds=settings.IDEMPOTENCY_SECONDS):
        Run.objects.filter(pk=row.pk).update(idempotency_key=None)
        return None
    if row.idempotency_digest != request.digest:
        raise IdempotencyMismatch(run=str(row.pk))
    row.account = request.run.account
    return row


def _refuse_duplicate(row: Run, now: dt.datetime) -> None:
    """Raise DuplicateRun inside the agent's dedupe window; after it, empty the fingerprint."""
    if row.dedupe_until is None or row.dedupe_until > now:
        raise DuplicateRun(run=str(row.pk))
    Run.objects.filter(pk=row.pk).update(fingerprint=None)
