"""The drain of a worker: it waits for what runs, interrupts the rest, and may be recalled until then (protocol 12.2).

A drain that an operator asked for ends in one UPDATE of the worker's row, `Heartbeat.leave`, which hits only while the
row still asks for it. The recall (workers/drains.py) is the opposite UPDATE. So of both only one is ever believed.
"""

import asyncio
import time

import structlog
from django.db import Error

from workers.config import WorkerConfig
from workers.executor import Stop
from workers.heartbeat import Heartbeat
from workers.owned import OwnedRuns
from workers.shutdown import Shutdown
from workers.units import Units

log = structlog.get_logger(__name__)
TELL_SECONDS = 3.0
LEAVE_SECONDS = 5.0
AGAIN_SECONDS = 1.0


class Draining:
    """Waits for the attempts of one worker. Used by its main task alone; `recalled` is set by the loop."""

    def __init__(
        self,
        config: WorkerConfig,
        shutdown: Shutdown,
        heartbeat: Heartbeat,
        units: Units,
        owned: OwnedRuns,
        attempts: set["asyncio.Task[None]"],
    ) -> None:
        self._config = config
        self._shutdown = shutdown
        self._heartbeat = heartbeat
        self._units = units
        self._owned = owned
        self._attempts = attempts
        self._is_final = False  # and the row says so
        self.recalled = asyncio.Event()  # to be looked at: the row tells

    async def run(self) -> bool:
        """Take nothing more; finish what runs for up to the grace; interrupt the rest (policy `interrupt`).

        Returns False where the drain was recalled before anything was given up.
        """
        self.recalled.clear()
        log.info("worker.draining", worker=self._config.consumer, running=len(self._attempts))
        await self._note()
        finished = asyncio.create_task(_all_done(self._attempts))
        telling = asyncio.create_task(self._tell_what_is_left())
        try:
            if await self._wait(finished) or await self._is_recalled():
                self._shutdown.recall()
                log.info("worker.undrained", worker=self._config.consumer)
                return False
            await self._interrupt(finished)
        finally:
            finished.cancel()
            telling.cancel()
        return True

    async def _note(self) -> None:
        """Write into the row that it drains, and that nobody can recall it where a signal asked."""
        self._is_final = self._shutdown.final.is_set()
        try:
            await self._units.run(self._heartbeat.draining, self._is_final)
        except Error as error:
            log.warning("drain.not_noted", error=str(error))

    async def _wait(self, finished: "asyncio.Task[None]") -> bool:
        """Wait for the end of the attempts or of the grace. Returns True as soon as the row asks no more."""
        deadline = time.monotonic() + self._config.drain_grace
        while not finished.done() and self._attempts and not self._shutdown.at_once.is_set():
            events = [self._shutdown.at_once, self.recalled]
            events += [] if self._is_final else [self._shutdown.final]
            waiting = [asyncio.create_task(event.wait()) for event in events]
            left = deadline - time.monotonic()
            await asyncio.wait({finished, *waiting}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if left <= 0:
                break
            if self._shutdown.final.is_set() and not self._is_final:
                await self._note()
            was_told = self.recalled.is_set()
            self.recalled.clear()
            if was_told and not self._is_final:
                if not await self._is_asked():
                    return True
                await self._note()  # recalled and asked again: the recall emptied the note
        return False

    async def _is_asked(self) -> bool:
        try:
            return await self._units.run(self._heartbeat.is_asked_to_drain)
        except Error as error:
            log.warning("drain.not_looked_up", error=str(error))
            return True

    async def _is_recalled(self) -> bool:
        """Decide for good, before anything is given up. While the database is away nobody can recall it either."""
        while not self._shutdown.final.is_set():
            try:
                return not await self._units.run(self._heartbeat.leave)
            except Error as error:
                log.warning("drain.not_decided", error=str(error))
            final = asyncio.create_task(self._shutdown.final.wait())
            await asyncio.wait({final}, timeout=AGAIN_SECONDS)
            final.cancel()
        if not self._is_final:
            await self._note()
        return False

    async def _interrupt(self, finished: "asyncio.Task[None]") -> None:
        if not self._attempts:
            return
        at_once = asyncio.create_task(self._shutdown.at_once.wait())
        for owned in self._owned.all():
            owned.execution.stop(Stop.DRAIN)
        await asyncio.wait({at_once, finished}, return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():  # a second signal: handlers get their grace, a store that is away gets no more
            await asyncio.wait({finished}, timeout=self._config.handler_grace + LEAVE_SECONDS)
        at_once.cancel()

    async def _tell_what_is_left(self) -> None:
        """Log how many runs a drain still waits for, whenever that has changed."""
        told = len(self._attempts)
        while True:
            await asyncio.sleep(TELL_SECONDS)
            if (left := len(self._attempts)) != told:
                told = left
                log.info("worker.waiting_for_runs", worker=self._config.consumer, running=left)


async def _all_done(tasks: set["asyncio.Task[None]"]) -> None:
    while tasks:
        await asyncio.wait(set(tasks))
