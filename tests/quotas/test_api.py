"""Quota and ledger over HTTP."""

import pytest
from django.test import Client
from django.urls import reverse

from quotas.models import LedgerEntry
from runs.states import RunState
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(api_key):
    return Client(headers={"authorization": f"Bearer {api_key}"})


def test_quota_tells_the_accounts_figures(client, account):
    builders.make_run(RunState.SUCCEEDED, account=account, cost=700)
    builders.make_run(RunState.RUNNING, account=account, estimate=300)

    body = client.get("/api/v1/quota").json()

    assert body.pop("period_ends_at").endswith("Z")
    assert body == {
        "account": account.name,
        "limit": account.limit,
        "spent": 700,
        "held": 300,
        "available": account.limit - 1000,
        "in_flight": 1,
        "max_in_flight": account.max_in_flight,
        "max_running": None,
        "period": "month",
    }


def test_the_ledger_is_paged_and_shows_the_account_only(client, account, other_account):
    builders.make_run(RunState.SUCCEEDED, account=other_account, cost=1)
    runs = [builders.make_run(RunState.SUCCEEDED, account=account, cost=n) for n in range(5)]

    first = client.get("/api/v1/ledger?limit=3").json()
    second = client.get(f"/api/v1/ledger?limit=3&after={first['next']}").json()

    lines = first["results"] + second["results"]
    assert second["next"] is None
    assert [line["run"] for line in lines] == [str(run.id) for run in reversed(runs)]
    assert {k: lines[0][k] for k in ("kind", "amount", "overdraft")} == {
        "kind": "settle",
        "amount": 4,
        "overdraft": False,
    }


def test_a_manual_line_has_no_run(client, account):
    LedgerEntry.objects.create(account=account, kind="grant", amount=-5, actor="boss", reason="gift")
    assert client.get("/api/v1/ledger").json()["results"][0]["run"] is None


def test_a_viewer_may_read_money_and_nobody_without_read(account):
    submit_only = builders.make_api_key(account, scopes=["submit"])[1]
    client = Client(headers={"authorization": f"Bearer {submit_only}"})
    assert client.get(reverse("quota")).json()["code"] == "scope_missing"
    viewer = Client()
    user = builders.make_user("viewer", account=account, role="viewer")
    viewer.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert viewer.get(reverse("ledger")).status_code == 200
