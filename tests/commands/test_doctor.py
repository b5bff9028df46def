"""`doctor`: every line says how a part stands, and what to do where it is not well."""

import contextlib
import io
import json
from typing import Any

import pytest
import redis as redis_py
from django.core.management import call_command
from django.utils import timezone

from agentops import checks
from agentops.diagnosis import database, processes, redis_server
from quotas import append_only
from quotas.prices import PriceTable, install_default_prices
from runs.models import Maintenance, QueuePause
from tests import builders, servers
from tests.working import registered
from workers.models import WorkerProcess

pytestmark = pytest.mark.django_db

# The tests' own database servers run without fsync, which is what the doctor is there to find.
NOT_DURABLE = ("fsync", "synchronous_commit", "innodb_flush")


def examined() -> tuple[int, list[dict[str, str]]]:
    """Return the exit code and the findings."""
    output, code = io.StringIO(), 0
    try:
        call_command("doctor", "--json", stdout=output)
    except SystemExit as end:
        code = int(str(end.code))
    report = json.loads(output.getvalue())
    assert report["ok"] == (code == 0)
    return code, report["findings"]


def lines(findings: list[dict[str, str]], level: str) -> set[tuple[str, str]]:
    return {
        (finding["part"], finding["fact"])
        for finding in findings
        if finding["level"] == level and not finding["fact"].startswith(NOT_DURABLE)
    }


def test_a_healthy_installation(settings: Any) -> None:
    install_default_prices()
    WorkerProcess.objects.create(
        name="w1-1", host="here", pid=1, version="1", concurrency=1, heartbeat_at=timezone.now()
    )

    _, findings = examined()

    assert lines(findings, "fail") == set()
    assert ("migrations", "all applied") in lines(findings, "ok")
    assert ("redis", "maxmemory-policy noeviction") in lines(findings, "ok")
    assert ("workers", "1 alive") in lines(findings, "ok")
    assert ("model", "no endpoint") in lines(findings, "warn")
    assert all(finding["advice"] for finding in findings if finding["level"] != "ok")


def test_a_queue_without_a_worker_a_pause_and_maintenance_are_warned_of() -> None:
    builders.make_worker(queues=["default"])
    builders.make_worker(queues=["lonely"], drain_requested_at=timezone.now())
    QueuePause.objects.create(queue="default", reason="a bad release", paused_by="ann")
    Maintenance.objects.create(pk=1, message="back at noon", retry_after_seconds=60, set_by="olga")
    with registered("test.lonely", queue="lonely"):
        found = [finding for finding in processes.examine() if finding.level == "warn"]

    advice = {finding.fact: finding.advice for finding in found}
    start = "Start a worker: ./run runworker_streams --queues lonely"
    assert advice["no live worker takes from the queue lonely"] == start
    assert "no live worker takes from the queue default" not in advice
    (paused,) = (finding for finding in found if finding.part == "queues")
    assert "the queue default is paused by ann" in paused.fact
    assert "a bad release" in paused.fact
    assert "./run queues resume default" in paused.advice
    (on,) = (finding for finding in found if finding.part == "maintenance")
    assert ("olga" in on.fact, "./run maintenance off" in on.advice) == (True, True)


def test_servers_that_are_away(settings: Any, own_redis: servers.Server) -> None:
    settings.OPENAI_BASE_URL = "http://127.0.0.1:9/v1"
    settings.AGENTOPS_MODEL = "no-such-model"
    own_redis.kill()

    code, findings = examined()

    assert code == 1
    failed = {part for part, _ in lines(findings, "fail")}
    assert failed == {"redis", "model", "price"}


def test_a_policy_that_evicts(own_redis: servers.Server, redis: redis_py.Redis) -> None:
    redis.config_set("maxmemory-policy", "allkeys-lru")
    redis.config_set("appendonly", "no")

    found = {finding.fact: finding for finding in redis_server.examine()}

    assert found["maxmemory-policy allkeys-lru"].level == "fail"
    assert "noeviction" in found["maxmemory-policy allkeys-lru"].advice
    assert found["append-only file off"].level == "warn"


def test_the_database_says_what_it_is() -> None:
    found = list(database.examine())

    assert found[0].level == "ok"
    assert any(name in found[0].fact for name in ("SQLite", "PostgreSQL", "MariaDB", "MySQL"))
    assert [item for item in found if item.level == "fail" and not item.fact.startswith(NOT_DURABLE)] == []


def test_the_report_for_people() -> None:
    output = io.StringIO()

    with contextlib.suppress(SystemExit):
        call_command("doctor", stdout=output)

    assert "maxmemory-policy noeviction" in output.getvalue()
    assert "→ Set OPENAI_BASE_URL" in output.getvalue()


@pytest.mark.django_db(transaction=True)
def test_a_ledger_without_its_protection() -> None:
    append_only.remove()
    try:
        (found,) = (finding for finding in database.examine() if "append-only" in finding.fact)
    finally:
        append_only.install()

    assert (found.level, append_only.AUDIT.name("change") in found.fact) == ("warn", True)
    assert "reconcile_quotas --fix" in found.advice


def test_a_model_that_an_agent_names_without_a_price(db: Any) -> None:
    install_default_prices()
    with registered("test.prices", models=lambda given: [given["model"]], sample={"model": "nobody-knows"}):
        _, findings = examined()
        warned = [warning for warning in checks.prices(databases=["default"]) if "nobody-knows" in warning.msg]

    told = {finding["fact"]: finding for finding in findings if finding["part"] == "price"}
    lacking = told["nobody-knows, which test.prices may use, has no price"]
    assert (lacking["level"], "set_price nobody-knows" in lacking["advice"]) == ("fail", True)
    assert {finding["level"] for finding in told.values()} == {"ok", "fail"}
    assert [(warning.id, "test.prices" in warning.msg) for warning in warned] == [("agentops.W006", True)]


def test_the_check_of_prices_needs_a_database_with_prices_and_breaks_on_none(db: Any) -> None:
    PriceTable.forget()
    with registered("test.prices", models=lambda given: [given["model"]], sample={"model": "nobody-knows"}):
        assert checks.prices(databases=["default"]) == []  # before the first start
        install_default_prices()
        PriceTable.forget()
        assert checks.prices() == []
        with registered("test.broken", models=lambda given: given["no"], sample={}):
            assert len(checks.prices(databases=["default"])) == 1
