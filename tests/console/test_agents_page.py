"""The agents' pages: figures against rows made by hand, unregistered agents, what says interrupt or rerun."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agentops.console import agent_figures
from agentops.console.agent_figures import Choice, choice_of, ended_runs, figures_of, suggestion
from quotas.models import Account, LedgerEntry
from runs.models import Attempt, Run
from tests import builders

pytestmark = pytest.mark.django_db
AGENT = "probe.ret"


def make(account: Account, state: str = "succeeded", *, ago: float = 60.0, cost: int = 0, **fields: Any) -> Run:
    """Make a run that ended so many seconds ago, after 3 seconds of waiting and 5 of work."""
    ended_at = timezone.now() - dt.timedelta(seconds=ago)
    times = {"finished_at": ended_at, "started_at": ended_at - dt.timedelta(seconds=5)}
    times["queued_at"] = ended_at - dt.timedelta(seconds=8)
    return builders.make_run(state, account=account, cost=cost, **({"agent": AGENT} | times | fields))


def week_ago() -> dt.datetime:
    return timezone.now() - dt.timedelta(days=7)


def test_spans_count_what_ended_in_them(account: Account) -> None:
    make(account, ago=60, cost=10)
    make(account, "failed", ago=7200, cost=20)
    make(account, "interrupted", ago=3 * 86400, cost=90)
    make(account, ago=8 * 86400, cost=1000)
    make(account, ago=60, cost=5000, agent="another")
    hour, day, week = agent_figures.page_of(AGENT)["spans"]

    assert [one.ended for one in (hour, day, week)] == [1, 2, 3]
    assert week.outcomes == {"succeeded": 1, "failed": 1, "cancelled": 0, "interrupted": 1}
    assert [one.cost for one in (hour, day, week)] == [10, 30, 120]
    assert (week.cost_average, week.cost_p95) == (40, 90)
    assert (week.wait_p50, week.run_p95) == (3.0, 5.0)
    assert not week.is_cut


def test_costs_are_those_of_the_ledger(account: Account) -> None:
    run = make(account, cost=10)
    Run.objects.filter(pk=run.pk).update(cost=77)
    make(account, "cancelled", started=False, started_at=None)

    figures = figures_of(ended_runs(AGENT, week_ago(), 10), "", week_ago())

    assert LedgerEntry.objects.get(settle_key=run.pk).amount == 10
    assert (figures.cost, figures.cost_average, figures.ended) == (10, 10, 2)


def test_of_too_many_the_newest_count_and_it_says_so(account: Account) -> None:
    for ago in (10, 20, 30):
        make(account, ago=ago)
    found = ended_runs(AGENT, week_ago(), 2)
    figures = figures_of(found, "", week_ago())

    assert (figures.ended, figures.is_cut) == (2, True)
    assert figures.since == found.rows[-1][1]
    assert not figures_of(found, "", timezone.now() - dt.timedelta(seconds=15)).is_cut


def test_lost_runs_that_were_requeued_within_an_hour_count(account: Account) -> None:
    for state, minutes in (("failed", 30), ("interrupted", 90), ("interrupted", None)):
        lost = make(account, state, ago=6 * 3600)
        if minutes is not None:
            again = make(account, ago=60, cost=7, retry_of=lost)
            at = lost.finished_at + dt.timedelta(minutes=minutes)
            Run.objects.filter(pk=again.pk).update(submitted_at=at)
    choice = choice_of(AGENT, ended_runs(AGENT, week_ago(), 100))

    assert (choice.lost, choice.requeued, choice.share) == (3, 1, 1 / 3)
    assert (choice.reruns, choice.rerun_cost, choice.cost) == (2, 14, 14)


def test_what_lost_attempts_and_those_after_them_cost(account: Account) -> None:
    run = make(account, cost=40, attempt=2)
    Attempt.objects.filter(run=run).update(cost=30, fence=9, number=2)
    Attempt.objects.create(
        run=run,
        fence=2,
        number=1,
        worker="w",
        started_at=run.queued_at,
        outcome="lost",
        error_class="lost_worker",
        cost=10,
    )
    make(account, "interrupted", cost=5)
    failed = make(account, cost=4, attempt=2)
    Attempt.objects.create(
        run=failed, fence=1, number=1, worker="w", started_at=run.queued_at, outcome="failed", cost=1
    )
    choice = choice_of(AGENT, ended_runs(AGENT, week_ago(), 100))

    assert (choice.lost_attempts, choice.lost_cost) == (2, 15)
    assert (choice.reruns, choice.rerun_cost) == (1, 30)


@pytest.mark.parametrize(
    ("facts", "policy", "words"),
    [
        ({}, "interrupt", "too few"),
        ({"lost": 20, "requeued": 15}, "interrupt", "rerun would do it by itself"),
        ({"lost": 20, "requeued": 2}, "interrupt", "nobody asks for again"),
        ({"lost": 20, "rerun_cost": 5}, "rerun", "rerun fits"),
        ({"rerun_cost": 50}, "rerun", "50 % of the cost"),
    ],
)
def test_one_sentence_says_what_the_figures_suggest(facts: dict[str, int], policy: str, words: str) -> None:
    nothing = dict.fromkeys(("lost", "requeued", "lost_attempts", "lost_cost", "reruns", "rerun_cost"), 0)

    assert words in suggestion(Choice(**(nothing | {"cost": 100} | facts)), policy)


def test_the_list_has_registered_agents_and_those_that_only_runs_know(client: Client, account: Account) -> None:
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))
    make(account, agent="old/<b>agent</b>?&")
    page = client.get("/admin/agents/").content.decode()

    assert AGENT in page
    assert page.count("not registered here") == 1
    assert "old/&lt;b&gt;agent&lt;/b&gt;?&amp;" in page
    assert "Cost" not in page
    assert "/admin/agents/" in client.get("/admin/").content.decode()


def test_the_page_of_an_agent(client: Client, account: Account) -> None:
    client.force_login(builders.make_operator("viewer", permissions=["view_run", "view_ledgerentry"]))
    make(account, cost=1_500_000)
    make(account, agent="old/<b>agent</b>?&")
    known = client.get("/admin/agents/", {"agent": AGENT}).content.decode()
    old = client.get("/admin/agents/", {"agent": "old/<b>agent</b>?&"}).content.decode()

    assert "<h1>Agent probe.ret</h1>" in known
    assert "<td>1.5</td>" in known
    assert "Fewer than 10 runs" in known
    assert "not registered in this process" in old


@pytest.mark.parametrize("name", ["no.such", "x" * 4000, "\u202e"])
def test_an_agent_that_nobody_knows_is_not_there(client: Client, name: str) -> None:
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))

    assert client.get("/admin/agents/", {"agent": name}).status_code == 404


def test_who_may_not_see_runs_sees_no_agents(client: Client) -> None:
    client.force_login(builders.make_operator("nobody", permissions=[]))

    assert client.get("/admin/agents/").status_code == 403
    assert client.get("/admin/agents/?agent=probe.ret").status_code == 403
