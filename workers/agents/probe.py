"""Probe agents for trials: each does one thing that a run can do wrong, or slowly, and leaves a trace of its attempts.

Registered only with `AGENTOPS_PROBE_AGENTS=1`. Every attempt appends JSON lines to the file `AGENTOPS_PROBE_LOG`:
`{agent, run, attempt, fence, worker, phase, cost, monotonic, wall}`: phase `start`, `end`, `cancelled` or `error`.
"""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings

from runs.agents import OVERRIDES, agent
from runs.estimates import Estimate, recent
from runs.outcomes import BadOutput, ErrorClass, Fatal, InvalidInput, Retryable
from runs.retry import Backoff
from workers.context import Context

ESTIMATE = 1000  # micro-units
ESTIMATE_MAX = 2**62
FLUSH_EVERY = 200
NUMBER = {"type": "number", "minimum": 0}
COUNT = {"type": "integer", "minimum": 0}


def _probe(
    name: str,
    properties: dict[str, Any],
    estimate: int | Callable[[Any], int] | Estimate = ESTIMATE,
    sample: Any = None,
    **fields: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a probe: nothing in its input is required, and what it does not know it ignores."""
    schema = {"type": "object", "properties": properties}
    return agent(
        name,
        input_schema=schema,
        estimate=estimate,
        allow=OVERRIDES,
        sample=sample or {},
        **fields,
    )


def _trace(ctx: Context, phase: str) -> None:
    """Append one line in one write: lines of several workers never mix."""
    if not settings.AGENTOPS_PROBE_LOG:
        return
    line = {
        "agent": str(ctx.agent),
        "run": str(ctx.run_id),
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "worker": str(ctx.worker),
        "phase": phase,
        "cost": ctx.usage.cost,
        "monotonic": time.monotonic(),
        "wall": time.time(),
    }
    log = os.open(settings.AGENTOPS_PROBE_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, json.dumps(line).encode() + b"\n")
    finally:
        os.close(log)


@contextmanager
def _traced(ctx: Context) -> Iterator[None]:
    _trace(ctx, "start")
    try:
        yield
    except asyncio.CancelledError:
        _trace(ctx, "cancelled")
        raise
    except BaseException:
        _trace(ctx, "error")
        raise
    _trace(ctx, "end")


@_probe("probe.sleep", {"seconds": NUMBER}, sample={"seconds": 5})
async def sleep(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Wait without using the processor."""
    with _traced(ctx):
        await asyncio.sleep(run_input.get("seconds", 1))
    return {"slept": run_input.get("seconds", 1)}


@_probe("probe.few", {"seconds": NUMBER}, sample={"seconds": 5}, max_running=2)
async def few(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Wait like probe.sleep; only two runs of it are at work at once."""
    with _traced(ctx):
        await asyncio.sleep(run_input.get("seconds", 1))
    return {"slept": run_input.get("seconds", 1)}


@_probe("probe.block", {"seconds": NUMBER}, sample={"seconds": 5})
async def block(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Compute in the event loop and let nobody else in."""
    with _traced(ctx):
        end = time.monotonic() + run_input.get("seconds", 1)
        rounds = 0
        while time.monotonic() < end:
            rounds += sum(1 for _ in range(1000)) // 1000
    return {"rounds": rounds}


@_probe("probe.boom", {"fails": COUNT}, sample={"fails": 1})
async def boom(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Fail the first `fails` attempts (default: every attempt)."""
    with _traced(ctx):
        fails = run_input.get("fails")
        if fails is None or ctx.attempt <= fails:
            raise RuntimeError(f"boom on attempt {ctx.attempt}")
    return {"attempt": ctx.attempt}


EXCEPTIONS: dict[str, Callable[[str], BaseException]] = {
    "RuntimeError": RuntimeError,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "Fatal": Fatal,
    "InvalidInput": InvalidInput,
    "Retryable": Retryable,
    "BadOutput": BadOutput,
}


@_probe(
    "probe.raise",
    {"text": {"type": "string"}, "type": {"enum": list(EXCEPTIONS)}, "bytes": COUNT, "frames": COUNT},
    sample={"text": "something went wrong"},
)
async def raise_text(ctx: Context, run_input: dict[str, Any]) -> None:
    """Raise `type` (default RuntimeError) with `text`, filled up to `bytes`, from a traceback of `frames` frames."""
    with _traced(ctx):
        text = run_input.get("text", "raised by the probe")
        error = EXCEPTIONS[run_input.get("type", "RuntimeError")](text.ljust(run_input.get("bytes", 0), "x"))
        for _ in range(run_input.get("frames", 0)):
            _deepen(error)
        raise error


def _deepen(error: BaseException) -> None:
    """Raise and catch the error once more: each time its traceback gets a frame."""
    try:
        raise error  # noqa: TRY301
    except BaseException:  # noqa: BLE001, S110  any of EXCEPTIONS
        pass


@_probe(
    "probe.emit", {"count": COUNT, "bytes": COUNT, "seconds": NUMBER}, sample={"count": 100, "bytes": 20, "seconds": 2}
)
async def emit(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Emit `count` events `probe.tick` with `bytes` of text each, spread over `seconds`."""
    with _traced(ctx):
        count, seconds = run_input.get("count", 10), run_input.get("seconds", 0)
        text = "x" * run_input.get("bytes", 0)
        start = time.monotonic()
        for number in range(count):
            ctx.emit("probe.tick", {"n": number, "text": text})
            ahead = start + seconds * (number + 1) / count - time.monotonic()
            if ahead > 0.01:
                await asyncio.sleep(ahead)
            elif number % FLUSH_EVERY == FLUSH_EVERY - 1:
                await ctx.flush()
        await ctx.flush()
    return {"emitted": count}


def _spend_estimate(run_input: dict[str, Any]) -> int:
    """Return amount times times where that is sane, else 0: nonsense is for `ctx` to refuse, not for submit."""
    given = run_input.get("estimate")
    if isinstance(given, int) and 0 <= given <= ESTIMATE_MAX:
        return given
    amount, times = run_input.get("amount", 0), run_input.get("times", 1)
    whole = isinstance(amount, int) and not isinstance(amount, bool) and isinstance(times, int)
    return amount * times if whole and 0 <= amount * times <= ESTIMATE_MAX else 0


@_probe(
    "probe.spend",
    {"amount": {}, "times": COUNT, "seconds": NUMBER, "estimate": COUNT},
    estimate=_spend_estimate,
    extend=True,
    sample={"amount": 1000, "times": 3},
)
async def spend(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Report a cost of `amount` micro-units `times` times, spread over `seconds`; any amount, also nonsense."""
    with _traced(ctx):
        times = run_input.get("times", 1)
        for _ in range(times):
            ctx.usage.add_cost(run_input.get("amount", 0))
            await asyncio.sleep(run_input.get("seconds", 0) / times)
    return {"spent": ctx.usage.cost}


@_probe(
    "probe.overspend",
    {"amount": {}, "times": COUNT, "seconds": NUMBER, "estimate": COUNT, "answer": {}},
    estimate=_spend_estimate,
    sample={"amount": 1000, "times": 10, "seconds": 5, "estimate": 3000},
)
async def overspend(ctx: Context, run_input: dict[str, Any]) -> Any:
    """Report costs like probe.spend, a line of text with each; stopped for them, return `answer` if there is one."""
    with _traced(ctx):
        times = run_input.get("times", 1)
        try:
            for number in range(times):
                ctx.delta(f"part {number + 1}. ")
                ctx.usage.add_cost(run_input.get("amount", 0))
                await asyncio.sleep(run_input.get("seconds", 0) / times)
        except asyncio.CancelledError:
            if "answer" not in run_input:
                raise
            return run_input["answer"]
    return {"spent": ctx.usage.cost}


TYPICAL_COST, WORST_COST = 1000, 10_000  # of probe.varied, micro-units
VARIED = {"is_worst": {"type": "boolean"}, "seconds": NUMBER}


@_probe("probe.varied", VARIED, estimate=recent(floor=100, typical=TYPICAL_COST))
async def varied(ctx: Context, run_input: dict[str, Any]) -> Any:
    """Cost what is typical of it, bit by bit over `seconds`, or ten times as much: its worst case."""
    cost = WORST_COST if run_input.get("is_worst") else TYPICAL_COST
    return await spend(ctx, {"amount": cost // 10, "times": 10, "seconds": run_input.get("seconds", 0)})


ODD_RESULTS: dict[str, Callable[[], Any]] = {
    "nul": lambda: "a\0b",
    "surrogate": lambda: "\ud83d",
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "object": object,
    "huge_integer": lambda: 2**70,
}


@_probe(
    "probe.ret", {"bytes": COUNT, "value": {}, "odd": {"enum": list(ODD_RESULTS)}}, sample={"value": {"answer": 42}}
)
async def ret(ctx: Context, run_input: dict[str, Any]) -> Any:
    """Return `value`, or a text of `bytes` letters, or an `odd` thing that is not JSON or not storable."""
    with _traced(ctx):
        if "odd" in run_input:
            return ODD_RESULTS[run_input["odd"]]()
        return run_input["value"] if "value" in run_input else "x" * run_input.get("bytes", 0)


@_probe(
    "probe.retryable",
    {"fails": COUNT, "after": NUMBER, "seconds": NUMBER, "class": {"enum": ["provider_transient", "provider_limit"]}},
    sample={"fails": 1, "after": 2, "seconds": 1},
    max_attempts=3,
)
async def retryable(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Say something, wait `seconds`, and fail the first `fails` attempts like a provider, to be retried `after` s."""
    with _traced(ctx):
        ctx.delta(f"This is what attempt {ctx.attempt} says. ")
        await asyncio.sleep(run_input.get("seconds", 0))
        fails = run_input.get("fails")
        if fails is None or ctx.attempt <= fails:
            error_class = ErrorClass(run_input.get("class", "provider_transient"))
            message = f"no answer on attempt {ctx.attempt}"
            raise Retryable(message, after=run_input.get("after"), error_class=error_class)
    return {"attempt": ctx.attempt}


@_probe(
    "probe.bad_output",
    {"fails": COUNT, "by": {"enum": ["schema", "ctx"]}},
    sample={"fails": 1},
    output_schema={"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]},
    max_attempts=3,
    backoff=Backoff(base=1.0, cap=2.0),
)
async def bad_output(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Answer what does not fit the output schema (or, `by` ctx, is refused by itself) in the first `fails` attempts."""
    with _traced(ctx):
        ctx.delta(f"This is the answer of attempt {ctx.attempt}. ")
        fails = run_input.get("fails")
        if fails is not None and ctx.attempt > fails:
            return {"answer": ctx.attempt}
        answer = {"answer": f"none on attempt {ctx.attempt}"}
        if run_input.get("by") == "ctx":
            ctx.bad_output(f"no whole number on attempt {ctx.attempt}", answer)
        return answer


NO_PROGRESS_SECONDS = 3.0


@_probe(
    "probe.silent",
    {"seconds": NUMBER, "ticks": COUNT},
    sample={"seconds": 10, "ticks": 1},
    no_progress_seconds=NO_PROGRESS_SECONDS,
)
async def silent(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Emit `ticks` events one after the other, each followed by `seconds` of silence; more than 3 are too many."""
    with _traced(ctx):
        ticks = run_input.get("ticks", 1)
        for number in range(ticks):
            ctx.emit("probe.tick", {"n": number})
            await asyncio.sleep(run_input.get("seconds", 1))
    return {"ticks": ticks}


@_probe("probe.suicide", {"seconds": NUMBER})
async def suicide(ctx: Context, run_input: dict[str, Any]) -> None:
    """Kill its own process after `seconds` (default: at once), as if by the kernel."""
    with _traced(ctx):
        await asyncio.sleep(run_input.get("seconds", 0))
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()  # the signal comes within this wait


@_probe("probe.stubborn", {"seconds": NUMBER}, sample={"seconds": 30})
async def stubborn(ctx: Context, run_input: dict[str, Any]) -> dict[str, Any]:
    """Wait like probe.sleep, and go on whoever cancels it."""
    ignored = 0
    with _traced(ctx):
        end = time.monotonic() + run_input.get("seconds", 1)
        while (left := end - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                ignored += 1
                _trace(ctx, "cancelled")
    return {"ignored": ignored}


def _segfault(_run_input: dict[str, Any]) -> None:
    ctypes.string_at(0)


def _exit(run_input: dict[str, Any]) -> None:
    os._exit(run_input.get("code", 3))


def _die(_run_input: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _spawn(ctx: Context, run_input: dict[str, Any]) -> Any:
    """Start two programs, one in our process group and one out of it, and go on like probe.stubborn."""
    for is_apart in (False, True):
        subprocess.Popen(["sleep", str(run_input.get("seconds", 1))], start_new_session=is_apart)  # noqa: S603, S607, ASYNC220
    return await stubborn(ctx, run_input)


ENDS: dict[str, Callable[[dict[str, Any]], None]] = {"segv": _segfault, "exit": _exit, "die": _die}
WORKS: dict[str, Callable[[Context, dict[str, Any]], Any]] = {
    "sleep": sleep,
    "block": block,
    "stubborn": stubborn,
    "spawn": _spawn,
    "emit": emit,
    "spend": spend,
    "overspend": overspend,
    "raise": raise_text,
    "ret": ret,
}
ISOLATED = {
    "do": {"enum": [*ENDS, *WORKS]},
    "seconds": NUMBER,
    "code": COUNT,
    "count": COUNT,
    "bytes": COUNT,
    "times": COUNT,
    "amount": {},
    "answer": {},
    "value": {},
    "text": {"type": "string"},
    "type": {"enum": list(EXCEPTIONS)},
}


@_probe("probe.isolated", ISOLATED, sample={"do": "stubborn", "seconds": 30}, isolation="process")
async def isolated(ctx: Context, run_input: dict[str, Any]) -> Any:
    """Do in a process of its own what the probe of that name does, or end that process: `exit`, `die`, `segv`."""
    what = run_input.get("do", "sleep")
    if what in WORKS:
        return await WORKS[what](ctx, run_input)
    with _traced(ctx):
        ENDS[what](run_input)
    return None
