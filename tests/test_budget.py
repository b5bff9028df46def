"""The budget of a run: statements, transactions and round trips of the hot path, and the counting itself.

The numbers are PostgreSQL's; they hold on the other databases too, where no station needs a statement more.
"""

from contextlib import suppress

import pytest
from django.db import transaction

from agentops.benchmark import cost
from agentops.counting import count
from quotas.access import caller_for_key
from quotas.models import Account
from runs import archive, broker, controls
from runs.estimates import recent
from runs.services import cancel_run, submit_run
from tests import builders, working

pytestmark = pytest.mark.django_db(transaction=True)
STATIONS = ("submit", "take", "claim", "finalise", "close")


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    """Whether there is maintenance is asked once a second: a slow machine must not count that."""
    monkeypatch.setattr(controls, "FRESH_SECONDS", 3600.0)


@pytest.fixture
def bench_account():
    return builders.make_account("bench", max_in_flight=1000)


def figures(counted):
    return {name: (c.transactions, c.statements, c.round_trips) for name, c in counted.items()}


@pytest.mark.parametrize("runs", [1, 16])
def test_every_station_stays_within_its_budget(bench_account, runs):
    counted = cost.measure(bench_account, runs)

    assert set(counted) == set(STATIONS)
    detail = {name: c.sql for name, c in counted.items()}
    assert all(cost.within(counted).values()), (figures(counted), detail)
    assert {name: c.savepoints for name, c in counted.items()} == dict.fromkeys(STATIONS, 0)


def test_sixteen_runs_cost_what_one_costs(bench_account):
    one, sixteen = (figures(cost.measure(bench_account, runs)) for runs in (1, 16))

    assert one == sixteen


def test_a_submit_with_a_session_and_an_idempotency_key_costs_two_look_ups_more(bench_account):
    submit_run(account=bench_account, agent="probe.ret", input={}, actor="tester")  # warms the caches

    with count() as counted:
        submit_run(account=bench_account, agent="probe.ret", input={}, actor="tester", session="s", idempotency_key="k")

    assert (counted.transactions, counted.savepoints, counted.round_trips) == (1, 0, 1)
    assert counted.statements <= 9, counted.sql


def test_an_estimate_from_recent_costs_is_no_statement_more_while_it_is_remembered(bench_account):
    with working.registered("test.varied", estimate=recent(typical=100)):
        counts = []
        for agent in ("probe.ret", "test.varied"):
            submit_run(account=bench_account, agent=agent, input={}, actor="tester")  # warms the caches
            with count() as counted:
                submit_run(account=bench_account, agent=agent, input={}, actor="tester")
            counts.append((counted.transactions, counted.statements))

    assert counts[0] == counts[1]


def test_a_key_is_looked_up_by_one_statement(bench_account):
    _, raw = builders.make_api_key(bench_account)
    caller_for_key(raw)  # writes the time of the last use, once a minute

    with count() as counted:
        caller_for_key(raw)

    assert (counted.statements, counted.transactions, counted.round_trips) == (1, 0, 0)


def test_closing_64_logs_is_one_transaction_and_two_round_trips(bench_account):
    runs = [working.submit(bench_account) for _ in range(64)]
    ended = []
    for run in runs:
        verdict = cancel_run(run_id=run.pk, actor="tester")
        ended.append((run.pk, verdict.run.fence))

    with count() as counted:
        closed = archive.close_logs(broker.client(), ended)

    assert len(closed) == 64
    assert (counted.transactions, counted.savepoints, counted.round_trips) == (1, 0, 2)
    assert counted.statements <= 2, counted.sql


# -- the counting itself ---------------------------------------------------------------------------------------------
def test_statements_transactions_and_savepoints_are_told_apart():
    with count() as counted:
        Account.objects.count()
        with transaction.atomic():
            Account.objects.count()
            with transaction.atomic():
                Account.objects.count()
        with suppress(RuntimeError), transaction.atomic():
            Account.objects.count()
            raise RuntimeError
        with transaction.atomic(), transaction.atomic(savepoint=False):
            Account.objects.count()
    Account.objects.count()

    assert (counted.statements, counted.transactions, counted.savepoints) == (5, 3, 1)


def test_a_decorated_function_is_a_transaction_a_call():
    @transaction.atomic
    def work():
        Account.objects.count()

    with count() as counted:
        work()
        work()

    assert (counted.statements, counted.transactions) == (2, 2)


def test_a_command_and_a_pipeline_are_one_round_trip_each_and_a_handshake_is_none():
    broker.reset()
    with count() as counted:
        client = broker.client()
        client.ping()
        client.set("budget:test", "x" * 100_000)
        pipe = client.pipeline(transaction=False)
        for _ in range(100):
            pipe.get("budget:test")
        pipe.delete("budget:test")
        pipe.execute()
        client.pipeline().execute()
    broker.client().ping()

    assert counted.round_trips == 3
