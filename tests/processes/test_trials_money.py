"""Trials of money with real workers: no hold outlives its run, and what is shown is the same at every moment."""

import datetime as dt
import re
import textwrap
from decimal import Decimal

import httpx
import pytest
from django.test import Client

from quotas import services as money
from quotas.errors import Refusal
from quotas.models import MICRO, Account, Hold, LedgerEntry
from runs.models import Attempt, Run
from runs.services import cancel_run, submit_run
from runs.states import TERMINAL
from tests import builders, invariants, working
from tests.probes import WorkerProbe, eventually
from tests.processes.trials import states, submit, until, until_begun
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
FAST = {"AGENTOPS_LEASE_SECONDS": "3", "AGENTOPS_HANDLER_GRACE_SECONDS": "1"}
FAILS_LATE = """
import asyncio
import os

from runs.agents import agent
from runs.outcomes import Fatal

@agent("money.fails", estimate=1_000_000)
async def fails(ctx, run_input):
    ctx.usage.add_cost(700_001)
    while not os.path.exists(run_input["go"]):
        await asyncio.sleep(0.05)
    ctx.usage.add_cost(55)
    raise Fatal("no luck")
"""


def test_f38_no_hold_outlives_its_run_whatever_way_it_ends(stack):
    account = builders.make_account(limit=100 * MICRO)
    workers = WorkerProbe(concurrency=6, **FAST), WorkerProbe(concurrency=6, **FAST)
    stack.together(*workers)
    late = dt.timedelta(hours=1)
    with pytest.raises(Refusal, match="input"):
        submit(account, "probe.sleep", seconds="soon")
    waiting = submit_run(account=account, agent="probe.ret", input={}, actor="test", delay=late.total_seconds()).run
    nobody = builders.make_run(account=account, agent="nobody.knows", estimate=500, queue_wait_seconds=2)
    running = submit(account, "probe.spend", amount=3, times=1000, seconds=100)
    until_begun(running)
    slow = submit_run(
        account=account, agent="probe.spend", input={"amount": 3, "times": 1000, "seconds": 100}, actor="test",
        time_limit=2,
    ).run  # fmt: skip
    others = {
        "succeeded": [submit(account, "probe.spend", amount=5, times=3), submit(account, "probe.ret", value=1)],
        "failed": [
            submit(account, "probe.boom", fails=9),
            submit(account, "probe.raise", type="Fatal"),
            submit(account, "probe.bad_output"),
        ],
        "interrupted": [submit(account, "probe.suicide", seconds=1)],
    }

    assert cancel_run(run_id=waiting.pk, actor="test").what == "cancelled"
    eventually(lambda: Attempt.objects.get(run=running, cost__gt=0), timeout=20)
    assert cancel_run(run_id=running.pk, actor="test").what == "requested"

    for state, runs in others.items():
        until(state, *runs, timeout=60)
    until("cancelled", running, waiting, timeout=20)
    until("failed", slow, nobody, timeout=60)
    assert set(states(account.runs.all())) <= {str(state) for state in TERMINAL}
    eventually(lambda: invariants.check(account), timeout=30)

    account.refresh_from_db()
    ledger = sum(LedgerEntry.objects.filter(account=account).values_list("amount", flat=True))
    assert (account.held, account.in_flight, account.spent) == (0, 0, ledger)
    assert ledger == sum(Attempt.objects.filter(run__account=account).values_list("cost", flat=True)) > 15
    assert not Hold.objects.filter(account=account, state__in=("active", "expired")).exists()
    # What never began is released without a line; all else is settled, and what failed has cost what it had spent.
    never_began = {run.pk for run in Run.objects.filter(account=account, started_at=None)}
    assert never_began == {waiting.pk, nobody.pk}
    released = Hold.objects.filter(account=account, state="released").values_list("run_id", flat=True)
    assert set(released) == never_began
    assert Hold.objects.get(run_id=slow.pk).actual == LedgerEntry.objects.get(run_id=slow.pk).amount > 0
    assert DeadLetter.objects.filter(run__account=account).count() == 5
    assert sorted(worker.alive for worker in workers) == [False, True]  # one run killed its own


