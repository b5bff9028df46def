"""What operators do in the console: each act is a POST with a permission, one service call, and an audit line."""

import uuid
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client

from quotas.models import MICRO, Account, ApiKey, AuditEntry, Membership, PriceBook
from quotas.prices import PriceTable, install_default_prices
from runs.models import Run
from runs.states import RunState
from tests import builders
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db


@pytest.fixture
def console(client: Client, operator: Any) -> Client:
    client.force_login(operator)
    return client


def said(answer: Any) -> str:
    """Return the messages a followed answer shows."""
    return " | ".join(str(message) for message in answer.context["messages"])


def acts() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


def requeued(console: Client, reason: str = "again", **target: Any) -> Any:
    """Start the plan of the requeue of a run or a letter, and return the page it leads to."""
    address = f"/admin/requeue-plan/?{urlencode(target)}"
    return console.post(address, {"reason": reason, "form_id": uuid.uuid4()}, follow=True)


# -- permissions -----------------------------------------------------------------------------------


def test_every_act_needs_its_permission_and_a_post(client: Client, account: Account) -> None:
    run = builders.make_run("failed", account=account)
    letter = builders.make_dead_letter(run)
    key, _ = builders.make_api_key(account)
    addresses = [
        f"/admin/runs/run/{run.pk}/cancel/",
        f"/admin/workers/deadletter/{letter.pk}/discard/",
        f"/admin/requeue-plan/?run={run.pk}",
        f"/admin/requeue-plan/?letter={letter.pk}",
        "/admin/submit/",
        "/admin/quotas/price/set/",
        "/admin/quotas/apikey/add/",
        f"/admin/quotas/apikey/{key.pk}/rotate/",
        f"/admin/quotas/apikey/{key.pk}/revoke/",
    ]
    views = ["view_run", "view_payload", "view_deadletter", "view_price", "view_apikey"]
    client.force_login(builders.make_operator("viewer", permissions=views))

    assert {address: client.post(address, {"reason": "x"}).status_code for address in addresses} == dict.fromkeys(
        addresses, 403
    )
    client.force_login(builders.make_operator("everything"))
    assert {address: client.get(address).status_code for address in addresses[:2]} == dict.fromkeys(addresses[:2], 405)
    assert (acts(), Run.objects.count()) == ([], 1)


def test_an_act_without_the_csrf_token_is_refused(operator: Any, account: Account) -> None:
    run = builders.make_run(account=account)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)

    assert strict.post(f"/admin/runs/run/{run.pk}/cancel/").status_code == 403


def test_the_buttons_are_only_there_for_who_may_press_them(client: Client, account: Account) -> None:
    run = builders.make_run("failed", account=account)
    client.force_login(builders.make_operator("viewer", permissions=["view_run"]))
    facts = client.get(f"/admin/runs/run/{run.pk}/facts.json").json()
    client.force_login(builders.make_operator("requeuer", permissions=["view_run", "requeue_run"]))
    more = client.get(f"/admin/runs/run/{run.pk}/facts.json").json()

    assert (facts["may_cancel"], facts["may_requeue"]) == (False, False)
    assert (more["may_cancel"], more["may_requeue"]) == (False, True)


# -- runs ------------------------------------------------------------------------------------------


def test_cancel_of_a_queued_run(console: Client, account: Account) -> None:
    run = builders.make_run(account=account)

    answer = console.post(f"/admin/runs/run/{run.pk}/cancel/", {"reason": "not\0 needed"}, follow=True)

    run.refresh_from_db()
    assert (run.state, said(answer)) == (RunState.CANCELLED, "The run is cancelled.")
    assert AuditEntry.objects.get().reason == "not needed"


def test_cancel_of_an_ended_run_says_so(console: Client, account: Account) -> None:
    run = builders.make_run("succeeded", account=account)

    answer = console.post(f"/admin/runs/run/{run.pk}/cancel/", follow=True)

    assert answer.status_code == 200
    assert "nothing" in said(answer)


