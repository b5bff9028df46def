"""Processes that are told to end, databases that hang up, and clocks that are wrong (docs/faults.md)."""

import threading
import time
from collections import Counter
from contextlib import suppress
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from django.db import connection

from quotas.models import LedgerEntry
from runs.models import Run
from tests import builders, invariants
from tests.probes import WorkerProbe, database_url, eventually
from tests.processes.trials import kinds, phases, rerun, states, submit, until, until_begun

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
PLAIN_LIFE = ["run.queued", "run.started", "run.succeeded"]
RETRIED_LIFE = ["run.queued", "run.started", "run.retrying", "run.queued", "run.started", "run.succeeded"]
PATIENCE = 90.0
_never = threading.Event()


# -- told to end -----------------------------------------------------------------------------------------------------
def test_f74_a_drain_that_cannot_wait_hands_back_without_counting_an_attempt(stack):
    account = builders.make_account()
    short = {"AGENTOPS_DRAIN_GRACE_SECONDS": "0.5", "AGENTOPS_HANDLER_GRACE_SECONDS": "1"}
    worker = stack.worker(concurrency=2, AGENTOPS_DRAIN_POLICY="hand_back", **short)
    runs = [rerun(account, "probe.sleep", attempts=1, seconds=6) for _ in range(2)]
    until_begun(*runs)
    waiting = [submit(account, "probe.ret", value=number) for number in range(3)]

    assert worker.term(60) == 0

    assert states([*runs, *waiting]) == ["queued"] * 5
    assert [phases(run) for run in runs] == [["start", "cancelled"]] * 2
    assert [phases(run) for run in waiting] == [[]] * 3  # nothing is taken after the signal
    stack.worker()
    until("succeeded", *runs, *waiting, timeout=PATIENCE)
    for run in runs:
        run.refresh_from_db()
        assert kinds(run) == ["run.queued", "run.started", "run.handed_back", "run.started", "run.succeeded"]
        assert run.attempt == 1
        assert list(run.attempts.values_list("number", flat=True)) == [1, 1]
    assert LedgerEntry.objects.filter(run_id__in=[run.pk for run in runs]).count() == 2
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


def test_f75_a_submit_over_a_restart_of_the_web_is_one_whole_run_or_none(stack):
    account = builders.make_account(max_in_flight=1000)
    raw = builders.make_api_key(account)[1]
    web = stack.web()
    names = [uuid4().hex for _ in range(40)]
    answered: dict[str, str] = {}
    broken: list[str] = []

    def insist(some: list[str]) -> None:
        """Submit each until it is answered, as a client with an idempotency key does."""
        for name in some:
            headers = {"Authorization": f"Bearer {raw}", "Idempotency-Key": name}
            while name not in answered:
                with suppress(httpx.TransportError):
                    body = {"agent": "probe.ret", "input": {"value": name}}
                    answer = httpx.post(f"{web.url}/api/v1/runs", json=body, headers=headers, timeout=PATIENCE)
                    if answer.status_code in {200, 202}:
                        answered[name] = answer.json()["id"]
                    elif answer.status_code != 503:
                        broken.append(answer.text)
                        return
                _never.wait(0.05)

    # Daemons: where the test fails, they would insist for ever.
    threads = [threading.Thread(target=insist, args=[names[number::8]], daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) >= 8, timeout=PATIENCE)

    web.restart()

    for thread in threads:
        thread.join(PATIENCE)
    assert (broken, len(answered)) == ([], 40)
    assert Counter(map(str, Run.objects.values_list("pk", flat=True))) == Counter(answered.values())
    assert Run.objects.count() == Run.objects.values("idempotency_key").distinct().count() == 40
    assert "Traceback" not in web.output()
    stack.worker()
    until("succeeded", *Run.objects.all(), timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)


