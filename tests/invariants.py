"""The protocol's invariants P1-P6 (docs/protocol.md 13), looked up in the tables, in Redis and in the probe log.

`check()` belongs at the end of every test that let real parts work; it assumes that nothing is working any more.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import redis as redis_py
from django.conf import settings
from django.db.models import Count, Sum

from quotas.models import Account, Hold, LedgerEntry
from runs import keys
from runs.models import Run
from runs.reader import read_events
from runs.states import TERMINAL, TERMINAL_EVENTS
from tests.probes import probe_log

CLOSED_HOLDS = {Hold.State.SETTLED, Hold.State.RELEASED}


def check(*accounts: Account, events: bool = True, overlap: float = 0.0) -> None:
    """Assert all invariants for the accounts (default: every account), their runs, the queues and the probe log.

    `events=False` leaves the event logs out, for tests that deleted them on purpose. `overlap` seconds of
    outside work by a fenced attempt are let pass, for tests that freeze a worker.
    """
    chosen = accounts or tuple(Account.objects.all())
    runs = list(Run.objects.filter(account__in=chosen))
    check_ended(runs)
    check_money(chosen)
    if events:
        for run in runs:
            check_events(run)
    check_queues({*settings.QUEUES, *(run.queue for run in runs)})
    check_attempts([run.id for run in runs], overlap=overlap)


def check_ended(runs: Sequence[Run]) -> None:
    """P1, P6: every run has ended, holds no session slot, and its transitions are one a fence without holes."""
    assert [(str(run.id), run.state) for run in runs if run.state not in TERMINAL] == []
    for run in runs:
        fences = list(run.transitions.order_by("fence").values_list("fence", flat=True))
        assert fences == list(range(1, run.fence + 1)), f"transitions of {run.id}: {fences}"
        assert run.finished_at is not None, f"{run.id} has ended without a time"
        assert run.session_slot is None, f"{run.id} has ended and keeps the session's slot"
        still_open = run.attempts.filter(ended_at=None).count()
        assert still_open == 0, f"{run.id} has ended with {still_open} open attempts"


def check_money(accounts: Iterable[Account]) -> None:
    """P3: counters equal the rows they cache, one settlement a run, no open hold on an ended run."""
    for account in accounts:
        account.refresh_from_db()
        holds = {hold.run_id: hold for hold in account.holds.all()}
        active = [hold.amount for hold in holds.values() if hold.state == Hold.State.ACTIVE]
        open_count = sum(hold.state not in CLOSED_HOLDS for hold in holds.values())
        booked = account.ledger.aggregate(total=Sum("amount"))["total"] or 0
        seen = {"held": account.held, "in_flight": account.in_flight, "spent": account.spent}
        assert seen == {"held": sum(active), "in_flight": open_count, "spent": booked}, account.name
        for run in account.runs.all():
            _check_settlement(run, holds[run.id])


def _check_settlement(run: Run, hold: Hold) -> None:
    lines = LedgerEntry.objects.filter(run_id=run.id, kind=LedgerEntry.Kind.SETTLE)
    amounts = list(lines.values_list("amount", flat=True))
    if run.state not in TERMINAL:
        assert amounts == [], f"{run.id} is settled and has not ended"
        return
    assert hold.state in CLOSED_HOLDS, f"{run.id} has ended with a hold that is {hold.state}"
    expected = [run.cost] if hold.state == Hold.State.SETTLED else []
    assert amounts == expected, f"settle lines of {run.id} ({hold.state})"
    if hold.state == Hold.State.SETTLED:
        spent = sum(run.attempts.values_list("cost", flat=True))
        assert run.cost == spent, f"{run.id} cost {run.cost}, its attempts {spent}"


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


def check_events(run: Run) -> None:
    """P4: ids strictly increase, the log begins with the submit and ends with its only terminal event."""
    events = all_events(run.id)
    check_sequence(events)
    assert position(events[0]["id"]) == (1, 1), f"log of {run.id} begins with {events[0]}"
    assert position(events[-1]["id"]) == (run.fence, 1), f"log of {run.id} ends with {events[-1]}"
    assert events[-1]["kind"] == f"run.{run.state}"


def check_sequence(events: Sequence[Any], *, gaps: bool = False) -> None:
    """Assert what holds for any client's whole reading of an ended run: once each, in order, terminal last.

    `gaps=True` allows `gap` events, which carry no id.
    """
    told = [event for event in events if event["kind"] == "gap"]
    assert gaps or told == [], "events are missing and the log says so"
    events = [event for event in events if event["id"]]
    places = [position(event["id"]) for event in events]
    assert places == sorted(set(places)), f"event ids are not strictly increasing: {places}"
    last = [event["kind"] in TERMINAL_EVENTS for event in events]
    assert last.count(True) == 1, f"{last.count(True)} terminal events"
    assert last[-1], f"the last event is {events[-1]}"


def check_queues(queues: Iterable[str]) -> None:
    """P5: streams and pending lists empty, the index empty, no slot taken."""
    with redis_py.Redis.from_url(settings.REDIS_URL, socket_timeout=10, retry=None) as client:
        left: dict[str, Any] = {}
        for queue in queues:
            for stream in [*keys.ready_streams(queue), *settings.EXTRA_STREAMS]:
                left[stream] = client.xlen(stream)
                left |= {f"pending of {stream}": count for count in _pending(client, stream)}
            left[keys.index(queue)] = client.hlen(keys.index(queue))
            left[keys.slots(queue)] = client.zcard(keys.slots(queue))
    assert {name: count for name, count in left.items() if count} == {}


def _pending(client: redis_py.Redis, stream: str) -> list[int]:
    if not client.exists(stream):
        return []
    return [group["pending"] for group in client.xinfo_groups(stream)]


def check_attempts(run_ids: Iterable[Any], *, overlap: float = 0.0) -> None:
    """P2: in the probe log, no two attempts of a run worked at the same time, and no fence worked twice.

    An attempt without an end line was killed: it counts up to its last line. One host has one monotonic clock.
    """
    spans: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    starts: dict[tuple[str, Any], int] = defaultdict(int)
    wanted = {str(run_id) for run_id in run_ids}
    for line in probe_log():
        if line["run"] in wanted:
            spans[line["run"]][line["fence"]].append(line["monotonic"])
            starts[line["run"], line["fence"]] += line["phase"] == "start"
    assert {key: count for key, count in starts.items() if count > 1} == {}, "a fence worked twice"
    for run_id, attempts in spans.items():
        ordered = sorted((min(times), max(times), fence) for fence, times in attempts.items())
        for (_, end, older), (start, _, newer) in itertools.pairwise(ordered):
            assert end <= start + overlap, f"attempts {older} and {newer} of {run_id} overlap"


def rows_by_state(model: type, **where: Any) -> dict[str, int]:
    """Return {state: count} of a model's rows, for exact end counts in race tests."""
    counted = model._default_manager.filter(**where).values_list("state").annotate(n=Count("pk"))
    return dict(counted)
