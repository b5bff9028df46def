"""Watching the money: gauges of what is held and spent, and of counters that differ from their rows (docs/money.md).

One process exports them: whoever holds the sweeper's lease. A walk over all accounts begins once a minute at most, a
few accounts a statement; a pass that has taken its time leaves the rest to the next ones, and what was summed up is
shown at the end. It locks nothing: one statement sees counters and rows.
"""

import json
import time
from collections import Counter

import structlog
from django.db.models import Count
from django.utils import timezone

from quotas.drift import KINDS, figures_of
from quotas.models import Account, Hold
from quotas.selectors import spent_by_account
from runs import broker, keys
from workers import metrics

log = structlog.get_logger(__name__)
EVERY_SECONDS = 60.0
KEPT_SECONDS = 600  # in Redis; a walk over many accounts takes some passes
PAGE = 10  # accounts a statement: it sums up all lines of their periods
PASS_SECONDS = 0.5  # then the sweeper's other duties have their turn


class DriftWatch:
    """`run_once` looks at the next accounts, if it is time. `hush` takes the gauges away."""

    def __init__(self) -> None:
        self._due = 0.0
        self._after: int | None = None  # the last account of a walk that goes on
        self._drift: Counter[str] = Counter()
        self._units: Counter[str] = Counter()

    def run_once(self) -> None:
        began = time.monotonic()
        if self._after is None:
            if began < self._due:
                return
            self._due = began + EVERY_SECONDS
            self._drift, self._units = Counter(), Counter()
        while True:
            page = list(Account.objects.filter(pk__gt=self._after or 0).order_by("pk")[:PAGE])
            self._look_at(page)
            self._after = page[-1].pk if len(page) == PAGE else None
            if self._after is None:
                self._show()
                return
            if time.monotonic() - began >= PASS_SECONDS:
                return

    def hush(self) -> None:
        """Show nothing, and begin anew: another process is the one that knows."""
        self._due, self._after = 0.0, None
        for gauge in (metrics.hold_drift, metrics.units, metrics.holds):
            gauge.clear()

    def _look_at(self, page: list[Account]) -> None:
        self._units["spent"] += sum(spent_by_account(page, timezone.now()).values())
        self._units["held"] += sum(account.held for account in page)
        for found in figures_of(Account.objects.filter(pk__in=[account.pk for account in page])):
            self._drift.update({kind: abs(difference) for kind, difference in found.drift.items()})
            if found.drift:
                log.error("money.drift", account=found.account, stored=found.stored, counted=found.counted)

    def _show(self) -> None:
        for kind in KINDS:
            metrics.hold_drift.labels(kind).set(self._drift[kind])
        found = {kind: self._drift[kind] for kind in KINDS if self._drift[kind]}
        broker.client().set(keys.drift(), json.dumps(found), ex=KEPT_SECONDS)  # the console shows it
        for kind in ("spent", "held"):
            metrics.units.labels(kind).set(self._units[kind])
        rows = Hold.objects.filter(state__in=Hold.OPEN).order_by().values_list("state").annotate(number=Count("pk"))
        numbers = dict(rows)
        for state in Hold.OPEN:
            metrics.holds.labels(state.value).set(numbers.get(state.value, 0))