# -- a database that hangs up ----------------------------------------------------------------------------------------
def hang_up_on_everybody_else() -> int:
    """Have the database server end every other session of the test's database. Returns how many there were."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return int(cursor.fetchone()[0])
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()")
        ids = [int(row[0]) for row in cursor.fetchall()]
        for number in ids:
            with suppress(Exception):  # it went by itself
                cursor.execute(f"KILL {number}")
    return len(ids)


def test_f78_sessions_that_the_database_ends_cost_no_attempt(stack, database_server):
    account = builders.make_account()
    worker = stack.worker(concurrency=16)
    until("succeeded", submit(account, "probe.ret", value=1))
    assert hang_up_on_everybody_else() > 0  # idle, as after a time-out of the server's
    until("succeeded", submit(account, "probe.ret", value=2), timeout=PATIENCE)

    runs = [submit(account, "probe.emit", count=100, seconds=4) for _ in range(5)]
    runs += [submit(account, "probe.spend", amount=3, times=40, seconds=4) for _ in range(5)]
    until_begun(*runs)
    for _ in range(3):
        assert hang_up_on_everybody_else() > 0
        back = time.monotonic() + 1
        eventually(lambda back=back: time.monotonic() > back)

    until("succeeded", *runs, timeout=PATIENCE)
    assert [kinds(run) for run in runs] == [PLAIN_LIFE] * 10
    assert [phases(run) for run in runs] == [["start", "end"]] * 10
    assert LedgerEntry.objects.filter(run_id__in=[run.pk for run in runs]).count() == 10
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    assert worker.alive


def test_f78_runs_outlive_a_restart_of_the_database(stack, database_wire):
    account = builders.make_account()
    home = quote(connection.settings_dict["HOST"], safe="/")
    worker = stack.worker(concurrency=16, DATABASE_URL=database_url().replace(home, str(database_wire.folder)))
    runs = [submit(account, "probe.emit", count=100, seconds=3) for _ in range(5)]
    runs += [submit(account, "probe.spend", amount=3, times=30, seconds=3) for _ in range(5)]
    until_begun(*runs)

    database_wire.refuse()
    away = time.monotonic() + 1.5  # less than a lease: nobody has lost anything yet
    eventually(lambda: time.monotonic() > away)
    database_wire.accept()

    until("succeeded", *runs, timeout=PATIENCE)
    assert [kinds(run) for run in runs] == [PLAIN_LIFE] * 10
    assert [phases(run) for run in runs] == [["start", "end"]] * 10
    assert LedgerEntry.objects.count() == 10
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    assert worker.alive


# -- wrong clocks ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "clocks",
    [
        pytest.param([("+10m", "UTC"), ("-10m", "UTC")], id="f69 ten minutes wrong"),
        pytest.param(
            [("@2026-10-25 02:59:45", "Europe/Berlin"), ("@2027-03-14 01:59:45", "America/New_York")],
            id="f70 over a switch to and from summer time",
        ),
    ],
)
def test_a_workers_clock_decides_nothing(stack, wrong_clock, clocks):
    account = builders.make_account()
    workers = [WorkerProbe(**wrong_clock(shift, zone)) for shift, zone in clocks]
    stack.together(*workers)
    runs = [rerun(account, "probe.retryable", attempts=3, fails=1, after=4) for _ in range(25)]
    long = [submit(account, "probe.sleep", seconds=12) for _ in range(2)]
    runs += [rerun(account, "probe.retryable", attempts=3, fails=1, after=4) for _ in range(25)]

    until("succeeded", *runs, *long, timeout=PATIENCE)

    for run in runs:
        assert kinds(run) == RETRIED_LIFE
        times = list(run.transitions.order_by("fence").values_list("at", flat=True))
        assert times == sorted(times)
        assert 3 < (times[3] - times[2]).total_seconds() < 15
    assert [kinds(run) for run in long] == [PLAIN_LIFE] * 2
    for attempt in Run.objects.get(pk=long[0].pk).attempts.all():
        assert 11 < (attempt.ended_at - attempt.started_at).total_seconds() < 40
    assert len({line.row.name for line in workers}) == 2
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    assert [worker.alive for worker in workers] == [True, True]
    assert not any("run.lost" in worker.output() or "taken_over" in worker.output() for worker in workers)
