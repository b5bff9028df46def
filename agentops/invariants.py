"""The protocol's invariants P1-P6 (docs/protocol.md 13), looked up in the tables, in Redis and in the probe log.

Each function returns what is wrong, a sentence each: nothing means that the invariant holds. They read rows and the
agents' own log, never a counter of ours, and assume that nothing is working any more.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import redis
from django.db.models import Sum

from quotas.models import Account, Hold, LedgerEntry
from runs import keys
from runs.models import Run
from runs.reader import read_events
from runs.states import TERMINAL, TERMINAL_EVENTS

CLOSED_HOLDS = {Hold.State.SETTLED, Hold.State.RELEASED}


def unended(runs: Iterable[Run]) -> list[str]:
    """P1, P6: every run has ended, holds no session slot, and its transitions are one a fence without holes."""
    problems = []
    for run in runs:
        if run.state not in TERMINAL:
            problems.append(f"{run.id} is {run.state}")
            continue
        fences = list(run.transitions.order_by("fence").values_list("fence", flat=True))
        if fences != list(range(1, run.fence + 1)):
            problems.append(f"{run.id} at fence {run.fence} has the transitions {fences}")
        if run.finished_at is None:
            problems.append(f"{run.id} has ended without a time")
        if run.session_slot is not None or run.blocked_by_session is not None:
            problems.append(f"{run.id} has ended and keeps its place in its session")
        still_open = run.attempts.filter(ended_at=None).count()
        if still_open:
            problems.append(f"{run.id} has ended with {still_open} open attempts")
    return problems


def money_drift(accounts: Iterable[Account]) -> list[str]:
    """P3: counters equal the rows they cache, one settlement a run, no open hold on an ended run."""
    problems = []
    for account in accounts:
        account.refresh_from_db()
        holds = {hold.run_id: hold for hold in account.holds.all()}
        active = sum(hold.amount for hold in holds.values() if hold.state == Hold.State.ACTIVE)
        open_count = sum(hold.state not in CLOSED_HOLDS for hold in holds.values())
        booked = account.ledger.filter(period=account.spent_period).aggregate(total=Sum("amount"))["total"] or 0
        counted = {"held": account.held, "in_flight": account.in_flight, "spent": account.spent}
        rows = {"held": active, "in_flight": open_count, "spent": booked}
        if counted != rows:
            problems.append(f"the account {account.name} says {counted}, its rows {rows}")
        for run in account.runs.all():
            hold = holds.get(run.id)
            problems += [f"{run.id} has no hold"] if hold is None else _unsettled(run, hold)
    return problems


def _unsettled(run: Run, hold: Hold) -> list[str]:
    lines = LedgerEntry.objects.filter(run_id=run.id, kind=LedgerEntry.Kind.SETTLE)
    amounts = list(lines.values_list("amount", flat=True))
    if run.state not in TERMINAL:
        return [f"{run.id} is settled and has not ended"] if amounts else []
    if hold.state not in CLOSED_HOLDS:
        return [f"{run.id} has ended with a hold that is {hold.state}"]
    settled = hold.state == Hold.State.SETTLED
    problems = []
    if amounts != ([run.cost] if settled else []):
        problems.append(f"{run.id} ({hold.state}) cost {run.cost}; its settle lines are {amounts}")
    spent = sum(run.attempts.values_list("cost", flat=True))
    if settled and run.cost != spent:
        problems.append(f"{run.id} cost {run.cost}, its attempts {spent}")
    return problems


def position(event_id: str) -> tuple[int, int]:
    """Return the (fence, seq) of an event id."""
    fence, _, number = event_id.partition("-")
    return int(fence), int(number)


def all_events(run_id: Any) -> list[Any]:
    """Return a run's events from the first to the last, page by page."""
    events: list[Any] = []
    cursor = ""
    while True:
        page = read_events(run_id, after=cursor)
        events += page.events
        if page.ended or not page.events:
            return events
        cursor = page.next


