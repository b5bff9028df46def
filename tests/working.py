"""Doing by hand, step by step and in this process, what submit and a worker do: for tests that stop in between."""

import datetime as dt
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis as redis_py
from django.db import models

from quotas.database import in_transaction
from quotas.models import Account, AuditEntry, Hold, LedgerEntry
from runs import agents, broker, keys, ready
from runs.agents import Handler, agent
from runs.ids import new_run_id
from runs.models import Attempt, EventArchive, Run, Transition
from runs.outcomes import Outcome, Succeeded
from runs.services import attempts, claims, schedule, submit_run
from runs.services.attempts import Finish, Finished
from runs.services.claims import Claimed, Claims, Owner
from runs.services.moves import Moved
from workers.config import WorkerConfig
from workers.context import Context, Identity
from workers.event_buffer import EventBuffer
from workers.executor import Execution, Time
from workers.models import DeadLetter
from workers.owned import OwnedRun
from workers.stream import Consumer, Entry

TABLES: tuple[type[models.Model], ...] = (
    Account, Hold, LedgerEntry, AuditEntry, Run, Transition, Attempt, EventArchive, DeadLetter,
)  # fmt: skip


def rows() -> dict[str, int]:
    """Return how many rows every table of ours has."""
    return {model.__name__: model._default_manager.count() for model in TABLES}


def new_rows(before: dict[str, int]) -> dict[str, int]:
    """Return {table: more rows than before}, tables without a change left out."""
    return {name: count - before[name] for name, count in rows().items() if count != before[name]}


@contextmanager
def registered(name: str, handler: Handler | None = None, **fields: Any) -> Iterator[str]:
    """Have an agent of that name in this process until the block ends."""
    agents.discover()

    async def returns_input(ctx: Context, run_input: Any) -> Any:
        return run_input

    agent(name, description="for a test", **fields)(handler or returns_input)
    try:
        yield name
    finally:
        del agents._registry[name]


def submit(account: Account, **fields: Any) -> Run:
    """Submit a run of `probe.ret` (estimate 1000) as the service does."""
    return submit_run(**({"account": account, "agent": "probe.ret", "input": {}, "actor": "tester"} | fields)).run


def owner(worker: str = "w1", lease: float = 15.0) -> Owner:
    return Owner(worker, secrets.token_hex(16), lease)


def try_claim(*runs: Run, worker: str = "w1", lease: float = 15.0) -> Claims:
    """Claim runs at the fence their rows were read with, as one set."""
    wanted = {run.pk: run.fence for run in runs}
    known = frozenset(run.agent for run in runs)
    return in_transaction(lambda: claims.start_attempts(wanted, owner(worker, lease), known))


def claim(*runs: Run, worker: str = "w1", lease: float = 15.0) -> list[Claimed]:
    """Claim runs and insist that all were won; in the order asked for."""
    won = {claimed.run.pk: claimed for claimed in try_claim(*runs, worker=worker, lease=lease).won}
    return [won[run.pk] for run in runs]


def finish_of(claimed: Claimed, outcome: Outcome | None = None, **fields: Any) -> Finish:
    """Return what an owner says at the end: by default success with the result `1` at no cost."""
    run = claimed.run
    defaults: dict[str, Any] = {"usage": {}, "cost": 0, "last_seq": 1, "session": run.session}
    said = outcome or Succeeded("1")
    return Finish(run.pk, run.account_id, claimed.fence, claimed.token, said, **(defaults | fields))


def finish(*finishes: Finish) -> Finished:
    """End attempts of one account as the finaliser does, without the dead letters."""
    return in_transaction(lambda: attempts.finish_attempts(finishes[0].account_id, finishes))


def promote() -> list[Moved]:
    """Queue the scheduled runs that are due, as the sweeper does, without the announcement."""
    return in_transaction(lambda: schedule.promote_due(actor="sweeper"))


def config(**fields: Any) -> WorkerConfig:
    """Return a worker's configuration that knows the probes."""
    defaults: dict[str, Any] = {
        "name": "w", "queues": ("default",), "agents": frozenset({"probe.ret", "probe.spend"}), "concurrency": 4,
        "lease": 15.0, "wake_wait": 0.1, "sweep": 0.1, "heartbeat": 1.0, "drain_grace": 1.0, "handler_grace": 0.1,
        "global_slots": 0, "extra_streams": (), "port": 0,
    }  # fmt: skip
    return WorkerConfig(**(defaults | fields))


def consumer(worker: WorkerConfig, **fields: Any) -> Consumer:
    """Return a consumer as a worker of that configuration has one."""
    options: dict[str, Any] = {"name": worker.consumer, "queues": worker.queues, "stale": worker.stale}
    options |= {"beat": worker.beat, "slot_seconds": worker.lease, "slot_limit": worker.global_slots}
    return Consumer(broker.client(), **(options | {"extra_streams": worker.extra_streams} | fields))


class NoPorts:
    """The ports of a context whose handler makes no files."""

    async def store_artifact(self, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        raise NotImplementedError

    async def open_file(self, file_id: Any) -> Any:
        raise NotImplementedError

    async def flush(self) -> None:
        """Nothing is written from here."""


def context(run_id: Any = None, *, fence: int = 2, account_id: int = 0, agent_name: str = "test") -> Context:
    """Return a context of an attempt, as its handler gets it."""
    identity = Identity(run_id or new_run_id(), agent_name, 1, fence, "w1", account_id, {})
    return Context(identity, EventBuffer(fence, dt.timedelta(0)), NoPorts())


def owned_run(claimed: Claimed, entry: Entry) -> OwnedRun:
    """Return a claimed run as a worker holds it while its handler works."""
    run = claimed.run
    ctx = context(run.pk, fence=run.fence, account_id=run.account_id, agent_name=run.agent)
    execution = Execution(agents.get_agent(run.agent), ctx, run.input, time=Time(60), grace=0.1)
    return OwnedRun(run, claimed.token, entry, ctx, ctx._buffer, execution, renewed_at=0.0)


def entry_of(run: Run, client: redis_py.Redis | None = None, **fields: Any) -> Entry:
    """Return the ready entry that the index names for a run, as if it had just been delivered."""
    client = client or broker.client()
    named = ready.named_entry(client, run)
    assert named is not None, f"the index names no entry of {run.pk}"
    found = client.xrange(named[0], named[1], named[1])
    given: dict[str, Any] = {"queue": run.queue, "stream": named[0], "id": named[1], "deliveries": 1, "place": 0}
    return Entry(**(given | {"fields": found[0][1] if found else {}} | fields))


def log_of(run: Run, client: redis_py.Redis | None = None) -> list[str]:
    """Return the ids in a run's event stream."""
    return [entry_id.decode() for entry_id, _ in (client or broker.client()).xrange(keys.log(run.pk))]
