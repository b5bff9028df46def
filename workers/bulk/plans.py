"""The plan of an operation before it is started: how many, who is skipped and why, money and room. Writes nothing.

Rows are counted by the database, in groups; at most TARGETS_MAX of them, as many as one operation takes.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, Count, Q, QuerySet, Sum, Value, When

from quotas.errors import Refusal
from quotas.models import Account
from quotas.selectors import account_now
from runs.agents import AgentNotRegistered, AgentSpec, get_agent
from runs.errors import InvalidRequest
from runs.services.estimating import estimate_of, sample_estimate
from runs.states import TERMINAL, RunState
from workers.bulk.options import Kind, Options, Source
from workers.bulk.targets import TARGETS_MAX, matching, newest
from workers.models import DeadLetter

ACCOUNTS_MAX = 50  # whose figures a plan looks up
KEY_MAX = 18  # digits of a row's number, under 2^63
WAITS = {RunState.QUEUED, RunState.SCHEDULED}


@dataclass(slots=True)
class Purse:
    """What an account needs for its share, against what it has. Amounts in micro-units."""

    account: Account
    eligible: int = 0
    needed: int = 0

    @property
    def free(self) -> int:
        return max(0, self.account.limit - self.account.spent - self.account.held)

    @property
    def room(self) -> int:
        return max(0, self.account.max_in_flight - self.account.in_flight)

    @property
    def refused(self) -> int:
        """How many would be refused for money."""
        if self.needed <= self.free or not self.eligible:
            return 0
        return self.eligible - self.free * self.eligible // self.needed

    @property
    def waits(self) -> int:
        """How many are beyond the places in flight there are now: the operation waits for them."""
        return max(0, self.eligible - self.refused - self.room)


@dataclass(slots=True)
class Plan:
    """What an operation would do now. `skipped` says why; `purses` are of the accounts with most to do.

    `up_to` is the newest key it was counted to: an operation started with it reaches no further.
    """

    up_to: str = ""
    total: int = 0
    eligible: int = 0
    is_cut: bool = False
    skipped: Counter[str] = field(default_factory=Counter)
    agents: Counter[str] = field(default_factory=Counter)
    purses: list[Purse] = field(default_factory=list)
    accounts: int = 0

    @property
    def skips(self) -> list[tuple[str, int]]:
        """Why rows are skipped, the commonest first: (why, how many)."""
        return self.skipped.most_common()

    @property
    def needed(self) -> int:
        return sum(purse.needed for purse in self.purses)

    @property
    def refused(self) -> int:
        return sum(purse.refused for purse in self.purses)

    @property
    def only_agent(self) -> str:
        """The agent, where all that is eligible is of one."""
        return next(iter(self.agents)) if len(self.agents) == 1 else ""


def plan_of(kind: str, source: str, query: Mapping[str, str], options: Options, *, up_to: str = "") -> Plan:
    """Return the plan, of what there was up to a key, else up to now. Raises UnknownFilter, InvalidFilter."""
    rows = matching(source, query)
    plan = Plan(up_to=bound_of(source, up_to))
    if plan.up_to:
        rows = rows.filter(pk__lte=_key(source, plan.up_to))
    last = rows.values_list("pk", flat=True)[TARGETS_MAX - 1 : TARGETS_MAX].first()
    if last is not None:
        plan.is_cut = rows.filter(pk__lt=last).exists()
        rows = rows.filter(pk__gte=last)
    shares: dict[int, list[dict[str, Any]]] = {}
    for group in _groups(source, rows):
        plan.total += group["count"]
        why = why_not(kind, source, group, options)
        if why:
            plan.skipped[why] += group["count"]
            continue
        plan.eligible += group["count"]
        if group["agent"]:
            plan.agents[group["agent"]] += group["count"]
            shares.setdefault(group["account"], []).append(group)
    plan.accounts = len(shares)
    if kind == Kind.REQUEUE:
        most = sorted(shares, key=lambda pk: -sum(group["count"] for group in shares[pk]))[:ACCOUNTS_MAX]
        plan.purses = [_purse(account_now(pk), shares[pk], options) for pk in most]
    return plan


def bound_of(source: str, shown: str = "") -> str:
    """Return the newest key an operation may reach: the one that was shown, and none that is still to come.

    Raises InvalidRequest where what was shown is no key.
    """
    now = newest(source)
    if not (shown and now):
        return now
    return str(min(_key(source, shown), _key(source, now)))


def _key(source: str, text: str) -> Any:
    """Return a key of the source's rows: a letter's number, a run's id."""
    try:
        if source == Source.RUNS:
            return UUID(text)
        if text.isascii() and text.isdigit() and len(text) <= KEY_MAX:
            return int(text)
    except ValueError:
        pass
    raise InvalidRequest(field="up_to", problem="it is no key that a plan has shown")