def test_requeue_leads_to_the_new_run_and_a_second_one_to_the_first(console: Client, account: Account) -> None:
    run = builders.make_run("failed", account=account)

    first = requeued(console, run=run.pk)
    second = requeued(console, run=run.pk)

    new = Run.objects.exclude(pk=run.pk).get()
    assert first.redirect_chain[0][0] == f"/admin/runs/run/{new.pk}/change/"
    assert f"as {new.pk}" in said(second)


def test_a_refusal_is_a_message(console: Client, account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(max_in_flight=0)
    run = builders.make_run("failed", account=account)

    answer = requeued(console, run=run.pk)

    assert answer.status_code == 200
    assert "its limit is 0" in answer.content.decode()


def test_an_act_on_a_run_that_is_not_there(console: Client) -> None:
    address = "/admin/runs/run/00000000-0000-0000-0000-000000000000"

    assert console.post(f"{address}/cancel/").status_code < 500
    assert requeued(console, run="00000000-0000-0000-0000-000000000000").status_code == 404


# -- dead letters ----------------------------------------------------------------------------------


def test_requeue_of_a_dead_letter_twice_makes_one_run(console: Client, account: Account) -> None:
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))

    first, second = (requeued(console, letter=letter.pk, reason="fixed") for _ in range(2))

    letter.refresh_from_db()
    assert (letter.state, letter.resolved_by, letter.resolved_reason) == ("requeued", "operator", "fixed")
    assert Run.objects.count() == 2
    assert said(first) == "Requeued: this is the new run."
    assert said(second).startswith("Not requeued: ")


def test_discard_needs_a_reason(console: Client, account: Account) -> None:
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))
    address = f"/admin/workers/deadletter/{letter.pk}/discard/"

    without = console.post(address, {"reason": " "}, follow=True)
    state_without = DeadLetter.objects.get().state
    console.post(address, {"reason": "known"})

    assert ("Say why" in said(without), state_without) == (True, "open")
    assert DeadLetter.objects.get().state == "discarded"


def test_a_dead_letter_without_a_run_can_only_be_discarded(console: Client, account: Account) -> None:
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))
    DeadLetter.objects.filter(pk=letter.pk).update(run=None, payload="not { json")
    address = f"/admin/workers/deadletter/{letter.pk}/"

    page = console.get(f"{address}change/").content
    plan = console.get("/admin/requeue-plan/", {"letter": letter.pk}).content

    assert (b'id="requeue-plan"' in page, b'id="discard-form"' in page) == (False, True)
    assert b"There is nothing to do." in plan


def test_a_plan_with_nothing_to_do_leads_to_what_there_is(console: Client, account: Account) -> None:
    run = builders.make_run("failed", account=account)
    requeued(console, run=run.pk)
    new = Run.objects.exclude(pk=run.pk).get()
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))
    console.post(f"/admin/workers/deadletter/{letter.pk}/discard/", {"reason": "known"})

    after_requeue = console.get(f"/admin/requeue-plan/?run={run.pk}").content.decode()
    after_discard = console.get("/admin/requeue-plan/", {"letter": letter.pk}).content.decode()

    assert f'<a href="/admin/runs/run/{new.pk}/change/">the new run</a>' in after_requeue
    assert f'<a href="/admin/workers/deadletter/{letter.pk}/change/">Restore it first.</a>' in after_discard


def test_a_plan_of_one_offers_the_priorities_of_its_account(console: Client, account: Account) -> None:
    Account.objects.filter(pk=account.pk).update(max_priority="normal")
    run = builders.make_run("failed", account=account)
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))

    for query in (f"run={run.pk}", f"letter={letter.pk}"):
        form = console.get(f"/admin/requeue-plan/?{query}").context["form"]
        assert [value for value, _ in form.fields["priority"].choices] == ["", "normal", "low"]


def test_runs_that_succeeded_are_offered_in_plans_of_runs_only(console: Client, account: Account) -> None:
    builders.make_dead_letter(builders.make_run("failed", account=account))
    plans = [console.get("/admin/bulk-plan/", {"kind": "requeue", "source": one}) for one in ("runs", "letters")]

    assert ["with_succeeded" in plan.context["form"].fields for plan in plans] == [True, False]
    assert all("is refused for that run" in plan.context["form"].fields["priority"].help_text for plan in plans)


