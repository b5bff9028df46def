"""The list of runs: filters in its address, pages by keys, saved views, and the JSON that keeps its rows up to date."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from quotas.models import Account, AuditEntry
from runs.admin.runs import RunAdmin
from runs.ids import new_run_id
from runs.models import Run, SavedView
from tests import builders

pytestmark = pytest.mark.django_db
LIST = "/admin/runs/run/"
PAGE = 3
MASKED: dict[str, Any] = {
    "error": {"type": "KeyError", "message": "built to fail"},
    "tags": ["secret"],
    "metadata": {"customer": "acme"},
    "session": "talk",
}
LOOKING_INTO_PAYLOADS = (
    {"error": "built"},
    {"tag": "secret"},
    {"metadata": "customer=acme"},
    {"metadata": "customer"},
    {"q": "built to"},
    {"q": "secret"},
    {"q": "customer=acme"},
)


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"), backend="django.contrib.auth.backends.ModelBackend")
    return client


def staff(name: str, *permissions: str) -> Client:
    client = Client()
    operator = builders.make_operator(name, permissions=["view_run", *permissions])
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    return client


def ids_on(page: str) -> list[str]:
    return re.findall(r'data-row-id="([^"]+)"', page)


def link(page: str, text: str) -> str:
    found = re.search(rf'<a href="([^"]*)"[^>]*>{text}</a>', page)
    return "" if found is None else found[1].replace("&amp;", "&")


def test_pages_lead_to_older_and_back_to_newer_runs(root: Client, account: Account, monkeypatch: Any) -> None:
    monkeypatch.setattr(RunAdmin, "list_per_page", PAGE)
    ids = [str(builders.make_run(account=account).pk) for _ in range(2 * PAGE + 1)][::-1]

    pages = [root.get(LIST, {"state": "queued"}).content.decode()]
    while link(pages[-1], "Older"):
        pages.append(root.get(LIST + link(pages[-1], "Older")).content.decode())
    back = root.get(LIST + link(pages[2], "Newer")).content.decode()
    first = root.get(LIST + link(back, "Newer")).content.decode()

    assert [ids_on(page) for page in pages] == [ids[:PAGE], ids[PAGE : 2 * PAGE], ids[2 * PAGE :]]
    assert [ids_on(page) for page in (back, first)] == [ids[PAGE : 2 * PAGE], ids[:PAGE]]
    assert "state=queued" in link(pages[0], "Older")
    assert (link(pages[0], "Newer"), link(first, "Newer")) == ("", "")


def test_no_page_counts_or_skips(root: Client, account: Account, django_assert_max_num_queries: Any) -> None:
    run = builders.make_run(account=account)

    with django_assert_max_num_queries(20) as asked:
        root.get(LIST, {"older_than": new_run_id()})
        root.get(LIST, {"newer_than": run.pk})

    statements = [query["sql"].replace("`", '"') for query in asked.captured_queries]
    of_runs = [sql for sql in statements if sql.startswith('SELECT "runs_run"')]
    assert len(of_runs) == 3  # one newer than the newest run leads to the first page
    assert not any("COUNT(" in sql or "OFFSET" in sql or "input_json" in sql for sql in of_runs)


@pytest.mark.parametrize("query", [{"older_than": "x"}, {"newer_than": "1"}])
def test_a_place_that_is_none_is_refused(root: Client, query: dict[str, str]) -> None:
    assert root.get(LIST, query).status_code == 400


@pytest.mark.parametrize(
    ("query", "told"),
    [({"state": "gone"}, "must be of scheduled"), ({"p": "3"}, "is unknown here"), ({"from": "x"}, "24h or 7d")],
)
def test_a_wrong_filter_is_explained_and_shows_no_run(
    root: Client, account: Account, query: dict[str, str], told: str
) -> None:
    builders.make_run(account=account)

    page = root.get(LIST, query)

    assert page.status_code == 400
    assert told in page.content.decode()
    assert ids_on(page.content.decode()) == []


def test_filters_in_force_are_shown_and_taken_away_one_by_one(root: Client, account: Account) -> None:
    builders.make_run(account=account, tags=["<b>x"])

    page = root.get(LIST, {"state": "queued", "tag": "<b>x"}).content.decode()
    chips = re.search(r'<ul class="filter-chips".*?</ul>', page, re.DOTALL)

    assert chips is not None
    assert re.findall(r'<a href="([^"]*)" title', chips[0]) == ["?tag=%3Cb%3Ex", "?state=queued"]
    assert "&lt;b&gt;x" in chips[0]
    assert "<b>x" not in page
    assert len(ids_on(page)) == 1


def test_a_search_says_as_what_it_was_understood(root: Client, account: Account) -> None:
    builders.make_run("failed", account=account)

    assert "newest 2,000 failed runs" in root.get(LIST, {"q": "built"}).content.decode()
    assert "the id of a run" in root.get(LIST, {"q": str(Run.objects.get().pk)}).content.decode()


def test_texts_of_errors_are_not_told_to_who_may_not_see_payloads(account: Account) -> None:
    run = builders.make_run("failed", account=account, **MASKED)
    builders.make_run("failed", account=account, error={"type": "Other", "message": "other words"})
    client, seer = staff("viewer"), staff("seer", "view_payload")

    for query in LOOKING_INTO_PAYLOADS:
        answer = client.get(LIST, query)
        assert (answer.status_code, ids_on(answer.content.decode())) == (400, [])
        assert "may see payloads" in answer.content.decode()
        assert "Searched as" not in answer.content.decode(), "which kind it is would tell that there is one"
        assert ids_on(seer.get(LIST, query).content.decode()) == [str(run.pk)]
    for query in ({}, {"q": str(run.pk)}, {"q": "talk"}, {"session": "talk"}):
        assert str(run.pk) in ids_on(client.get(LIST, query).content.decode())
    page = client.get(LIST).content.decode()
    assert [name for name in ("error", "tag", "metadata") if f'name="{name}"' in page] == []


def test_the_json_of_rows_tells_nothing_of_what_the_list_does_not(account: Account) -> None:
    builders.make_run("failed", account=account, **MASKED)
    client, seer = staff("viewer"), staff("seer", "view_payload")
    from_all = {"newer_than": "0" * 32}

    for query in LOOKING_INTO_PAYLOADS:
        right = client.get(LIST + "rows.json", query | from_all)
        wrong = client.get(LIST + "rows.json", {key: f"{value}x" for key, value in query.items()} | from_all)
        assert (right.status_code, right.content) == (wrong.status_code, wrong.content) == (403, right.content)
        assert seer.get(LIST + "rows.json", query | from_all).json()["newer"]["count"] == 1
    assert client.get(LIST + "rows.json", {"session": "talk"} | from_all).json()["newer"]["count"] == 1


def test_rows_are_told_as_they_are_now_and_new_ones_are_counted(root: Client, account: Account) -> None:
    old, run = [builders.make_run(account=account) for _ in range(2)]
    page = root.get(LIST, {"state": "queued"}).content.decode()
    newest = re.search(r'data-newest="([^"]*)"', page)
    Run.objects.filter(pk=old.pk).update(state="running", worker="w<1>", attempt=2)
    for _ in range(3):
        builders.make_run(account=account)
    builders.make_run("succeeded", account=account)

    assert newest is not None
    assert newest[1] == str(run.pk)
    told = root.get(LIST + "rows.json", {"ids": f"{old.pk},{new_run_id()}", "newer_than": newest[1], "state": "queued"})
    assert told.json()["newer"] == {"count": 3, "shown": "3"}
    row = told.json()["rows"][str(old.pk)]
    assert list(told.json()["rows"]) == [str(old.pk)]
    assert (row["state"], row["tone"], row["cells"]["worker"], row["cells"]["attempt"]) == (
        "running",
        "busy",
        "w<1>",
        "2 of 1",
    )


def test_a_page_of_older_runs_announces_no_new_ones(root: Client, account: Account) -> None:
    builders.make_run(account=account)

    assert 'data-newest=""' in root.get(LIST, {"older_than": new_run_id()}).content.decode()
    assert f'data-newest="{"0" * 8}-' in root.get(LIST, {"state": "failed"}).content.decode()


@pytest.mark.parametrize(
    ("query", "status"), [({"ids": "1"}, 400), ({"newer_than": "x"}, 400), ({"gone": "1", "newer_than": "0" * 32}, 400)]
)
def test_the_json_of_rows_refuses_what_it_does_not_know(root: Client, query: dict[str, str], status: int) -> None:
    assert root.get(LIST + "rows.json", query).status_code == status


# -- saved views -------------------------------------------------------------------------------------------------------
def test_a_view_is_saved_shown_renamed_and_deleted(root: Client) -> None:
    query = "state=failed&from=1h"

    saved = root.post(LIST + "views/save/", {"name": " Mine\n too ", "query": "?" + query + "&older_than=1"})
    again = root.post(LIST + "views/save/", {"name": "Mine too", "query": query})
    view = SavedView.objects.get()
    shown = root.get(f"{LIST}?{query}").content.decode()
    root.post(f"{LIST}views/{view.pk}/rename/", {"name": "Other"})
    renamed = SavedView.objects.get().name
    root.post(f"{LIST}views/{view.pk}/delete/")

    assert (saved.status_code, again.status_code) == (302, 302)
    assert (view.name, view.query, view.is_shared, renamed) == ("Mine too", query, False, "Other")
    assert ">Mine too</a>" in shown
    assert not SavedView.objects.exists()
    assert not AuditEntry.objects.exists(), "one's own view is nobody else's business"


def test_a_shared_view_is_everybodys_and_audited(root: Client) -> None:
    root.post(LIST + "views/save/", {"name": "Ours", "query": "state=failed", "shared": "on"})
    view = SavedView.objects.get()
    other = staff("other", "save_view")

    assert 'href="?state=failed"' in other.get(LIST).content.decode()
    other.post(f"{LIST}views/{view.pk}/rename/", {"name": "Mine now"})
    other.post(f"{LIST}views/{view.pk}/delete/")
    assert SavedView.objects.get().name == "Ours"
    root.post(f"{LIST}views/{view.pk}/rename/", {"name": "Still ours"})
    root.post(f"{LIST}views/{view.pk}/delete/")
    acts = list(AuditEntry.objects.order_by("pk").values_list("action", "actor", "target_id"))
    assert acts == [(f"view.{act}", "root", str(view.pk)) for act in ("save", "rename", "delete")]


def test_a_view_of_ones_own_is_not_shown_to_others(root: Client) -> None:
    root.post(LIST + "views/save/", {"name": "Private", "query": "state=failed"})

    assert "Private" not in staff("other").get(LIST).content.decode()


@pytest.mark.parametrize(
    "form",
    [
        {"name": "", "query": "state=failed"},
        {"name": "x", "query": "gone=1"},
        {"name": "x", "query": "tag=" + "y" * 400},
    ],
)
def test_a_view_without_a_name_or_with_a_wrong_filter_is_not_saved(root: Client, form: dict[str, str]) -> None:
    assert root.post(LIST + "views/save/", form).status_code == 302
    assert not SavedView.objects.exists()


def test_a_name_taken_is_refused_and_both_views_stay(root: Client) -> None:
    for name in ("one", "two"):
        root.post(LIST + "views/save/", {"name": name, "query": "state=failed"})

    root.post(f"{LIST}views/{SavedView.objects.get(name='two').pk}/rename/", {"name": "one"})

    assert sorted(SavedView.objects.values_list("name", flat=True)) == ["one", "two"]


def test_sharing_needs_its_own_permission_and_saving_another() -> None:
    viewer, saver = staff("viewer"), staff("saver", "save_view")
    form = {"name": "x", "query": "state=failed"}

    assert viewer.post(LIST + "views/save/", form).status_code == 403
    assert saver.post(LIST + "views/save/", form | {"shared": "on"}).status_code == 403
    assert saver.get(LIST + "views/save/").status_code == 405
    assert not SavedView.objects.exists()
    assert "Save as a view" not in viewer.get(LIST, {"state": "failed"}).content.decode()


def test_the_shipped_views_are_queries_the_list_knows(root: Client) -> None:
    page = root.get(LIST).content.decode()
    views = re.search(r'<nav class="saved-views".*?</nav>', page, re.DOTALL)

    assert views is not None
    links = re.findall(r'<a href="(\?[^"]+)"', views[0])
    assert len(links) == 5
    assert {root.get(LIST + one.replace("&amp;", "&")).status_code for one in links} == {200}


# -- selections --------------------------------------------------------------------------------------------------------
def test_a_selection_leads_to_the_plan_by_its_ids_and_all_that_match_by_the_filter(
    root: Client, account: Account
) -> None:
    runs = [builders.make_run(account=account) for _ in range(3)]
    ids = [str(run.pk) for run in runs[:2]]
    form = {"action": "plan_cancel", "index": "0", "_selected_action": ids}

    some = root.post(f"{LIST}?state=queued", form)
    everything = root.post(f"{LIST}?state=queued", form | {"select_across": "1"})

    assert (some.status_code, everything.status_code) == (302, 302)
    assert parse_qs(urlsplit(some["Location"]).query) == {
        "kind": ["cancel"],
        "source": ["runs"],
        "ids": [",".join(ids)],
    }
    assert parse_qs(urlsplit(everything["Location"]).query) == {
        "kind": ["cancel"],
        "source": ["runs"],
        "state": ["queued"],
    }


def test_all_that_match_what_is_no_filter_are_not_planned(root: Client, account: Account) -> None:
    builders.make_run(account=account)
    form = {"action": "plan_cancel", "index": "0", "select_across": "1", "_selected_action": [new_run_id()]}

    assert root.post(f"{LIST}?worker_is=a", form).status_code == 400


def test_a_selection_of_what_is_no_run_is_refused(root: Client, account: Account) -> None:
    builders.make_run(account=account)

    assert root.post(LIST, {"action": "plan_cancel", "index": "0", "_selected_action": ["1"]}).status_code == 400
