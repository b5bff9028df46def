"""The web's `/metrics`: the gauges of the whole queue are what rows and streams say, for a few looks."""

import datetime as dt
import re

import pytest
from django.test import AsyncClient
from django.utils import timezone
from prometheus_client import REGISTRY

from agentops import gauges
from agentops.counting import count
from runs import broker, keys, metrics, ready
from runs.controls import begin_maintenance, pause_queue
from runs.services import cancel_run, submit_run
from tests import builders, servers

pytestmark = pytest.mark.django_db(transaction=True)
SAMPLE = re.compile(r"^(agentops_\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def nothing_kept():
    for source in gauges.SOURCES:
        source.forget()


async def scraped() -> dict[str, float]:
    answer = await AsyncClient().get("/metrics")
    assert answer.status_code == 200
    return {name: float(value) for name, value in SAMPLE.findall(answer.content.decode())}


def of(families) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_backlog_and_oldest_wait_are_those_of_the_rows(account):
    ago = timezone.now() - dt.timedelta(minutes=5)
    builders.make_run("queued", account=account, priority="high")
    for run in (builders.make_run("queued", account=account), builders.make_run("queued", account=account)):
        type(run).objects.filter(pk=run.pk).update(queued_at=ago)
    builders.make_run("running", account=account)

    shown = of(gauges.read_database())

    assert shown["agentops_backlog", "default", "normal"] == 2
    assert shown["agentops_backlog", "default", "high"] == 1
    assert shown["agentops_backlog", "default", "low"] == 0
    assert 300 <= shown["agentops_oldest_wait_seconds", "default", "normal"] < 400
    assert shown["agentops_oldest_wait_seconds", "default", "low"] == 0


def test_a_backlog_above_the_cap_still_shows_who_waits_longest(account, monkeypatch):
    monkeypatch.setattr(gauges, "BACKLOG_CAP", 2)
    runs = [builders.make_run("queued", account=account) for _ in range(4)]
    type(runs[3]).objects.filter(pk=runs[3].pk).update(queued_at=timezone.now() - dt.timedelta(hours=1))

    shown = of(gauges.read_database())

    assert shown["agentops_backlog", "default", "normal"] == 2
    assert shown["agentops_oldest_wait_seconds", "default", "normal"] >= 3600


def test_workers_and_dead_letters_are_those_that_count(account):
    builders.make_worker()
    builders.make_worker(stopped_at=timezone.now())
    builders.make_worker(heartbeat_at=timezone.now() - dt.timedelta(hours=1))
    for reason, state in (("fatal", "open"), ("fatal", "open"), ("poison", "open"), ("fatal", "discarded")):
        builders.make_dead_letter(builders.make_run("failed", account=account), reason=reason, state=state)

    shown = of(gauges.read_database())

    assert shown["agentops_workers_alive",] == 1
    assert shown["agentops_dead_letters_open", "fatal"] == 2
    assert shown["agentops_dead_letters_open", "poison"] == 1
    assert shown["agentops_dead_letters_open", "exhausted"] == 0
    assert shown["agentops_cases_open",] == 2


def test_what_the_streams_have_is_read_in_one_round_trip(account, redis, settings):
    settings.GLOBAL_SLOTS = 4
    assert set(of(gauges.read_redis()).values()) == {0.0, 4.0}  # no stream, no group
    stream = keys.ready("default", "normal")
    redis.xgroup_create(stream, keys.GROUP, id="0", mkstream=True)
    ready.dispatch_all(broker.client(), [builders.make_run("queued", account=account) for _ in range(3)])
    redis.xreadgroup(keys.GROUP, "one", {stream: ">"}, count=1)
    redis.zadd(keys.slots("default"), {"one/0": 1})

    with count() as counted:
        shown = of(gauges.read_redis())

    assert counted.round_trips == 1
    assert shown["agentops_ready", "default", "normal"] == 2
    assert shown["agentops_in_flight", "default", "normal"] == 1
    assert (shown["agentops_slots_used", "default"], shown["agentops_slots_limit", "default"]) == (1, 4)


def test_it_costs_as_many_statements_with_a_hundred_rows(account):
    with count() as few:
        gauges.read_database()
    for number in range(100):
        builders.make_run("queued" if number % 2 else "running", account=account)

    with count() as many:
        gauges.read_database()

    assert many.statements == few.statements, many.sql
    assert many.statements == len(gauges.queue_names()) + 6


def test_a_paused_queue_and_maintenance_are_shown_as_one(account):
    before = of(gauges.read_database())
    pause_queue(queue="default", actor="tester", reason="a bad release")
    begin_maintenance(message="back soon", actor="tester")

    shown = of(gauges.read_database())

    assert (before["agentops_queue_paused", "default"], before["agentops_maintenance",]) == (0, 0)
    assert (shown["agentops_queue_paused", "default"], shown["agentops_maintenance",]) == (1, 1)


async def test_scrapes_share_a_reading(async_client, own_redis):
    first = await scraped()
    own_redis.kill()

    assert (await scraped()).keys() == first.keys()


async def test_without_redis_its_series_alone_are_missing(own_redis: servers.Server):
    own_redis.kill()
    before = (await scraped())['agentops_scrape_errors_total{source="redis"}']

    after = await scraped()

    assert after['agentops_scrape_errors_total{source="redis"}'] == before + 1
    assert not [name for name in after if name.startswith(("agentops_in_flight", "agentops_ready"))]
    assert after["agentops_workers_alive"] == 0
    assert 'agentops_backlog{priority="normal",queue="default"}' in after


async def test_a_redis_that_hangs_costs_a_scrape_its_patience_only(own_redis: servers.Server, monkeypatch):
    monkeypatch.setattr(gauges, "PATIENCE_SECONDS", 0.3)
    own_redis.pause()
    try:
        shown = await scraped()
    finally:
        own_redis.resume()

    assert "agentops_workers_alive" in shown
    assert not [name for name in shown if name.startswith("agentops_in_flight")]


def value(name, **labels):
    return REGISTRY.get_sample_value(f"agentops_{name}", labels) or 0.0


def test_a_run_that_ends_outside_a_worker_is_counted_where_it_ends(account):
    labels = {"agent": "probe.ret", "outcome": "cancelled"}
    before = value("runs_ended_total", **labels)
    run = submit_run(account=account, agent="probe.ret", input={}, actor="test").run

    cancel_run(run_id=run.pk, actor="test", reason="x")
    cancel_run(run_id=run.pk, actor="test", reason="x")

    assert value("runs_ended_total", **labels) == before + 1


def test_an_agent_that_nobody_knows_has_no_label_of_its_own():
    before = value("runs_ended_total", agent="other", outcome="failed")

    metrics.count_end("no.such-agent", "failed", 1.0)

    assert value("runs_ended_total", agent="other", outcome="failed") == before + 1
    assert value("runs_ended_total", agent="no.such-agent", outcome="failed") == 0


def test_every_agent_is_shown_before_its_first_run_ends():
    metrics.show_agents()

    labels = {"agent": "probe.ret", "outcome": "failed"}
    assert REGISTRY.get_sample_value("agentops_runs_ended_total", labels) is not None
