"""Claiming what was taken: as one set, else one by one; a lost answer is looked up, not repeated (protocol 6.5, 1.8).

A batch keeps its token over all tries. When the answer to a COMMIT is lost, the next try first reads what carries the
token: found, the claim is ours and as old as its first sending; not found, it is sent again.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import redis
import structlog
from django.db import Error, connection

from quotas.database import in_transaction, is_connection_lost
from quotas.errors import Refusal
from runs.services import claims as claiming
from runs.services.claims import Claimed, Claims, Limited, Owner
from runs.services.moves import Left
from runs.states import RunState
from workers.aftermath import announce_left, buried
from workers.config import WorkerConfig

log = structlog.get_logger(__name__)
Place = Callable[[Sequence[Limited]], set[UUID]]  # returns the runs that have a place of each of their limits


@dataclass(slots=True)
class Batch:
    """One batch of deliveries over all its tries.

    `claimed_at` is monotonic, from before the claim was sent; of a claim that was looked up, from before the first
    sending, because nobody knows which of them it was.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(16))
    claimed_at: float = 0.0
    first_at: float = 0.0
    unsure: bool = False


class Claimer:
    """Claims runs for one worker. Runs in a unit thread."""

    def __init__(self, config: WorkerConfig, client: "redis.Redis") -> None:
        self._config = config
        self._client = client

    def claim(self, wanted: dict[UUID, int], batch: Batch, place: Place) -> Iterator[Claims]:
        """Claim {run id: fence}. Yields what was claimed as soon as it is: a locked row costs no other run its start.

        Runs under limits come last, those for which `place` finds a place. `batch.claimed_at` belongs to what was
        yielded last. Raises the database's Error while it is away, before anything was yielded; then call again with
        the batch.
        """
        if not wanted:
            return
        batch.first_at = batch.first_at or time.monotonic()
        if batch.unsure:
            won = claiming.claimed_by(batch.token)
            batch.unsure = False
            if won:
                batch.claimed_at = batch.first_at
                yield Claims(won=won, seen={claim.run.pk: claim.run for claim in won})
                return
        limited: list[Limited] = []
        for claims in self._and_unheld(self._held(wanted, batch), wanted, batch):
            limited += claims.limited
            yield claims
        placed = place(limited) if limited else set()
        if placed:
            mine = {run_id: wanted[run_id] for run_id in wanted if run_id in placed}
            yield from self._and_unheld(self._placed(mine, batch), mine, batch)

    def _and_unheld(self, found: Iterator[Claims], wanted: dict[UUID, int], batch: Batch) -> Iterator[Claims]:
        """Yield claims, then claim those of their runs alone whose hold had lapsed."""
        unheld: list[UUID] = []
        for claims in found:
            unheld += claims.unheld
            # Read again where it is decided on: it may have failed here, or wait for a place by now.
            for run_id in [*claims.unheld, *(one.run.pk for one in claims.limited)]:
                del claims.seen[run_id]
            yield claims
        for run_id in unheld:
            batch.claimed_at = time.monotonic()
            yield self._armed(run_id, wanted[run_id])

    def _held(self, wanted: dict[UUID, int], batch: Batch) -> Iterator[Claims]:
        """Claim runs whose hold is active: as one set, else one by one."""
        batch.claimed_at = time.monotonic()
        try:
            claims = self._set(wanted, self._owner(batch.token))
            if _landed_late(claims, batch.token):
                batch.claimed_at = batch.first_at
                claims = replace(claims, won=claiming.claimed_by(batch.token))
        except Exception as error:
            if is_connection_lost(error):
                batch.unsure = True
                connection.close()
                raise
            # A row that somebody holds, or data that breaks the set: none may hold back the others.
            log.warning("claim.split", runs=len(wanted), error=str(error))
        else:
            yield claims
            return
        for run_id, fence in wanted.items():
            batch.claimed_at = time.monotonic()
            yield self._alone(run_id, fence)

    def _placed(self, wanted: dict[UUID, int], batch: Batch) -> Iterator[Claims]:
        """Claim runs that have their places: as one set, else one by one. Others have begun by now: nothing raises."""
        batch.claimed_at = time.monotonic()
        owner = self._owner(secrets.token_hex(16))
        try:
            claims = self._set(wanted, owner, placed=wanted)
        except Exception as error:  # noqa: BLE001  as in _held
            log.warning("claim.split", runs=len(wanted), error=str(error))
            won = self._found(owner.token) if is_connection_lost(error) else []
        else:
            yield claims
            return
        if won:
            yield Claims(won=won)
        found = {claim.run.pk for claim in won}
        for run_id in [run_id for run_id in wanted if run_id not in found]:
            batch.claimed_at = time.monotonic()
            yield self._alone(run_id, wanted[run_id], placed=[run_id])

    def _owner(self, token: str) -> Owner:
        return Owner(self._config.consumer, token, self._config.lease)

    def _set(self, wanted: dict[UUID, int], owner: Owner, placed: Collection[UUID] = ()) -> Claims:
        return in_transaction(lambda: claiming.start_attempts(wanted, owner, self._config.agents, placed))

    def _alone(self, run_id: UUID, fence: int, placed: Collection[UUID] = ()) -> Claims:
        owner = self._owner(secrets.token_hex(16))
        return self._guarded(run_id, lambda: self._set({run_id: fence}, owner, placed), owner)

    def _armed(self, run_id: UUID, fence: int) -> Claims:
        owner = self._owner(secrets.token_hex(16))
        return self._guarded(run_id, lambda: self._rearmed(run_id, fence, owner), owner)

    def _guarded(self, run_id: UUID, claim: Callable[[], Claims], owner: Owner) -> Claims:
        """Claim one run. Whatever is wrong with it, it is delivered again, and is poison after a few times."""
        try:
            return claim()
        except Exception as error:
            expected = isinstance(error, Refusal)
            log.warning("claim.failed", run_id=str(run_id), error=str(error), exc_info=not expected)
            if not is_connection_lost(error):
                return Claims()
            return Claims(won=self._found(owner.token))

    def _found(self, token: str) -> list[Claimed]:
        """Return what a token won, after its answer was lost; nothing when that cannot be known now."""
        connection.close()
        try:
            return claiming.claimed_by(token)
        except Error:
            return []

    def _rearmed(self, run_id: UUID, fence: int, owner: Owner) -> Claims:
        """Claim a run whose hold lapsed, account first; one without room fails here (money 4)."""

        def work() -> Claimed | Left | None:
            result = claiming.start_attempt_rearmed(run_id, fence, owner)
            return buried(result) if isinstance(result, Left) else result

        result = in_transaction(work)
        if isinstance(result, Left):
            announce_left(self._client, result)
        return Claims(won=[result] if isinstance(result, Claimed) else [])


def _landed_late(claims: Claims, token: str) -> bool:
    """Whether an earlier sending of this batch committed after we looked for it, while the next one waited for it."""
    mine = {row.pk for row in claims.seen.values() if row.claim_token == token and row.state == RunState.RUNNING}
    return bool(mine - {claim.run.pk for claim in claims.won})
