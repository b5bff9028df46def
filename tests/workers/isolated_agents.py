"""Agents whose handlers run in processes of their own. Imported here for their specifications, and there to work."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

from quotas.errors import InvalidCost, UnknownPrice
from runs.agents import agent
from runs.outcomes import BadOutput, InvalidInput
from workers.context import Context


class Flaky(Exception):
    pass


class Hopeless(Flaky):
    pass


def caught(call: Any, *kinds: type[BaseException]) -> list[str]:
    """Return the name and the words of what the call raises."""
    try:
        call()
    except kinds as error:
        return [type(error).__name__, str(error)]
    return []


@agent("isolated.everything", isolation="process")
async def everything(ctx: Context, run_input: Any) -> Any:
    ctx.emit("own.kind", {"text": "a\0b", "number": 2**70, "at": threading.Lock})
    ctx.emit("own.large", {"text": "x" * 100_000})
    ctx.delta("to")
    ctx.delta("gether")
    ctx.progress(1, 2, "half")
    ctx.usage.add("gpt-4o-mini", input=1_000_000, output=3)
    ctx.usage.add_cost(7)
    await ctx.flush()
    stored = await ctx.artifact("notes.txt", b"\0\xff" * 100_000, "text/plain")
    file = await ctx.open_file(run_input["file"])
    refused = [
        caught(lambda: ctx.usage.add("no-such-model", input=1), UnknownPrice),
        caught(lambda: ctx.usage.add_cost(-1), InvalidCost),
        caught(lambda: ctx.usage.add("gpt-4o-mini", input=2**53), InvalidCost),
        caught(lambda: ctx.emit("run.mine", {}), ValueError),
    ]
    try:
        await ctx.open_file("01890000-0000-7000-8000-000000000000")
    except InvalidInput as error:
        refused.append(["InvalidInput", str(error)])
    return {
        "who": [ctx.run_id, ctx.agent, ctx.attempt, ctx.fence, ctx.worker, ctx.metadata, ctx.operation_id("pay")],
        "cancelled": ctx.cancelled,
        "usage": [ctx.usage.totals, ctx.usage.cost],
        "stored": stored,
        "file": [file.name, file.content_type, len(file.data)],
        "refused": refused,
        "path": os.environ.get("PYTHONPATH"),
        "same_group": os.getpgid(0) == os.getpgid(os.getppid()),
    }


@agent("isolated.looks", isolation="process")
def looks(ctx: Context, run_input: Any) -> Any:
    """A sync handler that looks whether it is to stop."""
    ctx.emit("looking", {"pid": os.getpid()})
    never = threading.Event()
    while not ctx.cancelled:
        never.wait(0.02)
    return {"saw": ctx.cancelled}


@agent("isolated.cleans_up", isolation="process")
async def cleans_up(ctx: Context, run_input: Any) -> Any:
    ctx.emit("waiting", {"pid": os.getpid()})
    try:
        await asyncio.Event().wait()
    finally:
        ctx.emit("cleaned", {})


@agent("isolated.stubborn", isolation="process")
async def stubborn(ctx: Context, run_input: Any) -> Any:
    """Cannot be stopped in any good way, and has programs running: one of them out of its process group."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    programs = [subprocess.Popen(["sleep", "300"], start_new_session=apart).pid for apart in (False, True)]
    ctx.emit("programs", {"pids": [os.getpid(), os.getppid(), *programs]})
    threading.Event().wait(300)


@agent("isolated.dies", isolation="process")
async def dies(ctx: Context, run_input: Any) -> Any:
    print("said before the end", flush=True)
    print("and this as an error", file=sys.stderr, flush=True)
    ctx.usage.add_cost(5)
    match run_input["how"]:
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "deaf":
            socket.socket(fileno=int(sys.argv[1])).shutdown(socket.SHUT_RDWR)
    threading.Event().wait(300)


@agent(
    "isolated.fails",
    isolation="process",
    output_schema={"type": "integer"},
    retry_on=(Flaky,),
    fatal_on=(Hopeless,),
    policy="rerun",
)
async def fails(ctx: Context, run_input: Any) -> Any:
    match run_input["how"]:
        case "flaky":
            raise Flaky("comes and goes")
        case "hopeless":
            raise Hopeless("never")
        case "bad":
            raise BadOutput("of no use", answer={"text": "hm"})
        case _:
            return "no integer"


@agent("isolated.floods", isolation="process")
async def floods(ctx: Context, run_input: Any) -> Any:
    number = 0
    while True:
        ctx.emit("flood", {"n": number, "text": "x" * 5000})
        number += 1