def test_a_dead_letter_whose_run_was_requeued_is_shown_as_requeued(console: Client, account: Account) -> None:
    run = builders.make_run("failed", account=account)
    letter = builders.make_dead_letter(run)
    requeued(console, run=run.pk)

    is_open = console.get("/admin/workers/deadletter/?state_is=open").content
    done = console.get("/admin/workers/deadletter/?state_is=requeued").content
    page = console.get(f"/admin/workers/deadletter/{letter.pk}/change/").content

    link = f"/admin/workers/deadletter/{letter.pk}/change/".encode()
    assert (link in is_open, link in done, b'id="requeue-plan"' in page) == (False, True, False)


def test_a_selection_that_is_none_is_refused(console: Client, account: Account) -> None:
    builders.make_dead_letter(builders.make_run("failed", account=account))
    form = {"action": "plan_requeue", "_selected_action": ["x", "9" * 40], "index": "0"}

    assert console.post("/admin/workers/deadletter/", form).status_code == 400


# -- money -----------------------------------------------------------------------------------------


def account_form(account: Account, **changes: Any) -> dict[str, Any]:
    inline = {f"memberships-{name}": "0" for name in ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS")}
    return {
        "name": account.name,
        "limit_credits": "100",
        "period": account.period,
        "timezone": account.timezone,
        "overdraft_rule": account.overdraft_rule,
        "max_in_flight": account.max_in_flight,
        "max_priority": account.max_priority,
        **inline,
        "memberships-MAX_NUM_FORMS": "1000",
        **changes,
    }


def test_a_changed_limit_is_audited_and_leaves_the_counters_alone(console: Client, account: Account) -> None:
    address = f"/admin/quotas/account/{account.pk}/change/"
    console.get(address)
    Account.objects.filter(pk=account.pk).update(held=7, spent=8, in_flight=9)  # while the form is open

    answer = console.post(address, account_form(account, limit_credits="2.5", max_running="3"))

    account.refresh_from_db()
    assert answer.status_code == 302
    assert (account.limit, account.held, account.spent, account.in_flight) == (2_500_000, 7, 8, 9)
    assert account.max_running == 3
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.before, entry.after) == (
        "account.changed",
        {"limit": 100 * MICRO, "max_running": None},
        {"limit": 2_500_000, "max_running": 3},
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"limit_credits": "-1"},
        {"limit_credits": "99999999999999999999"},
        {"limit_credits": "NaN"},
        {"limit_credits": "0.0000001"},
        {"timezone": "Mars/Olympus"},
        {"timezone": "../../etc/passwd"},
        {"max_in_flight": "99999999999999"},
        {"max_running": "-1"},
        {"name": ""},
    ],
    ids=str,
)
def test_a_bad_account_form_is_an_error_at_the_field(console: Client, account: Account, changes: Any) -> None:
    answer = console.post(f"/admin/quotas/account/{account.pk}/change/", account_form(account, **changes))

    assert (answer.status_code, acts()) == (200, [])
    assert answer.context["adminform"].form.errors


def test_a_new_account_and_a_new_member_are_audited(client: Client, outsider: Any) -> None:
    client.force_login(builders.make_user("root", is_staff=True, is_superuser=True))
    member = {"memberships-TOTAL_FORMS": "1", "memberships-0-user": outsider.pk, "memberships-0-role": "viewer"}

    answer = client.post("/admin/quotas/account/add/", account_form(Account(name="new"), **member))

    assert answer.status_code == 302
    assert Membership.objects.filter(account__name="new", user=outsider, role="viewer").exists()
    assert acts() == ["account.created", "account.member_added"]


