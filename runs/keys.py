"""Every Redis key and channel, a function each. All keys of a queue share its hash tag, all keys of a run its own."""

import hashlib
from uuid import UUID

from django.conf import settings

from quotas.models import Priority

PRIORITIES: tuple[str, ...] = tuple(Priority.values)  # in the order in which they are read
GROUP = "workers"


def _tag(name: str) -> str:
    return f"{{{settings.AGENTOPS_PREFIX}:{name}}}"


def ready(queue: str, priority: str) -> str:
    """Return the ready stream of a queue's priority."""
    return f"{_tag(queue)}:ready:{priority}"


def ready_streams(queue: str) -> list[str]:
    """Return the queue's ready streams in strict order."""
    return [ready(queue, priority) for priority in PRIORITIES]


def wake(queue: str) -> str:
    """Return the list whose elements wake one waiting worker each."""
    return f"{_tag(queue)}:wake"


def index(queue: str) -> str:
    """Return the hash run id → `fence|stream|entry id`."""
    return f"{_tag(queue)}:index"


def slots(queue: str) -> str:
    """Return the sorted set of global slots: `<worker>/<place>` scored by expiry in Redis time (ms)."""
    return f"{_tag(queue)}:slots"


def epoch(queue: str) -> str:
    """Return the key that holds the Redis time (ms) at which this queue's keys were made."""
    return f"{_tag(queue)}:epoch"


def limit_places(queue: str, limit: str) -> str:
    """Return the sorted set of a limit's places in use: run ids scored by expiry in Redis time (ms)."""
    return f"{_tag(queue)}:limit:{limit}"


def parked(queue: str, limit: str) -> str:
    """Return the waiting set of a limit: run ids scored by their turn."""
    return f"{_tag(queue)}:parked:{limit}"


def limits(queue: str) -> str:
    """Return the hash limit → how many runs it lets be at work, of the limits somebody waits for."""
    return f"{_tag(queue)}:limits"


def limited(queue: str) -> str:
    """Return the hash run id → what runs/lua/parking.lua has to know of a run that is under limits."""
    return f"{_tag(queue)}:limited"


def log(run_id: UUID) -> str:
    """Return the event stream of a run."""
    return f"{_tag(f'run:{run_id}')}:log"


def run_wake(run_id: UUID) -> str:
    """Return the channel on which appends to a run's log are announced."""
    return f"{settings.AGENTOPS_PREFIX}:run:{run_id}:wake"


def session_wake(account_id: int, session: str) -> str:
    """Return the channel on which a new run of a session is announced. Hashed: a session's name is free text."""
    digest = hashlib.sha256(session.encode()).hexdigest()[:32]
    return f"{settings.AGENTOPS_PREFIX}:session:{account_id}:{digest}:wake"


def control() -> str:
    """Return the channel on which workers hear of cancels."""
    return f"{settings.AGENTOPS_PREFIX}:control"


def sweeper() -> str:
    """Return the lease of the one sweeping process."""
    return f"{_tag('sweeper')}:lease"


def drift() -> str:
    """Return the JSON of what the last look at the money found: {kind: units}."""
    return f"{_tag('sweeper')}:drift"


def repairing() -> str:
    """Return the key that is there while an operator's repair of the streams runs."""
    return f"{_tag('sweeper')}:repair"


def dead_letters() -> str:
    """Return the stream of dead letters for outside consumers. It does not expire."""
    return f"{{{settings.AGENTOPS_PREFIX}}}:dlq"


def heartbeat(worker: str) -> str:
    """Return the key that lives as long as a worker's heart beats."""
    return f"{settings.AGENTOPS_PREFIX}:worker:{worker}"


def ticket(value: str) -> str:
    """Return the key of a single-use socket ticket."""
    return f"{settings.AGENTOPS_PREFIX}:ticket:{value}"
