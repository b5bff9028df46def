"""Pages of money: what an account has, manual lines that act once, holds by age, ledger and spending with their CSV."""

import datetime as dt
import re
import threading
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from quotas import services as money
from quotas.models import MICRO, Account, AuditEntry, Hold, LedgerEntry, Membership
from tests import builders, invariants

pytestmark = pytest.mark.django_db
KINDS = ("grant", "adjustment", "write-off")


@pytest.fixture
def console(client: Client, operator: Any) -> Client:
    client.force_login(operator)
    return client


def said(answer: Any) -> str:
    return " | ".join(str(message) for message in answer.context["messages"])


def address(account: Account, kind: str) -> str:
    return f"/admin/quotas/account/{account.pk}/line/{kind}/"


def form(client: Client, account: Account, kind: str, **fields: Any) -> dict[str, Any]:
    """Return what the form of a line sends, its own id among it."""
    page = client.get(address(account, kind))
    assert page.status_code == 200
    form_id = re.search(rb'name="form_id" value="([^"]+)"', page.content)
    assert form_id is not None
    return {"amount": "5", "reason": "a gift", "run_id": "", "form_id": form_id[1].decode(), **fields}


def lines(account: Account) -> list[tuple[str, int, str]]:
    return list(LedgerEntry.objects.filter(account=account).order_by("id").values_list("kind", "amount", "reason"))


# -- accounts --------------------------------------------------------------------------------------


