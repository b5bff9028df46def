"""Submit: one transaction under the account's lock, so that every refusal is a rollback (protocol 4)."""

import datetime as dt
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import structlog
from django.conf import settings
from django.db import Error, connection, transaction
from django.db.models import Max, Q
from jsonschema.exceptions import ValidationError
from redis.exceptions import RedisError

from quotas import services as money
from quotas.database import database_time, in_transaction, is_connection_lost
from quotas.errors import Refusal
from quotas.json_rules import check_json
from quotas.models import AMOUNT_MAX, Account, Priority
from quotas.prices import PriceTable
from runs import broker, events, lifecycle, ready, scripts
from runs.agents import AgentNotRegistered, AgentSpec, get_agent
from runs.errors import (
    BacklogFull,
    DuplicateRun,
    IdempotencyMismatch,
    InvalidInputRefused,
    InvalidRequest,
    NoSuchFile,
    PriorityTooHigh,
    SessionBusy,
    UnknownAgent,
    Unsupported,
)
from runs.ids import new_run_id
from runs.models import Run, StoredFile, Transition
from runs.selectors import backlog_of
from runs.transitions import begin

log = structlog.get_logger(__name__)
T = TypeVar("T")
PRIORITY_ORDER = list(Priority.values)  # most urgent first
LAPSE_MARGIN_SECONDS = 300.0
TIME_LIMIT_MAX = 24 * 3600.0


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
    time_limit: float | None = None,
    request_id: str = "",
    traceparent: str = "",
) -> Submitted:
    """Accept a run, or raise a Refusal and leave nothing behind.

    Durable at the commit; dispatched after it (of the caller's transaction, inside one). When Redis is away then,
    the sweeper dispatches later: the row is its own outbox.
    """
    if on_busy != "reject":
        raise Unsupported(field="on_busy", value=on_busy, use="reject")
    spec = find_spec(agent)
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
        session_slot=slot_of(session),
        metadata=metadata,
        tags=tags,
        time_limit_seconds=_time_limit(spec, time_limit),
        queue_wait_seconds=spec.queue_wait_seconds or settings.QUEUE_WAIT_SECONDS,
        submitted_by=actor[:150],
        request_id=request_id[:64],
        traceparent=traceparent[:60],
    )
    run.idempotency_key = route_key("submit", idempotency_key)
    run.idempotency_digest = idempotency_digest or fingerprint_of(account, run)
    return admit(
        Request(
            run=run,
            estimate=estimate_of(spec, input),
            idempotency_key=run.idempotency_key,
            digest=run.idempotency_digest,
            dedupe_seconds=spec.dedupe_seconds,
        )
    )


def route_key(route: str, key: str | None) -> str | None:
    """Return the stored form of an idempotency key: unique per account and route, whatever the collation equates."""
    return f"{route}:{_sha256(key)}" if key else None


def slot_of(session: str) -> str | None:
    """Return what a session's runs hold the slot by. Hashed: MySQL's collation takes `a`, `A` and `a ` for one."""
    return _sha256(session) if session else None


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
    if account is not None and isinstance(run_input, dict):
        _check_files(spec, run_input, account)
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


def _check_files(spec: AgentSpec, run_input: dict[str, Any], account: Account) -> None:
    for name in spec.file_fields:
        if name not in run_input:
            continue
        try:
            file_id = UUID(str(run_input[name]))
        except ValueError:
            raise NoSuchFile(file=str(run_input[name])[:60]) from None
        if not StoredFile.objects.filter(pk=file_id, account=account).exists():
            raise NoSuchFile(file=str(file_id))


def allowed_priority(account: Account, priority: str) -> str:
    if priority not in PRIORITY_ORDER:
        raise InvalidRequest(field="priority", problem=f"one of {', '.join(PRIORITY_ORDER)}")
    if PRIORITY_ORDER.index(priority) < PRIORITY_ORDER.index(account.max_priority):
        raise PriorityTooHigh(priority=priority, account=account.name, max_priority=account.max_priority)
    return priority


def _time_limit(spec: AgentSpec, asked: float | None) -> float:
    if asked is None:
        return spec.time_limit_seconds
    if "time_limit" not in spec.allow:
        raise InvalidRequest(field="time_limit", problem=f"the agent {spec.name} does not allow it")
    if not 0 < asked <= TIME_LIMIT_MAX:
        raise InvalidRequest(field="time_limit", problem=f"seconds above 0, at most {TIME_LIMIT_MAX:.0f}")
    return float(asked)


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
        announce_queued(found, Transition.objects.get(run=found, fence=1))
        return Submitted(found)


def admit_locked(request: Request) -> Submitted:
    run = request.run
    account = money.lock_account(run.account_id)
    now = database_time(account)
    earlier = _earlier(request, now)
    if earlier is not None:
        return Submitted(earlier, replayed=True)
    money.check_in_flight(account)
    if run.session:
        taken = Run.objects.filter(account=account, session=run.session).aggregate(n=Max("session_number"))["n"]
        run.session_number = (taken or 0) + 1
    run.queued_at = now
    if run.fingerprint:
        run.dedupe_until = now + dt.timedelta(seconds=request.dedupe_seconds)
    first = begin(run, actor=run.submitted_by, data={"agent": run.agent, "estimate": request.estimate})
    lapses = run.queue_wait_seconds + run.time_limit_seconds + LAPSE_MARGIN_SECONDS
    money.place_hold(account, run_id=run.pk, amount=request.estimate, lapses_after=lapses)
    transaction.on_commit(lambda: announce_queued(run, first))
    return Submitted(run)


def _earlier(request: Request, now: dt.datetime) -> Run | None:
    """Return the run this submit repeats, raise what stands in its way, or None. One read, none for a plain run."""
    run = request.run
    clash = Q()
    if request.idempotency_key:
        clash |= Q(idempotency_key=request.idempotency_key)
    if run.fingerprint:
        clash |= Q(fingerprint=run.fingerprint, agent=run.agent)
    if run.session_slot:
        clash |= Q(session_slot=run.session_slot)
    return _clashing(request, clash, now) if clash else None


def _clashing(request: Request, clash: Q, now: dt.datetime) -> Run | None:
    """Look at the runs that share a key, an input or a session: the key first, because a replay is no conflict."""
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
    for row in rows:
        if run.session_slot and row.session_slot == run.session_slot:
            raise SessionBusy(session=run.session, run=str(row.pk))
    return None


def _replay(request: Request, row: Run, now: dt.datetime) -> Run | None:
    """Return the first run of an idempotency key; empty the key when its window is over; refuse another body."""
    if now - row.queued_at > dt.timedelta(seconds=settings.IDEMPOTENCY_SECONDS):
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


def announce_queued(run: Run, first: Transition) -> None:
    """Append `<fence>-1` and dispatch, in one round trip (protocol 4.6). Redis being away is not an error here."""

    def fill(pipe: Any) -> None:
        events.call(pipe, lifecycle.append_of(first, run=run))
        ready.dispatch(pipe, run)

    try:
        for reply in scripts.execute(broker.client(), fill):
            if isinstance(reply, Exception):
                log.warning("dispatch.refused", run_id=str(run.pk), error=str(reply))
    except RedisError as error:
        log.warning("dispatch.postponed", run_id=str(run.pk), error=str(error))
