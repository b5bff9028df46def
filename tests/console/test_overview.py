"""The overview: each problem's line, the numbers, the series of the last hour against rows made by hand."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agentops.console import condition, ended, overview, problems
from agentops.console.problems import Condition, Redis, problems_of, told
from quotas import audit
from quotas.display import NOTHING
from quotas.models import Account
from runs import broker, controls, keys
from runs.models import Run
from runs.states import RunState
from tests import builders

pytestmark = pytest.mark.django_db
WELL = Condition(redis=Redis(), workers_alive=1)
NOW = dt.datetime(2026, 11, 30, 12, 0, tzinfo=dt.UTC)


def ago(**span: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(**span)


def codes() -> list[str]:
    condition.Latest.forget()
    controls.forget()
    return [one.code for one in condition.condition.get()[1]]


def beating(**fields: Any) -> Any:
    """Make a worker that is alive, beside a sweeper: nothing is wrong."""
    broker.client().set(keys.sweeper(), "somebody")
    return builders.make_worker(**({"heartbeat_at": ago(hours=-1)} | fields))


@pytest.mark.parametrize(
    ("facts", "code", "words"),
    [
        ({"redis": Redis(away="refused")}, "redis_away", "refused"),
        ({"redis": Redis(sweeps=False)}, "sweeper_late", "Nobody sweeps"),
        ({"redis": Redis(drift={"in_flight": 2})}, "hold_drift", "in flight"),
        ({"workers_alive": 0}, "no_worker", "No worker is alive"),
        ({"lost": ["a", "b", "c", "d"]}, "workers_lost", "4 workers lost: a, b, c and 1 more"),
        ({"late": ["a"]}, "heartbeat_late", "1 worker: a"),
        ({"deaf": ["a"]}, "workers_deaf", "1 worker deaf"),
        ({"unserved": ["slow"]}, "queue_unserved", "slow"),
        ({"waits": {"slow": 601.0}}, "oldest_wait", "slow waits for 10 m 1 s"),
        ({"new_letters": 21}, "dead_letters", "more than 20"),
        ({"paused": {"slow": ("why", NOW)}}, "queue_paused", "slow is paused: why"),
        ({"maintenance": "soon"}, "maintenance", "soon"),
    ],
)
def test_each_problem_has_its_line(facts: dict[str, Any], code: str, words: str) -> None:
    found = problems_of(Condition(**({"redis": Redis(), "workers_alive": 1} | facts)))

    assert [one.code for one in found] == [code]
    assert words in found[0].text
    assert found[0].advice
    assert found[0].address


@pytest.mark.parametrize(
    "facts", [{}, {"waits": {"q": 599.0}}, {"new_letters": 20}, {"waits": {"q": 9e9}, "paused": {"q": ("x", NOW)}}]
)
def test_what_is_within_its_bounds_or_meant_is_no_problem_of_its_own(facts: dict[str, Any]) -> None:
    found = problems_of(Condition(redis=Redis(), workers_alive=1, **facts))

    assert {one.code for one in found} <= {"queue_paused"}


def test_a_user_is_told_what_they_may_know() -> None:
    viewer = builders.make_operator("viewer", permissions=["view_run"])
    everything = builders.make_operator("all")
    found = problems_of(Condition(redis=Redis(), workers_alive=0, waits={"q": 700.0}))

    assert [one["code"] for one in told(found, viewer)["problems"]] == ["oldest_wait"]
    assert told(found, everything)["sentence"] == "2 problems"
    assert told([], everything)["sentence"] == "Healthy"
    assert told([], viewer)["sentence"] == "Nothing is wrong in what you may see"


def test_a_worker_and_a_sweeper_make_it_healthy() -> None:
    beating()

    assert codes() == []


def test_nobody_there_is_a_problem() -> None:
    assert codes() == ["no_worker"]


def test_lost_late_and_deaf_workers_are_found() -> None:
    beating()
    builders.make_worker(name="lost", heartbeat_at=ago(hours=1))
    builders.make_worker(name="gone", heartbeat_at=ago(hours=1), stopped_at=timezone.now())
    builders.make_worker(name="late", heartbeat_at=ago(seconds=condition.heard_late() + 0.1))
    facts = condition.condition.get()[0]
    fleet = condition.fleet_now(timezone.now())
    silent = {worker.name: 61.0 for worker in fleet.alive}

    assert (facts.lost, facts.late, facts.deaf) == (["lost"], ["late"], [])
    assert condition._deaf(fleet, silent, {}) == [worker.name for worker in fleet.alive]
    assert condition._deaf(fleet, silent, {"default": None}) == []
    assert condition._deaf(fleet, {"late": 59.0}, {}) == []


def test_a_full_worker_is_not_deaf() -> None:
    worker = beating(running_count=4, concurrency=4)

    assert condition._deaf(condition.fleet_now(timezone.now()), {worker.name: 100.0}, {}) == []


def test_waiting_runs_without_a_worker_of_their_queue_are_a_problem(account: Account) -> None:
    beating(queues=["other"])
    builders.make_run(account=account, queued_at=ago(minutes=11))

    assert codes() == ["queue_unserved", "oldest_wait"]


def test_many_new_dead_letters_are_a_problem_and_old_ones_are_not(account: Account) -> None:
    beating()
    for _ in range(problems.LETTERS + 1):
        builders.make_dead_letter(buried_at=ago(minutes=16))
    before = codes()
    for _ in range(problems.LETTERS + 1):
        builders.make_dead_letter()

    assert (before, codes()) == ([], ["dead_letters"])


def test_switches_and_drift_are_told() -> None:
    beating()
    controls.pause_queue(queue="default", actor="root", reason="the disk is full")
    controls.begin_maintenance(message="a new disk", actor="root")
    broker.client().set(keys.drift(), '{"spent": 3}')

    assert codes() == ["hold_drift", "queue_paused", "maintenance"]


def test_a_pause_and_its_end_are_told_at_once_however_fresh_the_rest_is(client: Client) -> None:
    beating()
    client.force_login(builders.make_operator("operator"))

    def told_codes() -> list[str]:
        return [one["code"] for one in client.get("/admin/overview.json").json()["problems"]]

    before = told_codes()
    client.post("/admin/queues/pause/", {"queue": "default", "reason": "a bad disk"})
    controls.begin_maintenance(message="a new disk", actor="root")
    paused = told_codes()
    controls.resume_queue(queue="default", actor="root")
    controls.end_maintenance(actor="root")

    assert (before, paused, told_codes()) == ([], ["queue_paused", "maintenance"], [])


def test_redis_away_is_told_and_the_page_is_there(client: Client, settings: Any) -> None:
    beating()
    client.force_login(builders.make_operator("operator"))
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    broker.reset()
    numbers = client.get("/admin/overview.json").json()

    assert [one["code"] for one in numbers["problems"]] == ["redis_away"]
    assert numbers["held_back"] == "unknown"
    assert client.get("/admin/").status_code == 200


def test_the_numbers_are_those_of_the_rows(client: Client, account: Account) -> None:
    client.force_login(builders.make_operator("operator"))
    builders.make_run("running", account=account)
    builders.make_run("queued", account=account, queued_at=ago(minutes=5))
    builders.make_run("queued", account=account, priority="high")
    builders.make_run("scheduled", account=account, attempt=2)
    builders.make_run("scheduled", account=account, blocked_by_session="s")
    builders.make_dead_letter()
    numbers = client.get("/admin/overview.json").json()

    shown = [numbers[name] for name in ("running", "queued_total", "held_back", "retrying", "dead_letters")]
    assert shown == ["1", "2", "1", "1", "1"]
    assert numbers["oldest_wait"].startswith("5 m")


# -- the last hour -----------------------------------------------------------------------------------------------------
def make_ended(account: Account, minute: dt.datetime, *, wait: float, time: float, state: str = "succeeded") -> Run:
    """Make a run that ended 30 seconds into a minute, after a time of work and a wait before it."""
    ended_at = minute + dt.timedelta(seconds=30)
    started_at = ended_at - dt.timedelta(seconds=time)
    queued_at = started_at - dt.timedelta(seconds=wait)
    return builders.make_run(state, account=account, queued_at=queued_at, started_at=started_at, finished_at=ended_at)


def test_the_series_are_those_of_the_rows(account: Account) -> None:
    first = NOW - dt.timedelta(minutes=59)
    for seconds in range(1, 21):
        make_ended(account, first, wait=seconds, time=2 * seconds)
    make_ended(account, NOW, wait=0, time=7, state=RunState.FAILED)
    make_ended(account, first - dt.timedelta(minutes=1), wait=900, time=900)
    make_ended(account, NOW, wait=0, time=1, state=RunState.INTERRUPTED)
    found = ended.newest(Run.objects.all(), first, ended.MOST, ended.COLUMNS)
    series = ended.by_minute(found, first)

    assert (series["minutes"][0], series["minutes"][-1]) == (int(first.timestamp()), int(NOW.timestamp()))
    assert (series["succeeded"][0], sum(series["succeeded"])) == (20, 20)
    assert (series["failed"][59], series["interrupted"][59], sum(series["cancelled"])) == (1, 1, 0)
    assert (series["wait_p50"][0], series["wait_p95"][0]) == (10.0, 19.0)
    assert (series["run_p50"][0], series["run_p95"][0]) == (20.0, 38.0)
    assert series["wait_p50"][1] is None
    assert (series["failure_rate"], series["note"]) == ("9.1% of 22", "")


def test_of_too_many_runs_the_newest_are_shown_and_it_says_so(account: Account) -> None:
    first = NOW - dt.timedelta(minutes=59)
    for minute in (0, 0, 30, 59):
        make_ended(account, first + dt.timedelta(minutes=minute), wait=1, time=1)
    series = ended.by_minute(ended.newest(Run.objects.all(), first, 2, ended.COLUMNS), first)

    assert series["succeeded"][:31] == [None] * 31
    assert (series["succeeded"][31], series["succeeded"][59]) == (0, 1)
    assert "only the newest" in series["note"]


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([], 0.5, None), ([3], 0.95, 3), ([2, 1], 0.5, 1), (list(range(1, 101)), 0.95, 95), ([1, 2, 3], 0.5, 2)],
)
def test_percentiles_are_by_the_nearest_rank(values: list[float], share: float, found: float | None) -> None:
    assert ended.percentile(values, share) == found


def test_a_run_that_was_queued_again_says_no_wait() -> None:
    assert ended.wait_of(NOW, NOW - dt.timedelta(seconds=1)) is None
    assert ended.wait_of(NOW, None) is None
    assert ended.time_of(None, NOW) is None


# -- the parts ---------------------------------------------------------------------------------------------------------
def test_parts_are_shown_by_permission(client: Client, account: Account) -> None:
    worker = builders.make_worker(name="strip-1")
    builders.make_run("running", account=account, worker=worker.name)
    letter = builders.make_dead_letter()
    audit.record(actor="anna", action="queue.pause", target_type="queue", target_id="default")
    audit.record(actor="system", action="case.comes_back", target_type="case", target_id=letter.case_id)
    parts = {
        "view_workerprocess": ('id="overview-workers"', "strip-1"),
        "view_account": ('id="overview-accounts"', account.name),
        "view_case": ('id="overview-cases"', f"/admin/workers/case/{letter.case_id}/change/"),
        "view_auditentry": ('id="overview-acts"', "queue.pause"),
    }

    for number, (permission, (part, text)) in enumerate(parts.items()):
        client.force_login(builders.make_operator(f"one-{number}", permissions=[permission]))
        html = client.get("/admin/overview/parts.json").json()["html"]
        assert part in html
        assert text in html
        assert "case.comes_back" not in html
        assert [one for one, _ in parts.values() if one in html] == [part]
        assert client.get("/admin/overview/charts.json").status_code == 403


def test_the_page_has_its_charts_for_who_sees_runs(client: Client) -> None:
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))
    page = client.get("/admin/").content.decode()

    assert page.count("<figure") == 3
    assert page.count("As a table") == 3
    assert client.get("/admin/overview/charts.json").json()["failure_rate"] == NOTHING


def test_the_part_that_failed_of_the_last_hour_is_a_fact(client: Client, account: Account) -> None:
    for state in ("succeeded", "succeeded", "failed", "interrupted"):
        builders.make_run(state, account=account, finished_at=ago(minutes=1))
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))
    page = client.get("/admin/").content.decode()
    client.force_login(builders.make_operator("other", permissions=["view_account"]))

    assert 'data-number="failure_rate">50.0% of 4<' in page
    assert "failure_rate" not in client.get("/admin/overview.json").json()


def test_the_sum_of_limits_stands_beside_what_is_spent(client: Client, account: Account) -> None:
    client.force_login(builders.make_operator("money", permissions=["view_account"]))
    numbers = client.get("/admin/overview.json").json()

    assert numbers["limit"] == overview.about(sum(Account.objects.values_list("limit", flat=True)))