def test_an_accounts_page_shows_what_it_has_now(console: Client, account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(limit=10 * MICRO)
    builders.make_run("succeeded", account=account, cost=3 * MICRO)
    builders.make_run("running", account=account, estimate=2 * MICRO)
    builders.make_api_key(account)

    page = console.get(f"/admin/quotas/account/{account.pk}/change/").content.decode()

    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    facts.pop("Period ends")
    assert facts == {
        "Limit, credits": "10",
        "Spent in this period": "3",
        "Held": "2",
        "Available": "5",
        "Runs in flight": "1 of 100",
        "Counters and rows": "agree",
    }
    assert account.api_keys.get().prefix in page


def test_drift_is_shown_by_its_amount(console: Client, account: Account) -> None:
    builders.make_run("succeeded", account=account, cost=30)
    Account.objects.filter(pk=account.pk).update(spent=37, in_flight=1)

    page = console.get(f"/admin/quotas/account/{account.pk}/change/").content.decode()

    assert "spent +7 micro-units, in_flight +1 runs" in page
    assert f"reconcile_quotas --account {account.name} --fix" in page


def test_members_have_a_page_and_each_change_is_audited(console: Client, account: Account, outsider: Any) -> None:
    added = console.post(
        "/admin/quotas/membership/add/", {"account": account.pk, "user": outsider.pk, "role": "viewer"}
    )
    member = Membership.objects.get(account=account, user=outsider)
    page = f"/admin/quotas/membership/{member.pk}"
    unchanged = console.post(f"{page}/change/", {"role": "viewer"})
    changed = console.post(f"{page}/change/", {"role": "owner"})
    listed = console.get("/admin/quotas/membership/", {"account_is": account.name}).content.decode()
    removed = console.post(f"{page}/delete/", {"post": "yes"})

    assert [answer.status_code for answer in (added, unchanged, changed, removed)] == [302] * 4
    assert listed.count('class="field-account') == 1
    audited = AuditEntry.objects.order_by("id").values_list("action", "target_id", "before", "after")
    assert list(audited) == [
        ("account.member_added", str(account.pk), None, {"user": "outsider", "role": "viewer"}),
        (
            "account.member_changed",
            str(account.pk),
            {"user": "outsider", "role": "viewer"},
            {"user": "outsider", "role": "owner"},
        ),
        ("account.member_removed", str(account.pk), {"user": "outsider", "role": "owner"}, None),
    ]


def test_members_are_audited_alike_on_their_accounts_page(client: Client, account: Account, outsider: Any) -> None:
    client.force_login(builders.make_user("root", is_staff=True, is_superuser=True))
    member = Membership.objects.create(account=account, user=outsider, role="viewer")
    gone = builders.make_user("gone", account=account, role="owner")
    page = f"/admin/quotas/account/{account.pk}/change/"
    fields = dict(client.get(page).context["adminform"].form.initial) | {
        "limit_credits": "100", "max_running": "", "memberships-TOTAL_FORMS": "2", "memberships-INITIAL_FORMS": "2",
    }  # fmt: skip
    for number, (row, role) in enumerate([(member, "viewer"), (Membership.objects.get(user=gone), "owner")]):
        fields |= {f"memberships-{number}-{name}": value for name, value in (
            ("id", row.pk), ("account", account.pk), ("user", row.user_id), ("role", role),
        )}  # fmt: skip

    answers = [client.post(page, fields)]
    nothing = AuditEntry.objects.count()
    answers.append(client.post(page, fields | {"memberships-0-role": "member", "memberships-1-DELETE": "on"}))

    assert [answer.status_code for answer in answers] == [302, 302]
    assert nothing == 0
    assert list(AuditEntry.objects.order_by("action").values_list("action", "before", "after")) == [
        ("account.member_changed", {"user": "outsider", "role": "viewer"}, {"user": "outsider", "role": "member"}),
        ("account.member_removed", {"user": "gone", "role": "owner"}, None),
    ]


# -- manual lines ----------------------------------------------------------------------------------


def test_lines_are_written_with_who_and_why(console: Client, account: Account) -> None:
    run = builders.make_run("succeeded", account=account, cost=3 * MICRO)

    for kind, fields in (
        ("grant", {"amount": "5"}),
        ("adjustment", {"amount": "-0.000001", "reason": "rounded"}),
        ("write-off", {"amount": "1.5", "reason": "our fault", "run_id": str(run.pk)}),
    ):
        Account.objects.filter(pk=account.pk).update(limit=0)
        if kind == "write-off":
            money.adjust(account, amount=9 * MICRO, reason="so that there is something to forgive", actor="test")
        answer = console.post(address(account, kind), form(console, account, kind, **fields), follow=True)
        assert "booked" in said(answer), kind

    assert [line for line in lines(account) if line[0] != "settle"] == [
        ("grant", -5 * MICRO, "a gift"),
        ("adjustment", -1, "rounded"),
        ("adjustment", 9 * MICRO, "so that there is something to forgive"),
        ("write_off", -1_500_000, "our fault"),
    ]
    mine = AuditEntry.objects.filter(actor="operator").order_by("id")
    assert list(mine.values_list("action", "reason")) == [
        ("ledger.grant", "a gift"), ("ledger.adjustment", "rounded"), ("ledger.write_off", "our fault"),
    ]  # fmt: skip
    invariants.check_money([account])


NO_LINE = (
    {"amount": "0"},
    {"amount": "nonsense"},
    {"amount": "NaN"},
    {"amount": "Infinity"},
    {"amount": "1e30"},
    {"amount": "0.0000001"},
    {"amount": "9007199254.740993"},
    {"amount": "-9007199254.740993"},
    {"amount": ""},
    {"reason": ""},
    {"reason": "   "},
    {"reason": "x" * 501},
    {"reason": "bell\x07"},
    {"run_id": "7"},
    {"run_id": "00000000-0000-4000-8000-000000000000"},
    {"form_id": "none"},
)


@pytest.mark.parametrize("kind", KINDS)
def test_f42_what_is_no_amount_no_reason_and_no_run_writes_nothing(
    console: Client, account: Account, kind: str
) -> None:
    before = Account.objects.values().get(pk=account.pk)
    good = form(console, account, kind)

    for fields in NO_LINE:
        answer = console.post(address(account, kind), good | fields)
        assert answer.status_code == 400, fields
        assert b"field-error" in answer.content, fields

    assert (lines(account), Account.objects.values().get(pk=account.pk)) == ([], before)
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("kind", ["grant", "write-off"])
def test_f42_a_negative_grant_takes_nothing_and_gives_nothing(console: Client, account: Account, kind: str) -> None:
    answer = console.post(address(account, kind), form(console, account, kind, amount="-5"))

    assert (answer.status_code, lines(account)) == (400, [])
    assert "Give an amount above 0." in answer.content.decode()


def test_more_than_is_owed_is_not_written_off(console: Client, account: Account) -> None:
    run = builders.make_run("succeeded", account=account, cost=10)

    fields = form(console, account, "write-off", amount="0.000011", run_id=str(run.pk))
    answer = console.post(address(account, "write-off"), fields)

    assert (answer.status_code, len(lines(account))) == (400, 1)


def test_a_form_that_is_sent_twice_acts_once(console: Client, account: Account) -> None:
    fields = form(console, account, "grant")

    first = console.post(address(account, "grant"), fields, follow=True, headers={"x-request-id": "mine"})
    second = console.post(address(account, "grant"), fields, follow=True)
    another = console.post(address(account, "grant"), form(console, account, "grant"), follow=True)

    assert "booked" in said(first)
    assert said(second) == "This form was sent before; nothing was written again."
    assert "booked" in said(another)
    assert len(lines(account)) == AuditEntry.objects.count() == 2
    assert AuditEntry.objects.earliest("id").request_id == "mine"


@pytest.mark.django_db(transaction=True)
def test_a_form_that_is_sent_at_once_acts_once(client: Client, account: Account, operator: Any) -> None:
    clients = [Client() for _ in range(6)]
    for one in clients:
        one.force_login(operator)
    fields = form(clients[0], account, "grant")
    barrier = threading.Barrier(len(clients))
    answers = []

    def send(one: Client) -> None:
        barrier.wait(30)
        try:
            answers.append(one.post(address(account, "grant"), fields).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=[one]) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    # Whoever waited longer than three tries for the account is told so on the form: 400, and nothing of it was written.
    assert set(answers) <= {302, 400}
    assert (len(answers), lines(account)) == (6, [("grant", -5 * MICRO, "a gift")])
    invariants.check_money([account])


def test_each_line_needs_its_own_permission(client: Client, account: Account) -> None:
    permissions = {"grant": "grant", "adjustment": "adjust", "write-off": "write_off"}
    for kind, codename in permissions.items():
        client.force_login(builders.make_operator(f"may-{kind}", permissions=["view_account", codename]))
        page = client.get(f"/admin/quotas/account/{account.pk}/change/").content.decode()

        assert [other for other in KINDS if address(account, other) in page] == [kind]
        assert {other: client.get(address(account, other)).status_code for other in KINDS} == {
            other: 200 if other == kind else 403 for other in KINDS
        }
        refused = [other for other in KINDS if other != kind]
        assert {client.post(address(account, other), {"amount": "5"}).status_code for other in refused} == {403}
    assert lines(account) == []


# -- holds -----------------------------------------------------------------------------------------


def shown_runs(page: Any) -> list[str]:
    return re.findall(r'class="field-run_shown".*?title="([^"]+)"', page.content.decode())


def test_open_holds_are_listed_from_the_oldest_with_the_state_of_their_run(console: Client, account: Account) -> None:
    young, old = (builders.make_run("running", account=account, estimate=5) for _ in range(2))
    ended = builders.make_run("succeeded", account=account)
    Hold.objects.filter(run_id=old.pk).update(created_at=timezone.now() - dt.timedelta(hours=2))

    opened = console.get("/admin/quotas/hold/")

    assert shown_runs(opened) == [str(old.pk), str(young.pk)]
    assert opened.content.decode().count("pill-busy") >= 2
    assert shown_runs(console.get("/admin/quotas/hold/?open_for=3600")) == [str(old.pk)]
    assert shown_runs(console.get("/admin/quotas/hold/?state_is=settled")) == [str(ended.pk)]
    assert len(shown_runs(console.get("/admin/quotas/hold/?state_is=all"))) == 3
    assert shown_runs(console.get("/admin/quotas/hold/?account_is=nobody")) == []


def test_of_a_large_selection_two_hundred_leaked_holds_are_released_at_once(console: Client, account: Account) -> None:
    working = builders.make_run("running", account=account, estimate=1)
    orphans = [Hold(run_id=uuid.uuid4(), account=account, amount=1) for _ in range(201)]
    Hold.objects.bulk_create(orphans)
    Account.objects.filter(pk=account.pk).update(held=202, in_flight=202)
    everything = {"action": "release_selected", "select_across": "1", "_selected_action": "1", "index": "0"}

    first = console.post("/admin/quotas/hold/", everything, follow=True).content.decode()
    second = console.post("/admin/quotas/hold/", everything, follow=True).content.decode()

    assert ["Released: 200." in first, "Left: 1." in first] == [True, True]
    assert ["Released: 1." in second, "Left:" in second] == [True, False]
    assert [hold.run_id for hold in Hold.objects.filter(state="active")] == [working.pk]


def test_a_leaked_hold_is_marked_and_released_and_one_that_is_needed_is_not(console: Client, account: Account) -> None:
    working = builders.make_run("running", account=account, estimate=5)
    leaked = builders.make_run("cancelled", account=account, started=False, estimate=7)
    orphan = uuid.uuid4()
    Hold.objects.filter(run_id=leaked.pk).update(state="active", actual=None, closed_at=None)
    Hold.objects.create(run_id=orphan, account=account, amount=9)
    Account.objects.filter(pk=account.pk).update(held=21, in_flight=3)
    assert console.get("/admin/quotas/hold/").content.decode().count(">leaked<") == 2

    chosen = [Hold.objects.get(run_id=run_id).pk for run_id in (working.pk, leaked.pk, orphan)]
    action = {"action": "release_selected", "_selected_action": chosen, "index": "0"}
    answer = console.post("/admin/quotas/hold/", action, follow=True)

    assert said(answer) == ("Released: 2. | Left as they are: 1. Their runs are not over, or they were closed before.")
    states = {hold.run_id: hold.state for hold in Hold.objects.all()}
    assert states == {working.pk: "active", leaked.pk: "released", orphan: "released"}
    assert Account.objects.values_list("held", "in_flight").get(pk=account.pk) == (5, 1)
    assert set(AuditEntry.objects.values_list("action", "actor")) == {("hold.released", "operator")}
    again = console.post("/admin/quotas/hold/?state_is=all", action, follow=True)
    assert said(again).startswith("Left as they are: 3.")


def test_releasing_needs_its_permission(client: Client, account: Account) -> None:
    leaked = builders.make_run("cancelled", account=account, started=False, estimate=7)
    Hold.objects.filter(run_id=leaked.pk).update(state="active")
    client.force_login(builders.make_operator("viewer", permissions=["view_hold"]))

    page = client.get("/admin/quotas/hold/")
    chosen = Hold.objects.get().pk
    client.post("/admin/quotas/hold/", {"action": "release_selected", "_selected_action": [chosen], "index": "0"})

    assert b"release_selected" not in page.content
    assert Hold.objects.get().state == "active"
