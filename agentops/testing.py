"""Running a handler without servers: no Redis, no worker, no web. For the tests of an agent's author.

    from agentops.testing import run_agent
    done = run_agent("greet", {"name": "Ada"})
    assert done.result == {"text": "Hello, Ada"}

Prices come from the database where there is one (an author's test may use pytest-django); without price rows a token
usage fails the run with `unknown_price`, as it would in the service.
"""

import asyncio
import datetime as dt
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db import connections

from runs import events
from runs.agents import get_agent
from runs.ids import new_run_id
from runs.outcomes import Failed, InvalidInput, Succeeded
from runs.services import check_input
from workers.budget import Budget
from workers.context import Context, Identity, InputFile
from workers.event_buffer import EventBuffer
from workers.executor import Execution, Stop, Time

FENCE = 2  # as after submit and claim


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the handler ended. `events` are {id, run, at, kind, data}; `error` is {class, type, message, traceback}.

    `partial` is what a failed run leaves as its result: an answer that was refused, what a stop for its cost left.
    """

    outcome: str
    result: Any = None
    error: dict[str, Any] | None = None
    partial: Any = None
    events: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, dict[str, int]] = field(default_factory=dict)
    cost: int = 0
    artifacts: dict[str, bytes] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """All `output.delta` texts, joined."""
        return "".join(event["data"]["text"] for event in self.events if event["kind"] == "output.delta")


def _check(name: str, run_input: Any) -> None:
    try:
        check_input(name, run_input)
    finally:
        connections.close_all()  # of this thread, which ends with the event loop


class _TestPorts:
    """Files from a dictionary, artifacts into one; nothing to flush to."""

    def __init__(self, files: Mapping[str, InputFile]) -> None:
        self.files = files
        self.artifacts: dict[str, bytes] = {}

    async def store_artifact(self, name: str, data: bytes, content_type: str) -> dict[str, Any]:
        self.artifacts[name] = data
        return {"name": name, "size": len(data), "content_type": content_type}

    async def open_file(self, file_id: UUID) -> InputFile:
        try:
            return self.files[str(file_id)]
        except KeyError:
            raise InvalidInput(f"There is no uploaded file {file_id}.") from None

    async def flush(self) -> None:
        """Nothing is stored: the buffer keeps everything for the result."""


def run_agent(
    name: str,
    run_input: Any,
    *,
    files: Mapping[str, tuple[str, bytes]] | None = None,
    time_limit: float | None = None,
    attempt: int = 1,
    cancel_after: float | None = None,
    budget: int | None = None,
) -> RunResult:
    """Run an agent's handler to its end and return everything it did. Raises the refusals of a bad input.

    `files` maps ids (UUID texts) to (file name, bytes); `cancel_after` asks the handler to stop after so many seconds;
    with a `budget` (micro-units) it is stopped when it reports more, whether or not the agent lets it be extended.
    """
    return asyncio.run(
        arun_agent(
            name,
            run_input,
            files=files,
            time_limit=time_limit,
            attempt=attempt,
            cancel_after=cancel_after,
            budget=budget,
        )
    )


async def arun_agent(
    name: str,
    run_input: Any,
    *,
    files: Mapping[str, tuple[str, bytes]] | None = None,
    time_limit: float | None = None,
    attempt: int = 1,
    cancel_after: float | None = None,
    budget: int | None = None,
) -> RunResult:
    """`run_agent` for async tests."""
    await asyncio.to_thread(_check, name, run_input)
    spec = get_agent(name)
    stored = {key: InputFile(label, "application/octet-stream", data) for key, (label, data) in (files or {}).items()}
    ports = _TestPorts(stored)
    buffer = EventBuffer(FENCE, dt.timedelta(0))
    identity = Identity(
        run_id=new_run_id(), agent=name, attempt=attempt, fence=FENCE, worker="test", account_id=0, metadata={}
    )
    ctx = Context(identity, buffer, ports)
    limit = spec.time_limit_seconds if time_limit is None else time_limit
    execution = Execution(spec, ctx, json.loads(json.dumps(run_input)), time=Time(limit), grace=5.0)
    if cancel_after is not None:
        asyncio.get_running_loop().call_later(cancel_after, execution.stop, Stop.CANCEL)
    if budget is not None:
        Budget(execution, buffer, amount=budget, before=0, extend=None).begin()
    with ThreadPoolExecutor(1) as threads:
        outcome = await execution.run(threads)
    buffer.close()
    usage, cost = ctx.usage.snapshot()
    return RunResult(
        outcome=type(outcome).__name__.lower(),
        result=json.loads(outcome.result_json) if isinstance(outcome, Succeeded) else None,
        error=outcome.as_json() if isinstance(outcome, Failed) else None,
        partial=json.loads(outcome.partial_json) if isinstance(outcome, Failed) and outcome.partial_json else None,
        events=[dict(events.decode(identity.run_id, line.id, line.body)) for line in buffer.after("")],
        usage=usage,
        cost=cost,
        artifacts=ports.artifacts,
        progress=ctx.progress_now,
    )
