"""The ledger's and the spending page, their CSV files, and addresses that nobody ever gave out."""

import csv
import io
import re
from typing import Any

import pytest
from django.test import Client

from quotas import services as money
from quotas.models import MICRO, Account
from runs.models import Run
from tests import builders

pytestmark = pytest.mark.django_db


@pytest.fixture
def console(client: Client, operator: Any) -> Client:
    client.force_login(operator)
    return client


def table(answer: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(answer.getvalue().decode())))


def test_the_ledger_is_filtered_and_exported_as_it_is_shown(
    console: Client, account: Account, other_account: Account
) -> None:
    builders.make_run("succeeded", account=other_account, cost=1, agent="one")
    run = builders.make_run("succeeded", account=account, cost=20, agent="one")
    builders.make_run("succeeded", account=account, cost=300, agent="two")
    money.grant(account, amount=4000, reason="=gift", actor="boss")

    def amounts(**query: Any) -> list[str]:
        page = console.get("/admin/quotas/ledgerentry/", query).content.decode()
        exported = [row[4] for row in table(console.get("/admin/quotas/ledgerentry/export.csv", query))[1:]]
        assert page.count('class="field-amount_shown') == len(exported)
        return exported

    assert amounts() == ["-4000", "300", "20", "1"]
    assert amounts(account_is="acme") == ["-4000", "300", "20"]
    assert amounts(account_is="acme", agent_is="one") == ["20"]
    assert amounts(kind__exact="grant") == ["-4000"]
    assert amounts(q=str(run.pk)) == ["20"]
    assert amounts(to="2020-01-01") == []
    assert amounts(**{"from": "2020-01-01", "account_is": "globex"}) == ["1"]
    page = console.get("/admin/quotas/ledgerentry/?agent_is=one").content.decode()
    assert 'href="/admin/quotas/ledgerentry/export.csv?agent_is=one"' in page
    assert f'href="/admin/runs/run/{run.pk}/change/"' in page


def test_exports_need_the_permission_to_see_the_ledger(client: Client, account: Account) -> None:
    client.force_login(builders.make_operator("other", permissions=["view_account", "view_run"]))

    for path in ("/admin/quotas/ledgerentry/export.csv", "/admin/spending/", "/admin/spending.csv"):
        assert client.get(path).status_code == 403, path


def test_spending_is_summed_up_as_asked_and_as_csv(console: Client, account: Account) -> None:
    builders.make_run("succeeded", account=account, cost=3 * MICRO, agent="one", tags=["blue"])
    builders.make_run("failed", account=account, cost=MICRO, agent="two")
    builders.make_run("running", account=account, cost=MICRO // 2, agent="two")

    page = console.get("/admin/spending/", {"account": "acme", "by": "agent"})
    text = page.content.decode()
    rows = re.findall(r'<th scope="row"><a href="(.*?)".*?>(.*?)</a></th><td>(.*?)</td>', text)
    runs = console.get(rows[0][0].replace("&amp;", "&").replace("?", "/admin/spending/?"))

    assert [(name, amount) for _, name, amount in rows] == [("one", "3"), ("two", "1")]
    assert dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))["Accrued by open runs"] == "0.5"
    assert runs.content.decode().count("<progress") == 1
    assert table(console.get("/admin/spending.csv", {"account": "acme", "by": "agent"})) == [
        ["agent", "settled", "manual", "accrued", "runs"],
        ["one", "3000000", "0", "0", "1"],
        ["two", "1000000", "0", "500000", "1"],
    ]


def test_tags_are_payload(client: Client, account: Account) -> None:
    builders.make_run("succeeded", account=account, cost=3, tags=["PAYLOAD"])
    client.force_login(builders.make_operator("finance", permissions=["view_ledgerentry"]))

    assert b"PAYLOAD" not in client.get("/admin/spending/?by=tag&account=acme").content
    assert client.get("/admin/spending.csv?by=tag&account=acme").status_code == 400
    assert client.get("/admin/spending/?by=run&account=acme&tag=x").status_code == 200
    assert "settled" in client.get("/admin/spending/?account=acme").content.decode().lower()


def test_a_long_list_is_paged(console: Client, account: Account, django_assert_max_num_queries: Any) -> None:
    for number in range(55):
        builders.make_run("succeeded", account=account, cost=number, archived=False)

    with django_assert_max_num_queries(18):
        first = console.get("/admin/spending/?by=run&account=acme").content.decode()
    following = re.search(r'href="(\?[^"]*after=[^"]*)"', first)
    assert following is not None
    second = console.get("/admin/spending/" + following[1].replace("&amp;", "&")).content.decode()

    assert (first.count("<progress"), second.count("<progress")) == (50, 5)
    assert Run.objects.count() == 55


@pytest.mark.parametrize(
    "path",
    [
        "/admin/quotas/ledgerentry/?from=nonsense",
        "/admin/quotas/ledgerentry/?to=9999-12-31",
        "/admin/quotas/ledgerentry/export.csv?from=nonsense",
        "/admin/quotas/ledgerentry/export.csv?x=y",
        "/admin/quotas/hold/?state_is=odd&open_for=-1",
        "/admin/quotas/account/1/line/nothing/",
        "/admin/quotas/account/99999999999999999999/line/grant/",
        "/admin/spending/?account=nobody",
        "/admin/spending/?by=week",
        "/admin/spending/?by=run&after=odd",
        "/admin/spending/?by=day&start=0001-01-01",
        "/admin/spending/?by=day&end=9999-12-31",
        "/admin/spending.csv?by=week",
    ],
)
def test_no_address_breaks_a_page_of_money(console: Client, account: Account, path: str) -> None:
    builders.make_run("succeeded", account=account, cost=3)

    assert console.get(path).status_code < 500


@pytest.mark.parametrize(("path", "name"), [("/admin/quotas/membership/", "Members"), ("/admin/spending/", "Spending")])
def test_a_page_of_money_has_its_name(console: Client, path: str, name: str) -> None:
    page = console.get(path).content.decode()

    assert f"<title>{name} | AgentOps</title>" in page
    assert f"<h1>{name}</h1>" in page


@pytest.mark.parametrize("number", ["9" * 24, "-9223372036854775809", "9223372036854775808"])
@pytest.mark.parametrize("page", ["quotas/ledgerentry", "quotas/hold", "runs/run", "quotas/apikey"])
def test_a_number_that_no_column_holds_is_a_bad_query(console: Client, page: str, number: str) -> None:
    assert console.get(f"/admin/{page}/", {"account": number}).status_code in {200, 400}
    assert console.get(f"/admin/{page}/", {"account__id__exact": number}).status_code in {200, 302, 400}