def test_a_new_key_is_shown_once_works_and_can_be_revoked(console: Client, account: Account) -> None:
    form = {"account": account.pk, "name": "ci", "scopes": ["read", "submit"], "expires_at": ""}

    page = console.post("/admin/quotas/apikey/add/", form)
    raw = page.context["raw"]
    key = ApiKey.objects.get()
    used = console.get("/api/v1/quota", headers={"Authorization": f"Bearer {raw}"})
    later = [console.get(f"/admin/quotas/apikey/{path}").content for path in ("", f"{key.pk}/change/")]
    selection = {"action": "revoke_selected", "_selected_action": [key.pk], "index": "0"}
    asked = console.post("/admin/quotas/apikey/", selection)
    console.post("/admin/quotas/apikey/", selection | {"confirmed": "1", "reason": "leaked"})
    refused = console.get("/api/v1/quota", headers={"Authorization": f"Bearer {raw}"})

    assert (raw.encode() in page.content, any(raw.encode() in text for text in later)) == (True, False)
    assert "no-store" in page["Cache-Control"]
    assert (used.status_code, refused.status_code) == (200, 401)
    assert b"1 selected" in asked.content
    assert acts() == ["api_key.created", "api_key.revoked"]
    assert AuditEntry.objects.get(action="api_key.revoked").reason == "leaked"
    assert not any(raw.split("_", 2)[2] in str(row) for row in AuditEntry.objects.values())


def test_of_a_large_selection_two_hundred_keys_are_revoked_at_once(console: Client, account: Account) -> None:
    for _ in range(201):
        builders.make_api_key(account)
    everything = {"action": "revoke_selected", "select_across": "1", "index": "0", "confirmed": "1"}
    everything |= {"_selected_action": str(ApiKey.objects.latest("pk").pk), "reason": "leaked"}

    first = console.post("/admin/quotas/apikey/", everything, follow=True)
    left = ApiKey.objects.filter(revoked_at=None).count()
    second = console.post("/admin/quotas/apikey/", everything, follow=True)

    assert "Revoked: 200." in first.content.decode()
    assert "Left: 1." in first.content.decode()
    assert (left, ApiKey.objects.filter(revoked_at=None).count()) == (1, 0)
    assert "Left:" not in second.content.decode()


def test_a_key_is_rotated_on_its_page_and_revoked_there_with_a_reason(console: Client, account: Account) -> None:
    key, _ = builders.make_api_key(account)
    page = f"/admin/quotas/apikey/{key.pk}/"
    buttons = console.get(f"{page}change/").content

    made = console.post(f"{page}rotate/", {"overlap_hours": "2", "reason": "spring"})
    third = console.post(f"{page}rotate/", {"overlap_hours": "2"}, follow=True)
    odd = console.post(f"{page}rotate/", {"overlap_hours": "-1"}, follow=True)
    without_reason = console.post(f"{page}revoke/", {"reason": " "}, follow=True)
    revoked = console.post(f"{page}revoke/", {"reason": "done"}, follow=True)

    assert b"rotate-form" in buttons
    assert made.context["raw"].encode() in made.content
    assert "no-store" in made["Cache-Control"]
    assert "2 live keys" in said(third)
    assert "0 to 2160" in said(odd)
    assert "Say why" in said(without_reason)
    assert said(revoked) == "Revoked: 1."
    assert (b"rotate-form" in revoked.content, b"revoke-form" in revoked.content) == (False, False)
    assert acts() == ["api_key.rotated", "api_key.revoked"]
    assert console.post("/admin/quotas/apikey/9999999/revoke/", {"reason": "x"}).status_code == 404


def test_a_key_needs_a_scope_and_a_future_end(console: Client, account: Account) -> None:
    form = {"account": account.pk, "name": "ci", "scopes": [], "expires_at": "2001-01-01T00:00"}

    page = console.post("/admin/quotas/apikey/add/", form)

    assert set(page.context["form"].errors) == {"scopes", "expires_at"}
    assert not ApiKey.objects.exists()


def test_set_prices(console: Client) -> None:
    install_default_prices()

    answer = console.post("/admin/quotas/price/set/", {"model": "own-model", "input": "5", "output": "7"})
    empty = console.post("/admin/quotas/price/set/", {"model": "own-model"})
    huge = console.post("/admin/quotas/price/set/", {"model": "own-model", "input": 2**60})

    PriceTable.forget()
    assert (answer.status_code, empty.status_code, huge.status_code) == (302, 200, 200)
    assert PriceTable.current().cost("own-model", {"input": 2_000_000, "output": 1_000_000}) == 17
    assert PriceBook.objects.count() == 2
    page = console.get("/admin/quotas/price/?q=own").content
    assert b"own-model" in page
    assert b"Credits a million tokens" in page
    assert b"0.000005" in page
