"""The protocol's invariants P1-P6 (docs/protocol.md 13), looked up in the tables, in Redis and in the probe log.

`check()` belongs at the end of every test that let real parts work; it assumes that nothing is working any more.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import redis as redis_py
from django.conf import settings
from django.db.models import Count

from agentops import invariants
from agentops.invariants import all_events, position
from quotas.models import Account
from runs import keys
from runs.models import Run
from tests.probes import probe_log
from workers.dead_letters import in_state
from workers.models import Case, CaseAccount, DeadLetter

__all__ = [
    "all_events",
    "check",
    "check_attempts",
    "check_cases",
    "check_ended",
    "check_events",
    "check_money",
    "check_queues",
]
__all__ += ["check_sequence", "position", "rows_by_state"]


def check(*accounts: Account, events: bool = True, overlap: float = 0.0) -> None:
    """Assert all invariants for the accounts (default: every account), their runs, the queues and the probe log.

    `events=False` leaves the event logs out, for tests that deleted them on purpose. `overlap` seconds of
    outside work by a fenced attempt are let pass, for tests that freeze a worker.
    """
    chosen = accounts or tuple(Account.objects.all())
    runs = list(Run.objects.filter(account__in=chosen))
    check_ended(runs)
    check_money(chosen)
    check_cases()
    if events:
        for run in runs:
            check_events(run)
    check_queues({*settings.QUEUES, *(run.queue for run in runs)})
    check_attempts([run.id for run in runs], overlap=overlap)


def check_ended(runs: Sequence[Run]) -> None:
    """P1, P6: every run has ended, holds no session slot, and its transitions are one a fence without holes."""
    assert invariants.unended(runs) == []


def check_money(accounts: Iterable[Account]) -> None:
    """P3: counters equal the rows they cache, one settlement a run, no open hold on an ended run."""
    assert invariants.money_drift(accounts) == []


def check_cases() -> None:
    """A case, and each account's share of it, counts its open letters; all letters have one."""
    is_open = in_state(DeadLetter.objects.all(), DeadLetter.State.OPEN).order_by()
    letters = dict(is_open.values_list("case").annotate(n=Count("pk")))
    assert dict(Case.objects.filter(open_count__gt=0).values_list("pk", "open_count")) == letters
    with_run = is_open.exclude(run=None).values_list("case", "run__account").annotate(n=Count("pk"))
    shares = CaseAccount.objects.filter(open_count__gt=0).values_list("case", "account", "open_count")
    assert sorted(shares) == sorted(with_run)


def check_events(run: Run) -> None:
    """P4: ids strictly increase, the log begins with the submit and ends with its only terminal event."""
    assert invariants.broken_log(run) == []


def check_sequence(events: Sequence[Any], *, gaps: bool = False) -> None:
    """Assert what holds for any client's whole reading of an ended run: once each, in order, terminal last.

    `gaps=True` allows `gap` events, which carry no id.
    """
    assert invariants.broken_sequence(events, gaps=gaps) == []


def check_queues(queues: Iterable[str]) -> None:
    """P5: streams and pending lists empty, the index empty, no slot taken."""
    queues = list(queues)
    streams = [*(name for queue in queues for name in keys.ready_streams(queue)), *settings.EXTRA_STREAMS]
    with redis_py.Redis.from_url(settings.REDIS_URL, socket_timeout=10, retry=None) as client:
        assert invariants.left_in_queues(client, streams, queues) == {}


def check_attempts(run_ids: Iterable[Any], *, overlap: float = 0.0) -> None:
    """P2: in the probe log, no two attempts of a run worked at the same time, and no fence worked twice."""
    assert invariants.double_work(probe_log(), list(run_ids), overlap=overlap) == []


def rows_by_state(model: type, **where: Any) -> dict[str, int]:
    """Return {state: count} of a model's rows, for exact end counts in race tests."""
    counted = model._default_manager.filter(**where).values_list("state").annotate(n=Count("pk"))
    return dict(counted)
