"""`bench`: what a run costs, counted; and with a worker, how fast the services are."""

import json

import pytest
from django.db import connection

from agentops.benchmark import cost
from tests.probes import manage as run_process

pytestmark = pytest.mark.django_db(transaction=True)
STATIONS = {"submit", "take", "claim", "finalise", "close"}


def test_the_cost_alone_needs_no_worker(manage):
    ran = manage("bench", "--json", "--cost-only")

    assert ran.code == 0, ran.err
    assert set(ran.json) == {"database", "cost", "budget", "within_budget"}
    assert (ran.json["database"], ran.json["within_budget"]) == (connection.vendor, True)
    assert {size: set(found) for size, found in ran.json["cost"].items()} == {"1": STATIONS, "16": STATIONS}


def test_a_station_above_its_budget_is_said_and_fails_where_the_budget_is_written_for(manage, monkeypatch):
    monkeypatch.setitem(cost.BUDGET, "finalise", (1, 1, 1))

    ran = manage("bench", "--json", "--cost-only")

    assert ran.json["within_budget"] is False
    assert ran.code == (1 if connection.vendor == "postgresql" else 0)


@pytest.mark.process
def test_the_running_services_are_measured(live_stack):
    ran = run_process("bench", "--json", "--samples", "5", "--drain", "20")

    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    for name in ("submit", "dispatch"):
        assert 0 < figures[name]["p50_ms"] <= figures[name]["p95_ms"] <= figures[name]["p99_ms"]
    assert figures["drain"]["runs"] == 20
    assert figures["drain"]["runs_per_second"] > 0
