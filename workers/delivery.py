"""What becomes of deliveries: claimed as a set and announced, or acknowledged, left, put back, buried.

Order, never broken: commit in the database, then the event, then the acknowledgement, then the place (protocol 9).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import redis
import structlog
from django.db import DatabaseError
from django.db.models.functions import Now

from quotas.database import in_transaction
from quotas.errors import Refusal
from runs import announcing, archive, controls, events, lifecycle, ready, scripts
from runs.events import Answer
from runs.models import Run
from runs.outcomes import Cause, ErrorClass, Failed
from runs.ready import Ticket, Undecodable
from runs.services import claims as claiming
from runs.services import hand_back
from runs.services.claims import Claimed, Claims
from runs.states import TERMINAL, RunState
from workers import dead_letters, metrics, stream
from workers.aftermath import announce_left, buried
from workers.claimer import Batch, Claimer
from workers.config import WorkerConfig
from workers.models import DeadLetter
from workers.parking import Parking
from workers.stream import Entry

log = structlog.get_logger(__name__)
DELIVERIES_MAX = 5
PUT_BACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Started:
    """A claimed run whose `run.started` is stored: its handler may begin."""

    entry: Entry
    claimed: Claimed
    claimed_at: float  # monotonic, taken before the claim was sent


@dataclass(slots=True)
class Handled:
    """What became of a batch: runs to start, and the entries whose places (and slots) are free again."""

    started: list[Started] = field(default_factory=list)
    free: list[Entry] = field(default_factory=list)


class Deliveries:
    """Handles what a take returned. Runs in a unit thread; holds no state but a memory of entries put back."""

    def __init__(self, config: WorkerConfig, client: "redis.Redis") -> None:
        self._config = config
        self._client = client
        self._claimer = Claimer(config, client)
        self._waiting: list[tuple[float, Entry, Run]] = []  # of unknown agents, until they are put back

    def handle(
        self, entries: Sequence[Entry], batch: Batch | None = None, begin: Callable[[Started], None] | None = None
    ) -> Handled:
        """Check and claim entries. Every entry comes back in one of the two lists.

        Raises the database's Error while it is away: call again with the same batch. `begin` is told of every
        started run at once, so that its lease is renewed while the other entries are decided on.
        """
        batch = batch or Batch()
        tickets, junk = _decode(entries)
        for entry, problem in junk:
            with _or_left(entry):
                self._bury_entry(entry, DeadLetter.Reason.UNDECODABLE, problem)
        wanted = _newest(tickets)
        started: list[Started] = []
        won: set[UUID] = set()
        seen: dict[UUID, Run] = {}
        parking = Parking(self._config, self._client, tickets)
        # From the first claim on nothing may raise: claimed runs must reach their handlers. The rest comes again.
        for claims in self._claimer.claim(wanted, batch, parking.place):
            won |= {claim.run.pk for claim in claims.won}
            begun = self._announce(_pairs(tickets, wanted, claims), batch.claimed_at)
            for one in begun:
                if begin is not None:
                    begin(one)
            started += begun
            seen |= claims.seen
        running = {id(one.entry) for one in started}
        for entry, ticket in tickets:
            if id(entry) not in running and not parking.is_gone(entry):
                with _or_left(entry):
                    self._not_claimed(entry, ticket, seen.get(ticket.run_id))
        parking.give_back(won)
        return Handled(started, [entry for entry in entries if id(entry) not in running])

    # -- announce --------------------------------------------------------------------------------------------------
    def _announce(self, pairs: Sequence[tuple[Entry, Claimed]], claimed_at: float) -> list[Started]:
        """Store `run.started` of all in one round trip; hand back what could not be announced in time (6.6)."""
        if not pairs:
            return []
        appends = [lifecycle.append_of(claimed.started) for _, claimed in pairs]
        try:
            answers = events.append_all(self._client, appends)
        except redis.RedisError as error:
            log.warning("started.not_stored", runs=len(pairs), error=str(error))
            self._hand_back([(e, c, "run.started could not be stored", 0) for e, c in pairs])
            return []
        started: list[Started] = []
        back: list[tuple[Entry, Claimed, str, int]] = []
        for (entry, claimed), (answer, last) in zip(pairs, answers, strict=True):
            if answer in {Answer.GAP, Answer.NOKEY}:
                answer = self._repaired(claimed, last)  # noqa: PLW2901  the final answer
            if answer is not Answer.OK:
                # FENCED although the row is ours: the database lost commits that the log remembers (6.6).
                back.append((entry, claimed, "run.started could not be stored", events.split_id(last)[0]))
            elif time.monotonic() - claimed_at > self._config.lease / 2:
                back.append((entry, claimed, "the claim took longer than half a lease", 0))
            else:
                started.append(Started(entry, claimed, claimed_at))
        self._hand_back(back)
        for one in started:
            _observe(one)
        return started

    def _repaired(self, claimed: Claimed, last: str) -> Answer:
        try:
            return lifecycle.repair(self._client, claimed.run.pk, claimed.fence, last)
        except (DatabaseError, redis.RedisError) as error:
            log.warning("log.not_repaired", run_id=str(claimed.run.pk), error=str(error))
            return Answer.NOKEY

    def _hand_back(self, back: Sequence[tuple[Entry, Claimed, str, int]]) -> None:
        for entry, claimed, reason, log_fence in back:
            try:
                self._hand_back_one(entry, claimed, reason, log_fence)
            except (DatabaseError, Refusal, redis.RedisError) as error:
                log.warning("hand_back.postponed", run_id=str(claimed.run.pk), error=str(error))

    def _hand_back_one(self, entry: Entry, claimed: Claimed, reason: str, log_fence: int) -> None:
        left = in_transaction(lambda: hand_back(claimed, actor=self._config.consumer, reason=reason, above=log_fence))
        if left is None:
            return
        run = left.moved.run

        def fill(pipe: Any) -> None:
            announcing.append(pipe, [left.moved, *left.started])
            if run.is_terminal:  # it was marked for cancel meanwhile
                stream.ack(pipe, entry, run.pk)
            else:
                stream.hand_over(pipe, run, entry.slot)
            announcing.dispatch(pipe, left.started)

        scripts.execute(self._client, fill)

    # -- check (protocol 6.4): one outcome each --------------------------------------------------------------------
    def _not_claimed(self, entry: Entry, ticket: Ticket, seen: Run | None) -> None:
        """Decide on an entry that started nothing: acknowledge, leave, put back, or bury."""
        row = seen or Run.objects.defer("input_json", "result_json").filter(pk=ticket.run_id).first()
        if row is None:
            self._bury_entry(entry, DeadLetter.Reason.UNKNOWN_RUN, f"There is no run {ticket.run_id}.")
        elif row.state in TERMINAL:
            archive.close_logs(self._client, [(row.pk, row.fence)])
            self._ack(entry, row.pk)
        elif row.state == RunState.RUNNING:
            self._ack_unless_named(entry, row)
        elif row.state != RunState.QUEUED or row.fence != ticket.fence:
            self._ack(entry, row.pk)
        elif controls.is_paused(row.queue):
            controls.forget()  # the next take must know of it, or it would take this entry again and again
            self._return([(entry, row)])
        elif ticket.version > ready.MESSAGE_VERSION:
            self._put_back(entry, row, f"No worker understood message version {ticket.version}")
        elif row.agent not in self._config.agents:
            self._put_back(entry, row, f"No worker knew the agent {row.agent}")
        elif entry.deliveries > DELIVERIES_MAX:
            message = f"Delivered {entry.deliveries} times without a claim that held."
            self._fail(entry, row, Failed(ErrorClass.POISON, "Poison", message, cause=Cause.POISON.value))

    def _ack_unless_named(self, entry: Entry, row: Run) -> None:
        """A running run keeps the entry that the index names: it is the owner's. Any other is left over."""
        if ready.named_entry(self._client, row) != (entry.stream, entry.id):
            self._ack(entry, None)

    def _put_back(self, entry: Entry, row: Run, problem: str) -> None:
        """Keep the entry for a worker that can run it; at the queue-wait limit the run fails."""
        overdue = Run.objects.filter(pk=row.pk, waits_until__lt=Now()).exists()
        if overdue:
            message = f"{problem} within {row.queue_wait_seconds:g} s."
            cause = Cause.UNKNOWN_AGENT.value
            self._fail(entry, row, Failed(ErrorClass.UNKNOWN_AGENT, "UnknownAgent", message, cause=cause))
        else:
            self._waiting.append((time.monotonic() + PUT_BACK_SECONDS, entry, row))

    def put_back_due(self) -> None:
        """Return entries of unknown agents to their stream once they have waited here for PUT_BACK_SECONDS."""
        now = time.monotonic()
        due = [(entry, row) for at, entry, row in self._waiting if at <= now]
        self._waiting = [kept for kept in self._waiting if kept[0] > now]
        if due:
            self._return(due)

    def _return(self, pairs: Sequence[tuple[Entry, Run]]) -> None:
        """Exchange entries for new ones, on which no delivery is counted. They go to the end of their stream."""

        def fill(pipe: Any) -> None:
            for entry, row in pairs:
                # Without its slot, which was given back at once: another run may hold it by now.
                stream.ack(pipe, replace(entry, slot=""), row.pk)
                ready.dispatch(pipe, row)

        scripts.execute(self._client, fill)

    def _fail(self, entry: Entry, row: Run, error: Failed) -> None:
        left = in_transaction(lambda: buried(claiming.refuse(row.pk, row.fence, error, actor=self._config.consumer)))
        if left is not None:
            announce_left(self._client, left)
        self._ack(entry, row.pk)

    def _bury_entry(self, entry: Entry, reason: DeadLetter.Reason, message: str) -> None:
        log.warning("entry.buried", stream=entry.stream, entry_id=entry.id, reason=str(reason))
        dead_letters.bury_entry(entry, reason, message)
        self._ack(entry, None)

    def _ack(self, entry: Entry, run_id: UUID | None) -> None:
        scripts.execute(self._client, lambda pipe: stream.ack(pipe, entry, run_id))


