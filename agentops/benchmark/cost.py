"""What runs cost from submit to close: statements, transactions and round trips, counted on the real code.

The stations are called one after the other in this process, on a queue of their own that no worker reads, so waits and
beats are not in the figures.
"""

import secrets
from collections.abc import Callable
from typing import Any

from django.conf import settings

from agentops.counting import Counted, count
from quotas.models import Account
from runs import agents, archive, broker, keys
from runs.outcomes import Succeeded
from runs.services import submit_run
from runs.services.attempts import Finish
from workers.config import WorkerConfig
from workers.delivery import Deliveries, Started
from workers.finaliser import Ending, end_set
from workers.stream import Consumer

AGENT = "bench.cost"
# Budget on PostgreSQL for a set of any size up to 16: (transactions, statements, round trips).
BUDGET = {"submit": (1, 7, 1), "take": (0, 0, 1), "claim": (1, 5, 1), "finalise": (1, 9, 1), "close": (1, 2, 2)}


def measure(account: Account, runs: int) -> dict[str, Counted]:
    """Send `runs` no-op runs through every station and return what each station sent. `submit` is for one run."""
    queue = f"bench-{secrets.token_hex(4)}"
    agents.agent(AGENT, queue=queue)(_nothing)
    config = _config(queue)
    client = broker.client()
    deliveries = Deliveries(config, client)
    consumer = Consumer(client, name=config.consumer, queues=[queue], stale=60, beat=5, slot_seconds=15, slot_limit=0)
    counted: dict[str, Counted] = {}

    def station(name: str, work: Callable[[], Any]) -> Any:
        with count() as counted[name]:
            return work()

    try:
        submit_run(account=account, agent=AGENT, input={}, actor="bench")  # warms caches and scripts
        for _ in range(runs - 1):
            station("submit", lambda: submit_run(account=account, agent=AGENT, input={}, actor="bench"))
        if runs == 1:
            deliveries.handle(consumer.take([0]))
            station("submit", lambda: submit_run(account=account, agent=AGENT, input={}, actor="bench"))
        entries = station("take", lambda: consumer.take(range(runs)))
        started = station("claim", lambda: deliveries.handle(entries)).started
        endings = [_ending(one) for one in started]
        finished = station("finalise", lambda: end_set(client, endings))
        ended = [(one.run.pk, one.run.fence) for one in finished.moved]
        station("close", lambda: archive.close_logs(client, ended))
    finally:
        client.delete(*keys.ready_streams(queue), keys.index(queue), keys.wake(queue), keys.epoch(queue))
    return counted


def within(counted: dict[str, Counted]) -> dict[str, bool]:
    """Say for each station whether it stays within its budget, without savepoints."""
    return {name: _is_within(found, BUDGET[name]) for name, found in counted.items()}


def _is_within(found: Counted, budget: tuple[int, int, int]) -> bool:
    transactions, statements, round_trips = budget
    return (
        found.savepoints == 0
        and found.transactions <= transactions
        and found.statements <= statements
        and found.round_trips <= round_trips
    )


async def _nothing(_ctx: Any, _input: Any) -> None:
    """Never runs: the stations are called without a handler."""


def _config(queue: str) -> WorkerConfig:
    return WorkerConfig(
        name="bench",
        queues=(queue,),
        agents=frozenset({AGENT}),
        concurrency=64,
        lease=settings.LEASE_SECONDS,
        wake_wait=settings.WAKE_WAIT_SECONDS,
        sweep=settings.SWEEP_SECONDS,
        heartbeat=settings.HEARTBEAT_SECONDS,
        drain_grace=1,
        handler_grace=1,
        global_slots=0,
        extra_streams=(),
        port=0,
    )


def _ending(one: Started) -> Ending:
    run = one.claimed.run
    finish = Finish(
        run_id=run.pk,
        account_id=run.account_id,
        fence=run.fence,
        token=one.claimed.token,
        outcome=Succeeded("null"),
        usage={},
        cost=0,
        last_seq=1,
    )
    return Ending(one.entry, finish)
