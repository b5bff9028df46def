"""What a submit asks for, checked before the account's lock (protocol 4.4): a Request, or a Refusal."""

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from jsonschema.exceptions import ValidationError

from quotas.errors import Refusal
from quotas.json_rules import check_json
from quotas.models import Account, Priority
from quotas.prices import PriceTable
from runs.agents import AgentNotRegistered, AgentSpec, get_agent
from runs.errors import InvalidInputRefused, InvalidRequest, PriorityTooHigh, UnknownAgent, Unsupported
from runs.ids import new_run_id
from runs.models import Run
from runs.services import files, overrides
from runs.services.estimating import ask, estimate_of
from runs.services.overrides import ON_BUSY, Timing

PRIORITY_ORDER = list(Priority.values)  # most urgent first


@dataclass(frozen=True, slots=True)
class Request:
    """A checked submit, everything serialised: what is left to do needs the account's lock."""

    run: Run
    estimate: int
    dedupe_seconds: float
    retry_of: UUID | None = None
    on_busy: str = "enqueue"
    timing: Timing = field(default_factory=Timing)
    files: Sequence[UUID] = ()


def prepare(  # noqa: PLR0913  every fact of a submit, keyword-only
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
    files_follow: bool = False,
) -> Request:
    """Check and serialise a submit, or raise a Refusal. Nothing is written.

    `delay` (seconds) or `start_at`: not before then; `deadline_seconds`: over by then, counted from now. `on_busy`
    says what to do when the session has a run: "reject", "enqueue" behind it, "replace" it and whoever waits for it.
    `files_follow`: what the input names as files is uploaded after this check, which is but a preview's.
    """
    _check_on_busy(on_busy)
    spec = find_spec(agent)
    timing = Timing.checked(delay=delay, start_at=start_at, deadline_seconds=deadline_seconds)
    check_input(agent, input, account=None if files_follow else account)
    metadata, tags = metadata or {}, tags or []
    _check_own(metadata, tags)
    run = Run(
        pk=new_run_id(),
        account=account,
        agent=spec.name,
        queue=spec.queue,
        priority=allowed_priority(account, priority or spec.priority),
        input_json=serialised(input),
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
    return Request(
        run,
        estimate_of(spec, input, account),
        spec.dedupe_seconds,
        on_busy=on_busy,
        timing=timing,
        files=files.files_in(spec, input),
    )


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
        for model in ask(spec, "models", spec.models, run_input):
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


def serialised(run_input: Any) -> str:
    """Return an input as it is stored; raises InvalidRequest where it is no JSON."""
    try:
        return json.dumps(run_input, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(field="input", problem=f"it is not JSON ({error})") from None


def allowed_priority(account: Account, priority: str) -> str:
    """Return the priority if the account may use it; raises InvalidRequest, PriorityTooHigh."""
    if priority not in PRIORITY_ORDER:
        raise InvalidRequest(field="priority", problem=f"one of {', '.join(PRIORITY_ORDER)}")
    if PRIORITY_ORDER.index(priority) < PRIORITY_ORDER.index(account.max_priority):
        raise PriorityTooHigh(priority=priority, account=account.name, max_priority=account.max_priority)
    return priority


def fingerprint_of(account: Account, run: Run) -> str:
    """Return the digest of what was asked: account, agent and the input in canonical form."""
    canonical = json.dumps(json.loads(run.input_json), sort_keys=True, separators=(",", ":"))
    return _sha256(f"{account.pk}\n{run.agent}\n{run.session}\n{canonical}")
