"""Every page of the console, tried by who is no staff, by staff without its permission, and by staff with it alone."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Q
from django.test import Client

from tests import builders
from tests.access.rules import ANY_STAFF, ASKED, FORMS, NEVER, OF_LETTER, PAGES, POSTS, PUBLIC, Call
from tests.access.world import World, ask, signed_in, with_key

pytestmark = pytest.mark.django_db
FORM = {
    "reason": "x", "overlap_hours": "1", "form_id": "00000000-0000-4000-8000-000000000001", "amount": "1",
    "field_value": "1", "model": "m", "input": "1", "output": "1", "password1": "Quite-long-9",
    "password2": "Quite-long-9", "usable_password": "true", "priority": "low",
}  # fmt: skip


@pytest.fixture
def world():
    return World()


def address(world: World, page: str) -> str:
    """Return the page's address with what account A has."""
    rows: dict[str, Any] = {
        "auth/user": world.owner.pk, "quotas/account": world.a.pk, "quotas/apikey": world.key.pk,
        "quotas/ledgerentry": world.grant.pk, "quotas/membership": world.member.pk,
        "workers/bulkoperation": world.operation.pk, "workers/case": world.letter.case_id,
        "workers/deadletter": world.letter.pk, "workers/workerprocess": world.worker.pk, "runs/run": world.failed.pk,
    }  # fmt: skip
    place = "/".join(page.split("/")[:2])
    names = {"run_id": world.failed.pk, "object_id": rows.get(place, 1), "id": world.owner.pk, "url": "nowhere"}
    names |= {"pk": world.kept.pk if "artifacts" in page else rows.get(place), "kind": "grant"}
    names |= {"content_type_id": 1, "app_label": "runs"}
    if page.startswith("runs/run/views/"):
        names["pk"] = world.view.pk
    if "artifacts" in page:
        names["run_id"] = world.succeeded.pk
    filled = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: str(names[found[1]]), page.replace("(?P", ""))
    return "/admin/" + re.sub(r"[\^$]|axes\|.*?\)|\.\*\)", "", filled)


def refusals(page: str) -> set[int]:
    """Return what a page may answer whom it refuses: where there is no row, the way back to the overview too."""
    return {403, 404, 405} if has_row(page) else {302, 403, 404, 405}


def visit(world: World, client: Client, page: str, query: str = "", *, sends: bool = False) -> Any:
    """Ask for a page as it is meant to be asked for; `sends` one that shows a form what the form would send."""
    asked = address(world, page) + world.filled(query)
    if page not in POSTS and not sends:
        return ask(client, "GET", asked, Call("", ""))
    answer = client.post(asked, FORM)
    answer.shown = f"{answer.headers}\n{answer.content.decode()}"
    return answer


def visits(world: World, client: Client, page: str, but: str = "none") -> Iterator[Any]:
    """Yield (query, answer) of all that can be asked of a page, and of its form where it has one, but for a query."""
    for query in (one for one in ("", *ASKED.get(page, ())) if one != but):
        yield query, visit(world, client, page, query)
        if page in FORMS:
            yield f"POST {query}", visit(world, client, page, query, sends=True)


def staff(*permissions: str) -> Client:
    """Sign in staff with these permissions, `app.codename`, and no other."""
    user = User.objects.create(username=f"staff-{User.objects.count()}", is_staff=True)
    wanted = [Q(content_type__app_label=app, codename=name) for app, name in (one.split(".") for one in permissions)]
    for condition in wanted:
        user.user_permissions.add(Permission.objects.get(condition))
    return signed_in(user)


def staff_without(permission: str) -> Client:
    """Sign in staff who may do everything else. Who may change a thing may see it, so that goes with seeing it."""
    app, name = permission.split(".")
    gone = {name, name.replace("view_", "change_")}
    user = User.objects.create(username=f"staff-{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.exclude(content_type__app_label=app, codename__in=gone))
    return signed_in(user)


def test_who_is_no_staff_is_sent_to_the_sign_in(world):
    root = builders.make_user("no staff", is_superuser=True)
    clients = [Client(), with_key(world.raw), signed_in(world.owner), signed_in(world.stranger), signed_in(root)]
    before, wrong = world.rows(), []

    for page in (page for page, rule in PAGES.items() if rule != PUBLIC):
        for number, client in enumerate(clients):
            answer = visit(world, client, page)
            to_login = answer.status_code == 302 and answer["Location"].startswith("/admin/login/")
            if not to_login or world.traces(answer, address(world, page)):
                wrong.append((number, page, answer.status_code, world.traces(answer)))

    assert wrong == []
    assert world.rows() == before


def test_staff_without_any_permission_see_nothing(world):
    client, before, wrong = staff(), world.rows(), []

    for page, rule in PAGES.items():
        if page == "logout/":
            continue
        right = {200, 302} if rule in {ANY_STAFF, PUBLIC} else refusals(page)
        for query, answer in visits(world, client, page):
            if answer.status_code not in right or world.traces(
                answer, address(world, page), world.filled(query.removeprefix("POST "))
            ):
                wrong.append((page, query, answer.status_code, world.traces(answer)))

    assert wrong == []
    assert world.rows() == before


def test_every_other_permission_does_not_open_a_page(world):
    before, wrong = world.rows(), []
    needed = {rule for rule in PAGES.values() if rule not in {ANY_STAFF, NEVER, PUBLIC}}

    for permission in sorted({one for rule in needed for one in rule.split()}):
        client = staff_without(permission)
        for page in (page for page, rule in PAGES.items() if permission in rule.split()):
            for query, answer in visits(world, client, page, but=OF_LETTER):  # of that below
                traces = world.traces(answer, address(world, page), world.filled(query.removeprefix("POST ")))
                if answer.status_code not in refusals(page) or traces:
                    wrong.append((permission, page, query, answer.status_code))

    assert wrong == []
    assert world.rows() == before


def test_the_plan_of_a_letter_needs_the_permission_for_letters(world):
    client, before = staff_without("workers.requeue_deadletter"), world.rows()

    sent = [visit(world, client, "requeue-plan/", OF_LETTER, sends=sends) for sends in (False, True)]

    assert [(answer.status_code, world.traces(answer)) for answer in sent] == [(403, [])] * 2
    assert visit(world, staff("workers.requeue_deadletter"), "requeue-plan/", OF_LETTER).status_code == 200
    assert world.rows() == before


def test_the_stated_permission_alone_opens_its_page(world):
    """Sorted by what they do: what ends or moves a thing comes last."""
    wrong = {}

    for page, rule in sorted(PAGES.items(), key=lambda item: item[0] in POSTS):
        if rule in {ANY_STAFF, NEVER, PUBLIC} or not has_row(page):
            continue
        answer = visit(world, staff(*rule.split()), page)
        if answer.status_code not in {200, 302} or "/login/" in answer.headers.get("Location", ""):
            wrong[page] = answer.status_code

    assert wrong == {}


def has_row(page: str) -> bool:
    """Whether account A has a row for the page: of groups, prices, workers and sign-in records there is none."""
    return "object_id" not in page or page.startswith(
        ("auth/user", "quotas/account", "quotas/apikey", "quotas/ledger", "quotas/member")
    )


def test_nobody_is_served_what_is_for_nobody(world):
    client, wrong = signed_in(builders.make_user("root", is_staff=True, is_superuser=True)), {}

    for page in (page for page, rule in PAGES.items() if rule == NEVER):
        answer = visit(world, client, page)
        if answer.status_code not in refusals(page):
            wrong[page] = answer.status_code

    assert wrong == {}