def _groups(source: str, rows: QuerySet[Any]) -> list[dict[str, Any]]:
    """Count the rows by all that decides about them."""
    run = "run__" if source == Source.LETTERS else ""
    columns = {"agent": f"{run}agent", "account": f"{run}account_id", "run_state": f"{run}state"}
    if run:
        columns["letter_state"] = "state"
    flagged = rows.order_by().annotate(
        is_requeued=_flag(Q(**{f"{run}retried_by__isnull": False})),
        is_pruned=_flag(Q(**{f"{run}payload_pruned_at__isnull": False})),
    )
    counted = flagged.values(*columns.values(), "is_requeued", "is_pruned").annotate(
        number=Count("pk"), budgets=Sum(f"{run}budget")
    )
    found = []
    for row in counted:
        facts = {name: row[column] for name, column in columns.items()}
        named = {"is_requeued": row["is_requeued"], "is_pruned": row["is_pruned"], "count": row["number"]}
        found.append({**facts, **named, "budgets": row["budgets"]})
    return found


def _flag(condition: Q) -> Case:
    return Case(When(condition, then=Value(True)), default=Value(False), output_field=BooleanField())  # noqa: FBT003


def why_not(kind: str, source: str, group: Mapping[str, Any], options: Options) -> str:
    """Return why rows like these are skipped; empty where they are eligible."""
    state = group["run_state"]
    if source == Source.LETTERS:
        if group["letter_state"] == DeadLetter.State.DISCARDED:
            return "discarded already"
        if group["letter_state"] == DeadLetter.State.REQUEUED or group["is_requeued"]:
            return "requeued already"
        if kind == Kind.DISCARD:
            return ""
        if state is None:
            return "without a run"
    if kind == Kind.CANCEL:
        return "ended already" if state in TERMINAL else ""
    if kind == Kind.REPRIORITISE:
        return "" if state in WAITS else "not waiting any more"
    return _why_not_requeue(group, options)


def _why_not_requeue(group: Mapping[str, Any], options: Options) -> str:
    if group["run_state"] not in TERMINAL:
        return "still live"
    if group["is_requeued"]:
        return "requeued already"
    if group["run_state"] == RunState.SUCCEEDED and not options.with_succeeded:
        return "succeeded"
    if group["is_pruned"]:
        return "input deleted by retention"
    return "" if _spec(group["agent"]) is not None else "agent not known here"


def _spec(agent: str) -> AgentSpec | None:
    try:
        return get_agent(agent)
    except AgentNotRegistered:
        return None


def _purse(account: Account, groups: list[dict[str, Any]], options: Options) -> Purse:
    purse = Purse(account)
    for group in groups:
        spec = _spec(group["agent"])
        each = None if spec is None else _each(spec, account, options)
        purse.eligible += group["count"]
        purse.needed += (group["budgets"] or 0) if each is None else each * group["count"]
    return purse


def _each(spec: AgentSpec, account: Account, options: Options) -> int | None:
    """Return the estimate of one run; None where it depends on its own input: then what was reserved for it counts."""
    whole = (options.edit or {}).get("whole")
    if spec.estimate.kind != "function":
        return sample_estimate(spec, account)
    if whole is None:
        return None
    try:
        return estimate_of(spec, whole, account)
    except Refusal:
        return None
