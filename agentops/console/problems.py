"""Is it healthy, and if not, why: each problem is one line with what to do and where. Pure: it reads nothing."""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.urls import reverse

from quotas.display import span

WAIT_SECONDS = 600.0  # as the alert AgentOpsOldestWait
DEAF_SECONDS = 60.0  # as AgentOpsWorkerDeaf
LETTERS_MINUTES, LETTERS = 15, 20  # as AgentOpsDeadLettersGrowing
RUNS, WORKERS, LETTERS_SEEN, MONEY = (
    "runs.view_run",
    "workers.view_workerprocess",
    "workers.view_deadletter",
    "quotas.view_account",
)
NAMED = 3  # workers or queues that a line names


@dataclass(frozen=True, slots=True)
class Problem:
    """One line. `needs` is the permission without which it is not shown; empty for what every banner says."""

    code: str
    text: str
    advice: str
    address: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Redis:
    """What Redis says. `away` is the sentence of its error; then nothing else is known."""

    away: str = ""
    parked: int = 0
    sweeps: bool = True  # somebody has the sweeper's lease
    silent: Mapping[str, float] = field(default_factory=dict)  # consumer -> seconds since it last read any stream
    drift: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    """All that a judgement needs."""

    redis: Redis
    workers_alive: int = 0
    lost: Sequence[str] = ()  # names of workers whose heart stopped without a farewell
    late: Sequence[str] = ()  # alive, with an overdue heartbeat
    deaf: Sequence[str] = ()  # alive, with a place free, and reading nothing
    waits: Mapping[str, float] = field(default_factory=dict)  # queue -> seconds its oldest queued run waits
    unserved: Sequence[str] = ()  # queues with queued runs that no worker alive serves
    new_letters: int = 0  # of the last LETTERS_MINUTES, counted to a bound
    paused: Mapping[str, tuple[str, dt.datetime]] = field(default_factory=dict)  # queue -> reason, since
    maintenance: str = ""


def problems_of(now: Condition) -> list[Problem]:
    """Return what is wrong, the most urgent first."""
    return [*_of_servers(now), *_of_workers(now), *_of_runs(now), *_of_switches(now)]


def _of_servers(now: Condition) -> Iterator[Problem]:
    streams = reverse("admin:streams")
    if now.redis.away:
        text = f"Redis does not answer: {now.redis.away}."
        advice = "Start it, or correct REDIS_URL; ./run doctor says more. Accepted runs wait in the database."
        yield Problem("redis_away", text, advice, streams)
    elif not now.redis.sweeps and now.workers_alive:
        text = "Nobody sweeps: lost runs are not taken over, due runs not started."
        yield Problem(
            "sweeper_late", text, "Look into the workers' logs for sweep.failed, or run ./run sweep.", streams, WORKERS
        )
    if now.redis.drift:
        kinds = ", ".join(kind.replace("_", " ") for kind in now.redis.drift)
        text = f"Counters of accounts differ from ledger and holds: {kinds}."
        advice = "Run ./run reconcile_quotas: it says where, and mends it with --fix."
        yield Problem("hold_drift", text, advice, reverse("admin:quotas_account_changelist"), MONEY)


def _of_workers(now: Condition) -> Iterator[Problem]:
    page = reverse("admin:workers_workerprocess_changelist")
    if not now.workers_alive:
        yield Problem("no_worker", "No worker is alive.", "Start one: ./run runworker_streams.", page, WORKERS)
    if now.lost:
        text = f"{_count(len(now.lost), 'worker')} lost: {_names(now.lost)}."
        advice = "Their runs are taken over when their leases end. See why they died; the page of each takes over now."
        yield Problem("workers_lost", text, advice, page, WORKERS)
    if now.late:
        text = f"Overdue heartbeat of {_count(len(now.late), 'worker')}: {_names(now.late)}."
        yield Problem(
            "heartbeat_late", text, "A host without memory or processor time is the usual cause.", page, WORKERS
        )
    if now.deaf:
        text = f"{_count(len(now.deaf), 'worker')} deaf, with places free but reading nothing: {_names(now.deaf)}."
        yield Problem("workers_deaf", text, "Restart them; docs/runbooks/worker-deaf.md.", page, WORKERS)


def _of_runs(now: Condition) -> Iterator[Problem]:
    page = reverse("admin:runs_run_changelist")
    if now.workers_alive and now.unserved:
        text = f"No worker serves a queue in which runs wait: {_names(now.unserved)}."
        yield Problem(
            "queue_unserved", text, "Start a worker with --queues of that name.", f"{page}?state=queued", RUNS
        )
    for queue, seconds in now.waits.items():
        if seconds > WAIT_SECONDS and queue not in now.paused:
            text = f"The oldest run of queue {queue} waits for {span(seconds)}."
            advice = "Its page says why; more workers, or fewer limits, are the usual answer."
            yield Problem("oldest_wait", text, advice, f"{page}?state=queued&waiting_over={WAIT_SECONDS:.0f}", RUNS)
    if now.new_letters > LETTERS:
        text = f"Dead letters are rising: more than {LETTERS} in {LETTERS_MINUTES} minutes."
        yield Problem("dead_letters", text, "The cases say what they have in common.", _cases(), LETTERS_SEEN)


def _of_switches(now: Condition) -> Iterator[Problem]:
    for queue, (reason, _) in now.paused.items():
        yield Problem(
            "queue_paused", f"The queue {queue} is paused: {reason}", "Resume it when that is over.", "#controls"
        )
    if now.maintenance:
        text = f"Maintenance: no new runs are accepted. {now.maintenance}"
        yield Problem("maintenance", text, "End it when that is over.", "#controls")


def _cases() -> str:
    return reverse("admin:workers_case_changelist")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _names(names: Sequence[str]) -> str:
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def told(problems: Sequence[Problem], user: Any) -> dict[str, Any]:
    """Return what a user is told: {healthy, sentence, problems: [{code, text, advice, address}]}."""
    shown = [one for one in problems if not one.needs or user.has_perm(one.needs)]
    sees_all = all(user.has_perm(needs) for needs in (RUNS, WORKERS, LETTERS_SEEN, MONEY))
    if shown:
        sentence = "1 problem" if len(shown) == 1 else f"{len(shown)} problems"
    else:
        sentence = "Healthy" if sees_all else "Nothing is wrong in what you may see"
    lines = [{"code": one.code, "text": one.text, "advice": one.advice, "address": one.address} for one in shown]
    return {"healthy": not shown, "sentence": sentence, "problems": lines}