def broken_log(run: Run, *, gaps: bool = False) -> list[str]:
    """P4: ids strictly increase, the log begins with the submit and ends with its only terminal event."""
    events = all_events(run.id)
    problems = [f"{run.id}: {problem}" for problem in broken_sequence(events, gaps=gaps)]
    numbered = [event for event in events if event["id"]]
    if not numbered:
        return [*problems, f"{run.id} has no events"]
    if position(numbered[0]["id"]) != (1, 1):
        problems.append(f"the log of {run.id} begins with {numbered[0]['id']}")
    last = numbered[-1]
    if position(last["id"]) != (run.fence, 1) or last["kind"] != f"run.{run.state}":
        problems.append(f"the log of {run.id} ({run.state}, fence {run.fence}) ends with {last['id']} {last['kind']}")
    return problems


def broken_sequence(events: Sequence[Any], *, gaps: bool = False) -> list[str]:
    """Tell what is wrong with any client's whole reading of an ended run: once each, in order, terminal last.

    `gaps=True` allows `gap` events, which carry no id.
    """
    problems = []
    if not gaps and any(event["kind"] == "gap" for event in events):
        problems.append("events are missing and the log says so")
    numbered = [event for event in events if event["id"]]
    places = [position(event["id"]) for event in numbered]
    if places != sorted(set(places)):
        problems.append(f"event ids are not strictly increasing: {places}")
    ends = [event["kind"] in TERMINAL_EVENTS for event in numbered]
    if ends.count(True) != 1 or not ends[-1]:
        problems.append(f"{ends.count(True)} terminal events; the last one is {numbered[-1] if numbered else None}")
    return problems


def left_in_queues(client: "redis.Redis", streams: Iterable[str], queues: Iterable[str]) -> dict[str, int]:
    """P5: return what is left in streams, pending lists, indexes, slots, limits' places and waiting sets.

    Empty when nothing is.
    """
    left: dict[str, int] = {}
    for stream in streams:
        left[stream] = int(client.xlen(stream))
        groups = client.xinfo_groups(stream) if client.exists(stream) else []
        left |= {f"pending of {stream}": int(group["pending"]) for group in groups}
    for queue in queues:
        left[keys.index(queue)] = int(client.hlen(keys.index(queue)))
        left[keys.slots(queue)] = int(client.zcard(keys.slots(queue)))
        left |= {name: int(client.hlen(name)) for name in (keys.limits(queue), keys.limited(queue))}
        for pattern in (keys.limit_places(queue, "*"), keys.parked(queue, "*")):
            left |= {name.decode(): int(client.zcard(name)) for name in client.scan_iter(match=pattern, count=1000)}
    return {name: count for name, count in left.items() if count}


def shared_sessions(lines: Iterable[dict[str, Any]], runs: Iterable[Run], *, overlap: float = 0.0) -> list[str]:
    """P6: in the probe log, no two runs of a session worked at the same time."""
    session_of = {str(run.id): (run.account_id, run.session) for run in runs if run.session}
    spans: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line["run"] in session_of:
            spans[session_of[line["run"]]][line["run"]].append(line["monotonic"])
    problems = []
    for (_, session), worked in spans.items():
        ordered = sorted((min(times), max(times), run_id) for run_id, times in worked.items())
        for (_, end, before), (start, _, after) in itertools.pairwise(ordered):
            if end > start + overlap:
                problems.append(f"{before} and {after} of the session {session} overlap by {end - start:.3f} s")
    return problems


def double_work(lines: Iterable[dict[str, Any]], run_ids: Collection[Any], *, overlap: float = 0.0) -> list[str]:
    """P2: in the probe log, no two attempts of a run worked at the same time, and no fence worked twice.

    An attempt without an end line was killed: it counts up to its last line. One host has one monotonic clock.
    `overlap` seconds of outside work by a fenced attempt are let pass.
    """
    spans: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    starts: dict[tuple[str, Any], int] = defaultdict(int)
    wanted = {str(run_id) for run_id in run_ids}
    for line in lines:
        if line["run"] in wanted:
            spans[line["run"]][line["fence"]].append(line["monotonic"])
            starts[line["run"], line["fence"]] += line["phase"] == "start"
    problems = [f"fence {fence} of {run} worked {count} times" for (run, fence), count in starts.items() if count > 1]
    for run_id, attempts in spans.items():
        ordered = sorted((min(times), max(times), fence) for fence, times in attempts.items())
        for (_, end, older), (start, _, newer) in itertools.pairwise(ordered):
            if end > start + overlap:
                problems.append(f"fences {older} and {newer} of {run_id} overlap by {end - start:.3f} s")
    return problems
