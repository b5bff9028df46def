"""How long a run's hold counts while the run waits: only a run nobody looks after lapses (money 4)."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from uuid import UUID

from quotas import services as money
from quotas.services import Bill
from runs.models import Run

LAPSE_MARGIN_SECONDS = 300.0


def bill_of(run: Run, *, started: bool = True) -> Bill:
    """Return what a run that ends has really cost, for its settlement; one that never started is released."""
    return Bill(
        run.pk,
        run.cost,
        started=started,
        price_book=run.price_book,
        agent=run.agent,
        waived_by=run.waived_by,
    )


def lapse_seconds(run: Run) -> float:
    """Return how long a waiting run's hold counts, from the moment it may begin."""
    return run.queue_wait_seconds + run.time_limit_seconds + LAPSE_MARGIN_SECONDS


def seconds_until_due(run: Run, now: dt.datetime) -> float:
    return 0.0 if run.not_before is None else max(0.0, (run.not_before - now).total_seconds())


def let_lapse(runs: Iterable[Run], now: dt.datetime) -> None:
    """Let the holds of runs that left `running` for another attempt lapse again: a statement for each length."""
    by_seconds: dict[float, list[UUID]] = defaultdict(list)
    for run in runs:
        by_seconds[seconds_until_due(run, now) + lapse_seconds(run)].append(run.pk)
    for seconds, run_ids in by_seconds.items():
        money.lapse_from_now(run_ids, seconds=seconds)


def lapsed() -> list[int]:
    """Return the ids of accounts that hold amounts for runs nobody looked after in time."""
    return money.accounts_with_lapsed_holds()


def expire(account_id: int) -> int:
    """Expire an account's lapsed holds; their cost, if there is one, is booked all the same. Returns how many."""
    return money.expire_holds_of(account_id)
