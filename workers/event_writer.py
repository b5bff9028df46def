"""Storing what attempts emit: all runs of the worker in one pipeline, and what to do on each answer (protocol 3.3)."""

import asyncio
from collections.abc import Callable, Iterable

import redis
import structlog
from django.db import DatabaseError
from redis.exceptions import RedisError

from runs import events, lifecycle
from runs.events import Answer, Append, Line
from runs.models import Run
from runs.states import RunState
from workers import metrics
from workers.owned import OwnedRun, OwnedRuns
from workers.units import Units

log = structlog.get_logger(__name__)
FLUSH_SECONDS = 0.05


class EventWriter:
    """Flushes the buffers of owned runs. `on_lost` is told of a run whose log somebody else has taken over."""

    def __init__(
        self, client: "redis.Redis", owned: OwnedRuns, units: Units, on_lost: Callable[[OwnedRun], None]
    ) -> None:
        self._client = client
        self._owned = owned
        self._units = units
        self._on_lost = on_lost
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Flush young events every FLUSH_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush(self._owned.all())

    async def flush(self, runs: Iterable[OwnedRun], *, everything: bool = False) -> None:
        """Store what the runs' buffers hold. Redis being away leaves them full; the next flush tries again."""
        runs = list(runs)
        async with self._turn:  # two flushes of one run at once would see each other's lines as a gap
            while True:
                batch = [(owned, owned.buffer.take(everything=everything)) for owned in runs if not owned.fenced]
                batch = [(owned, lines) for owned, lines in batch if lines]
                if not batch:
                    return
                try:
                    await self._units.run(self._store, batch)
                except (RedisError, DatabaseError) as error:  # the database: whether a lost log is still ours
                    metrics.count_error(error)
                    log.warning("events.postponed", runs=len(batch), error=str(error))
                    return
                if not everything:
                    return

    def _store(self, batch: list[tuple[OwnedRun, list[Line]]]) -> None:
        appends = [Append(owned.run_id, owned.fence, lines, cap=owned.buffer.cap) for owned, lines in batch]
        for (owned, lines), (answer, last) in zip(batch, events.append_all(self._client, appends), strict=True):
            if answer in {Answer.GAP, Answer.NOKEY}:
                answer, last = self._mend(owned, answer, last)  # noqa: PLW2901  the final answer
            if answer is Answer.OK:
                owned.buffer.stored(last)
                metrics.events_appended.inc(len(lines))
            elif answer is Answer.FENCED:
                metrics.fenced_writes.inc()
                self._on_lost(owned)

    def _mend(self, owned: OwnedRun, answer: Answer, last: str) -> tuple[Answer, str]:
        """Fill a log that is older than ours from the tail, or open a lost one again, if the run is still ours."""
        row = Run.objects.filter(pk=owned.run_id).values_list("state", "fence", "claim_token").first()
        if row != (RunState.RUNNING, owned.fence, owned.token):
            return Answer.FENCED, last
        known = owned.buffer.after(last)  # where the tail does not reach back, readers see the jump and say `gap`
        log.warning("events.mended", run_id=str(owned.run_id), answer=answer.value, lines=len(known))
        append = lifecycle.rebuilt(owned.run_id, owned.fence, last, extra=known)
        return events.append_all(self._client, [append])[0]
