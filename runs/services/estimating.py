"""The amount to hold for a run (money 2). Asked before the account's lock; only estimates from real costs read rows."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from quotas.errors import Refusal
from quotas.models import AMOUNT_MAX, Account
from runs.agents import AgentSpec
from runs.errors import InvalidInputRefused, InvalidRequest
from runs.models import Run

log = structlog.get_logger(__name__)
T = TypeVar("T")

ENOUGH = 20  # ended runs; with fewer, one odd run would be the p95
LATEST = 200
FRESH_SECONDS = 15.0
KEPT = 4096  # pairs of account and agent in this process's memory
_known: dict[tuple[int, str], tuple[float, int | None]] = {}


def estimate_of(spec: AgentSpec, run_input: Any, account: Account) -> int:
    """Return the amount to hold for an input, now. Raises UnknownPrice, InvalidInputRefused, InvalidRequest."""
    amount = ask(spec, "estimate", spec.estimate.of, run_input)
    if spec.estimate.recent is not None:
        found = recent_cost(account.pk, spec.name)
        amount = amount if found is None else max(spec.estimate.recent.floor, found)
    if amount > AMOUNT_MAX:
        raise InvalidRequest(field="input", problem="its estimate is above 2^53 micro-units")
    return amount


def sample_estimate(spec: AgentSpec, account: Account) -> int | None:
    """Return what would be held for the agent's sample now; None where it depends on an input and cannot be told."""
    if spec.estimate.kind == "function" and spec.sample is None:
        return None
    try:
        return estimate_of(spec, spec.sample, account)
    except Refusal:  # a model without a price, or a function that breaks: the list of agents must not fail of it
        return None


def recent_cost(account_id: int, agent: str) -> int | None:
    """Return the p95 of what the account's latest runs of the agent cost, a few seconds old at most; None: too few.

    Every run that began and has ended counts, however it ended. Those of other accounts do not: what they ask of an
    agent must neither be seen nor felt here.
    """
    now, key = time.monotonic(), (account_id, agent)
    known = _known.get(key)
    if known is not None and now - known[0] <= FRESH_SECONDS:
        return known[1]
    ended = Run.objects.filter(account_id=account_id, agent=agent, started_at__isnull=False, finished_at__isnull=False)
    costs = sorted(ended.order_by("-pk").values_list("cost", flat=True)[:LATEST])
    found = costs[-(-95 * len(costs) // 100) - 1] if len(costs) >= ENOUGH else None
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = (now, found)
    return found


def forget_costs() -> None:
    """Drop what is remembered: the next estimate reads the rows."""
    _known.clear()


def ask(spec: AgentSpec, what: str, function: Callable[[Any], T], run_input: Any) -> T:
    """Ask an agent's own function about an input. One that breaks on it is a bug of the agent, told as a 400."""
    try:
        return function(run_input)
    except Refusal:
        raise
    except Exception as error:
        log.exception("agent.function_broke", agent=spec.name, function=what)
        message = f"the agent's {what} function cannot work on this input ({type(error).__name__})"
        raise InvalidInputRefused(agent=spec.name, errors=[{"path": "", "message": message}]) from error
