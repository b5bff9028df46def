"""The runner: a thread of every worker, and of `manage.py sweep`, that works on bulk operations.

One process at a time has an operation, for HOLD_SECONDS after its last sign; who dies is replaced then. That only saves
work: what keeps items from being acted on twice is the operation's lock (workers/bulk/acts.py).
"""

import random
import threading
import time

import structlog
from django.db import Error, close_old_connections, connection
from django.db.models import F, Q
from django.db.models.functions import Now
from redis.exceptions import RedisError

from quotas.database import in_transaction, is_connection_lost, later
from quotas.errors import Busy, Refusal
from workers import metrics
from workers.bulk import acts, targets
from workers.bulk.operations import LIVE
from workers.models import BulkOperation

log = structlog.get_logger(__name__)
HOLD_SECONDS = 10.0
BATCH_SECONDS = 0.5  # of one operation, then the next has its turn
BATCH = 50
AT_ONCE = 20  # operations looked at
IDLE_SECONDS = 2.0
BUSY_SECONDS = 0.25
REST_SECONDS = 0.02  # between batches: the accounts' locks are everybody's
State = BulkOperation.State


class BulkRunner(threading.Thread):
    """Works until stopped; `run_once` is one round over the live operations."""

    def __init__(self, name: str) -> None:
        super().__init__(name="bulk", daemon=True)
        self._me = name[:120]
        self._stop_event = threading.Event()

    def run(self) -> None:
        pause = 0.0
        while not self._stop_event.wait(pause * random.uniform(0.8, 1.2)):  # noqa: S311  jitter
            close_old_connections()
            pause = self._round()
        connection.close()

    def _round(self) -> float:
        """Make one round; return the seconds to the next one."""
        try:
            is_live, acted = self.run_once()
        except (Error, RedisError, Busy) as error:
            metrics.count_error(error)
            log.warning("bulk.postponed", error=str(error))
            connection.close()
            return IDLE_SECONDS
        except Exception:
            log.exception("bulk.broke", worker=self._me)
            return IDLE_SECONDS
        if acted:
            return REST_SECONDS
        return BUSY_SECONDS if is_live else IDLE_SECONDS

    def stop(self) -> None:
        self._stop_event.set()

    def run_once(self) -> tuple[bool, int]:
        """Give each live operation that nobody else has a bounded turn. Returns (is there any, items acted on)."""
        rows = BulkOperation.objects.filter(state__in=[str(state) for state in LIVE])
        due = rows.filter(Q(next_at=None) | Q(next_at__lte=Now()))
        # Whose last turn is longest ago is first: none of many that wait for their canaries keeps another out.
        ids = list(due.order_by(F("held_until").asc(nulls_first=True), "pk").values_list("pk", flat=True)[:AT_ONCE])
        acted = 0
        for pk in ids:
            if not self._stop_event.is_set() and self._take(pk):
                acted += self._in_turn(pk)
        return bool(ids) or rows.exists(), acted

    def _in_turn(self, operation_id: int) -> int:
        """Work on one operation; what stops it keeps no other from its turn, while the database is there."""
        try:
            return self.work_on(operation_id)
        except Busy as error:
            log.warning("bulk.postponed", operation=operation_id, error=str(error))
        except Refusal as refusal:  # of its filter, by a later release: it will be refused for ever
            acts.fail(operation_id, refusal.message)
        except Exception as error:
            if is_connection_lost(error) or isinstance(error, RedisError):
                raise
            log.exception("bulk.operation_broke", operation=operation_id)
            acts.postpone(operation_id, f"Waiting: {type(error).__name__}, see the log of the worker.")
        return 0

    def _take(self, operation_id: int) -> bool:
        """Have the operation for a while, unless another process does."""
        free = Q(held_until=None) | Q(held_until__lt=Now()) | Q(holder=self._me)
        rows = BulkOperation.objects.filter(free, pk=operation_id, state__in=[str(state) for state in LIVE])
        return in_transaction(lambda: rows.update(holder=self._me, held_until=later(HOLD_SECONDS))) == 1

    def work_on(self, operation_id: int) -> int:
        """Write down targets, look at the canary, and act, for one turn. Returns the items acted on. Raises Busy."""
        until, done = time.monotonic() + BATCH_SECONDS, 0
        if not acts.may_go_on(operation_id):
            return 0
        while targets.collect(operation_id) and time.monotonic() < until:
            pass
        acts.look_at_canary(operation_id)
        while done < BATCH and time.monotonic() < until and not self._stop_event.is_set():
            if not acts.act_on_next(operation_id):
                break
            done += 1
        return done