@contextmanager
def _or_left(entry: Entry) -> Iterator[None]:
    """Decide on one entry; one that cannot be decided now is delivered again, and holds up no other."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever is wrong with it, or with what Redis says of it
        log.warning("entry.left_pending", stream=entry.stream, entry_id=entry.id, error=repr(error)[:300])


def _decode(entries: Sequence[Entry]) -> tuple[list[tuple[Entry, Ticket]], list[tuple[Entry, str]]]:
    """Return the entries with their tickets, one entry a run first, and those that are no tickets."""
    tickets, junk = [], []
    for entry in entries:
        try:
            tickets.append((entry, ready.parse(entry.fields)))
        except Undecodable as error:
            junk.append((entry, f"The entry cannot be read: {error}"))
    return tickets, junk


def _newest(tickets: Sequence[tuple[Entry, Ticket]]) -> dict[UUID, int]:
    """Return the fence to claim each run at. Of two entries of one run the older is a leftover, wherever it stands.

    A message of a later version is not claimed: what it means is for a later worker.
    """
    wanted: dict[UUID, int] = {}
    for _, ticket in tickets:
        if ticket.version <= ready.MESSAGE_VERSION:
            wanted[ticket.run_id] = max(ticket.fence, wanted.get(ticket.run_id, 0))
    return wanted


def _pairs(
    tickets: Sequence[tuple[Entry, Ticket]], wanted: dict[UUID, int], claims: Claims
) -> list[tuple[Entry, Claimed]]:
    """Pair every claim with the entry it was made for: the one of the claimed fence."""
    won = {claim.run.pk: claim for claim in claims.won}
    return [
        (entry, won.pop(ticket.run_id))
        for entry, ticket in tickets
        if ticket.run_id in won and ticket.fence == wanted.get(ticket.run_id)
    ]


def _observe(one: Started) -> None:
    """Note how long a run waited, and how late its entry came. One that was parked has a new entry."""
    run = one.claimed.run
    metrics.wait_seconds.labels(run.queue).observe(max(0.0, (one.claimed.started.at - run.queued_at).total_seconds()))
    if not one.claimed.limits:
        delay = int(one.entry.id.partition("-")[0]) / 1000 - run.queued_at.timestamp()
        metrics.dispatch_seconds.labels(run.queue).observe(max(0.0, delay))
