"""Real workers and runs that spend more than is reserved for them: stopped, or extended, whoever dies (money 5, 6)."""

import pytest

from quotas.models import Hold, LedgerEntry
from runs.models import Run
from tests import builders, invariants
from tests.api import Api
from tests.probes import eventually
from tests.processes.trials import RETAKEN_LIFE, kinds, phases, rerun, states, submit, until
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
PATIENCE = 60.0
TIMES = {"AGENTOPS_LEASE_SECONDS": "3", "AGENTOPS_HANDLER_GRACE_SECONDS": "1"}


def said(run, kind):
    return [event["data"] for event in invariants.all_events(run.pk) if event["kind"] == kind]


def quota(api):
    answer = api.get("/api/v1/quota").json()
    return answer["spent"], answer["held"]


def test_a_run_that_overspends_is_stopped_keeps_what_it_made_and_is_settled_at_what_it_spent(stack):
    account = builders.make_account(limit=100_000)
    api = Api(builders.make_api_key(account)[1])
    over = {"amount": 1000, "times": 100, "seconds": 10, "estimate": 4500}

    text, answer = submit(account, "probe.overspend", **over), submit(account, "probe.overspend", answer=[1], **over)
    assert quota(api) == (0, 9000)
    stack.worker(**TIMES)
    until("failed", text, answer, timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)

    for run in (text, answer):
        shown = api.get(f"/api/v1/runs/{run.pk}").json()
        assert (shown["error"]["class"], shown["error"]["cause"]) == ("budget", "budget_exceeded")
        assert "agent does not let it be extended" in shown["error"]["message"]
        assert phases(run) == ["start", "cancelled" if run is text else "end"]
        assert said(run, "budget.warning") == [{"budget": 4500, "spent": 4000}]
        assert LedgerEntry.objects.get(run_id=run.pk).amount == shown["cost"] == 5000
        assert DeadLetter.objects.get(run=run).reason == "budget_exceeded"
    text.refresh_from_db()
    answer.refresh_from_db()
    assert (text.result, answer.result) == ("part 1. part 2. part 3. part 4. part 5. ", [1])
    assert quota(api) == (10_000, 0)


def test_a_worker_that_is_killed_while_its_run_is_extended_again_and_again_costs_what_its_beats_said(stack):
    account = builders.make_account(limit=10_000_000)
    victim = stack.worker(**TIMES)
    spends = {"amount": 1000, "times": 300, "seconds": 30, "estimate": 1000}
    run = rerun(account, "probe.spend", attempts=2, **spends)
    eventually(lambda: Hold.objects.get(run_id=run.pk).extensions >= 3, timeout=PATIENCE)
    eventually(lambda: run.attempts.get().cost > 0, timeout=PATIENCE)

    victim.kill()
    stack.worker(**TIMES)

    until("succeeded", run, timeout=2 * PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)
    run.refresh_from_db()
    lost, second = run.attempts.order_by("fence")
    assert kinds(run) == RETAKEN_LIFE
    assert (lost.outcome, second.cost) == ("lost", 300_000)
    assert 0 < lost.cost < 300_000
    assert run.cost == lost.cost + second.cost == LedgerEntry.objects.get().amount
    hold = Hold.objects.get()
    assert run.budget == hold.amount >= run.cost == hold.actual
    retaken = run.transitions.get(kind="run.retaken").data
    assert (retaken["paid_by"], retaken["cost"]) == (account.name, lost.cost)


def test_runs_that_are_extended_at_once_never_take_more_than_the_account_has(stack):
    account = builders.make_account(limit=60_000)
    stack.worker(concurrency=8, **TIMES)
    runs = [submit(account, "probe.spend", amount=1000, times=10, seconds=3, estimate=1000) for _ in range(8)]

    held = []

    def all_ended() -> bool:
        account.refresh_from_db()
        held.append(account.held)
        return set(states(runs)) <= {"succeeded", "failed"}

    eventually(all_ended, timeout=PATIENCE)
    eventually(lambda: invariants.check(account), timeout=PATIENCE)

    assert 8000 < max(held) <= account.limit
    assert {"succeeded", "failed"} == set(states(runs))  # 80,000 are wanted, 60,000 there are
    assert {run.error["cause"] for run in Run.objects.filter(state="failed")} == {"budget_exceeded"}
    account.refresh_from_db()
    assert account.spent == sum(run.cost for run in Run.objects.all())
    assert account.held == 0