class Looker:
    """Reads what everybody is shown, over HTTP and in the console, and adds it up by hand."""

    def __init__(self, url: str, account: Account, console: Client) -> None:
        key = builders.make_api_key(account)[1]
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {key}"}, timeout=30)
        self._account, self._console = account, console

    def __enter__(self) -> "Looker":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def look(self) -> dict[str, int]:
        """Return the quota, after the ledger as JSON, CSV and page, the totals and the account's page agree with it."""
        quota = self._http.get("/quota").raise_for_status().json()
        lines = [line["amount"] for line in self._http.get("/ledger").raise_for_status().json()["results"]]
        header, *rows = self._http.get("/ledger?format=csv").raise_for_status().text.splitlines()
        place = header.split(",").index("amount")
        total = self._http.get("/spending?by=run").raise_for_status().json()["total"]
        assert sum(lines) == quota["spent"] == sum(int(row.split(",")[place]) for row in rows)
        assert sum(lines) == total["settled"] + total["manual"]
        assert quota["limit"] == quota["spent"] + quota["held"] + quota["available"]
        assert self._on_the_page(len(lines)) == sum(lines)
        self._agrees(quota)
        return {name: quota[name] for name in ("spent", "held", "available", "in_flight")} | {
            "accrued": total["accrued"]
        }

    def _on_the_page(self, count: int) -> int:
        page = self._console.get("/admin/quotas/ledgerentry/", {"account_is": self._account.name}).content.decode()
        found = re.findall(r'class="field-amount_shown">([-0-9.,]+)', page)
        assert len(found) == count
        return int(sum(Decimal(amount.replace(",", "")) for amount in found) * MICRO)

    def _agrees(self, quota: dict[str, int]) -> None:
        page = self._console.get(f"/admin/quotas/account/{self._account.pk}/change/").content.decode()
        shown = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
        told = [shown[name] for name in ("Spent in this period", "Held", "Available")]
        amounts = [int(Decimal(amount.replace(",", "")) * MICRO) for amount in told]
        assert amounts == [quota["spent"], quota["held"], quota["available"]]
        assert shown["Counters and rows"] == "agree"


def test_f68_quota_and_ledger_agree_by_hand_before_during_and_after_a_failing_run(stack, tmp_path, client):
    account = builders.make_account("acme", limit=10 * MICRO)
    client.force_login(builders.make_operator("operator"))
    (tmp_path / "failing.py").write_text(textwrap.dedent(FAILS_LATE))
    apps = {"AGENTOPS_APPS": str(tmp_path / "failing.py")}
    web = stack.web(**apps)
    stack.worker(**FAST, **apps)
    until("succeeded", submit(account, "probe.spend", amount=41, times=3))
    money.grant(account, amount=1000, reason="a gift", actor="test")
    settled = 3 * 41 - 1000

    with Looker(web.url, account, client) as looker:
        before = looker.look()
        with working.registered("money.fails", estimate=MICRO):
            run = submit(account, "money.fails", go=str(tmp_path / "go"))
        eventually(lambda: Attempt.objects.get(run=run, cost=700_001), timeout=30)
        during = looker.look()
        (tmp_path / "go").touch()
        until("failed", run, timeout=30)
        after = looker.look()

    at_rest = {"held": 0, "in_flight": 0, "accrued": 0}
    assert before == {"spent": settled, "available": 10 * MICRO - settled, **at_rest}
    assert during == {
        "spent": settled, "held": MICRO, "available": 9 * MICRO - settled, "in_flight": 1, "accrued": 700_001,
    }  # fmt: skip
    assert after == {"spent": settled + 700_056, "available": 10 * MICRO - settled - 700_056, **at_rest}
    eventually(lambda: invariants.check(account), timeout=20)
