"""The roles that ship: a viewer can act on nothing, and who may not see payloads is shown none on any page."""

import re

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Group, Permission, User
from django.contrib.sessions.models import Session
from django.test import RequestFactory

from agentops.console import roles
from tests import builders
from tests.access.rules import ANY_STAFF, ASKED, FORMS, NEVER, NEWEST, PAGES, POSTS, PUBLIC
from tests.access.test_console_routes import FORM, refusals, visit, visits
from tests.access.world import World, signed_in

pytestmark = pytest.mark.django_db
PAYLOADS = {
    "metadata name", "metadata", "input", "error type", "error message", "traceback", "result", "event",
    "artifact name", "artifact", "letter", "payload", "tag",
}  # fmt: skip

SUPERUSERS_ALONE = {"auth.delete_user", "auth.delete_group"}  # and the record of sign-ins


@pytest.fixture
def world():
    return World()


@pytest.fixture
def make_staff():
    """Return a function that signs in staff with a role, as the migrations of a new instance made it."""
    Group.objects.all().delete()
    roles.give(apps)

    def made(role):
        user = builders.make_user(role, is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        return signed_in(user)

    return made


def all_rows():
    """Return every row of every table; a visit alone may touch the session."""
    models = [model for model in apps.get_models() if model is not Session and not model._meta.proxy]
    return {model: list(model._default_manager.order_by("pk").values()) for model in models}


def test_every_permission_of_a_role_is_there(make_staff):
    for role, codes in roles.ROLES.items():
        given = Group.objects.get(name=role).permissions.values_list("content_type__app_label", "codename")
        assert {f"{app}.{name}" for app, name in given} == set(codes), role
    assert "runs.view_payload" not in roles.OPERATOR | roles.FINANCE


def test_the_admin_role_has_what_a_page_needs_but_for_what_is_left_to_superusers():
    needed = {code for rule in PAGES.values() if "." in rule for code in rule.split()}

    assert {code for code in needed - roles.ADMIN if not code.startswith("axes.")} == SUPERUSERS_ALONE


def test_what_an_administrator_took_away_stays_away_and_a_new_permission_is_given(make_staff):
    operator = Group.objects.get(name="operator")
    operator.permissions.clear()

    roles.give(apps)
    assert not operator.permissions.exists()

    roles.give(apps, {"runs.cancel_run", "runs.view_payload"})
    assert [row.codename for row in operator.permissions.all()] == ["cancel_run"]


@pytest.mark.parametrize("role", roles.ROLES)
def test_a_role_opens_its_pages_and_is_refused_by_every_other(world, make_staff, role):
    client, wrong = make_staff(role), {}
    shut = {page: rule for page, rule in PAGES.items() if not may(role, rule)}
    before = all_rows()

    for page in shut:
        for query, answer in visits(world, client, page) if page != "logout/" else ():
            if answer.status_code not in refusals(page):
                wrong[page, query] = answer.status_code

    assert wrong == {}
    assert all_rows() == before
    assert any(page in POSTS for page in shut) or role == "admin"


def may(role, rule):
    return rule in {ANY_STAFF, PUBLIC} or (rule != NEVER and set(rule.split()) <= roles.ROLES[role])


def test_a_viewer_can_act_on_nothing(world, make_staff):
    """Every act that is a page of its own, and every action of every list."""
    client, wrong = make_staff("viewer"), {}
    before = all_rows()

    for page in sorted(POSTS | FORMS):
        for query in ("", *ASKED.get(page, ())):
            answer = visit(world, client, page, query, sends=True)
            if answer.status_code not in {403, 404, 405}:
                wrong[page, query] = answer.status_code
    for model, page in admin.site._registry.items():
        place = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        row = model._default_manager.first()
        for action in names_of_actions(page):
            chosen = {ACTION_CHECKBOX_NAME: str(row.pk if row else 1), "action": action, "confirmed": "1", **FORM}
            client.post(place, chosen)
        for path in ("add/", f"{row.pk if row else 1}/change/", f"{row.pk if row else 1}/delete/"):
            client.post(f"{place}{path}", {"post": "yes", "_save": "Save", **FORM})

    assert wrong == {}
    assert all_rows() == before


def names_of_actions(page):
    request = RequestFactory().get("/")
    request.user = builders.make_user(f"root-{page.opts.label}", is_staff=True, is_superuser=True)
    names = set(page.get_actions(request))
    request.user.delete()
    return names


def test_who_may_not_see_payloads_is_shown_none(world):
    user = builders.make_user("nosy", is_staff=True)
    user.user_permissions.set(Permission.objects.exclude(codename="view_payload"))
    client, seen = signed_in(user), {}
    assert set(world.marks) >= PAYLOADS

    for page in (page for page in PAGES if page not in POSTS | {"logout/"}):
        for query in ("", *ASKED.get(page, ())):
            traces = PAYLOADS & set(world.traces(visit(world, client, page, query)))
            if traces:
                seen[page, query] = traces

    assert seen == {}


def test_who_may_not_see_payloads_finds_nothing_by_them(world):
    """A right guess is answered as a wrong one: the run is not named, and no count differs."""
    user = builders.make_user("nosy", is_staff=True)
    user.user_permissions.set(Permission.objects.exclude(codename="view_payload"))
    seer = signed_in(builders.make_user("root", is_staff=True, is_superuser=True))

    assert told_by(world, signed_in(user)) == set()
    assert told_by(world, seer) == set(GUESSED), "so that the line above can fail"


KEYS = ("q", "error", "tag", "metadata")
GUESSED = [f"runs/run/?{key}=" for key in KEYS] + [f"runs/run/rows.json?{NEWEST}&{key}=" for key in KEYS]
GUESSED += [f"bulk-plan/?kind=requeue&source=runs&{key}=" for key in KEYS]
GUESSED += ["bulk-plan/?kind=requeue&source=letters&q=", "workers/deadletter/?q=", "workers/case/?q="]


def told_by(world, client):
    """Return the addresses that answer a right guess of some hidden text and a wrong one not alike."""
    wrong = {page: guessed(client, page, "MARKnothing") for page in GUESSED}
    return {page for page in GUESSED for name in PAYLOADS if guessed(client, page, world.marks[name]) != wrong[page]}


def guessed(client, page, text):
    """Return what is answered to a guess, without the guess itself and what each answer has of its own."""
    answer = client.get(f"/admin/{page}{text}")
    shown = re.sub(r'name="(csrfmiddlewaretoken|form_id)" value="[^"]*"', "", answer.content.decode())
    return answer.status_code, shown.replace(text, "")


# -- superusers are the business of superusers -------------------------------------------------------------------------
PASSWORD = {"usable_password": "true", "password1": "Quite-long-9", "password2": "Quite-long-9"}


def test_the_admin_role_makes_nobody_a_superuser(make_staff):
    client = make_staff("admin")
    me, other = User.objects.get(username="admin"), builders.make_user("other")
    single = Permission.objects.get(codename="delete_user")
    rights = {"is_active": "on", "is_staff": "on", "is_superuser": "on", "user_permissions": [single.pk]}

    changed = [client.post(f"/admin/auth/user/{other.pk}/change/", {"username": "x", **rights})]
    mine = {"username": "admin", "groups": [group.pk for group in me.groups.all()], **rights}
    changed.append(client.post(f"/admin/auth/user/{me.pk}/change/", mine))
    changed.append(client.post("/admin/auth/user/add/", {"username": "new", **PASSWORD, **rights}))

    assert [answer.status_code for answer in changed] == [302] * 3
    assert not User.objects.filter(is_superuser=True).exists()
    assert not single.user_set.exists()
    assert set(User.objects.values_list("username", flat=True)) == {"x", "admin", "new"}


def test_the_admin_role_touches_no_superuser(make_staff):
    client, root = make_staff("admin"), builders.make_user("root", is_staff=True, is_superuser=True)
    Group.objects.get(name="admin").permissions.add(Permission.objects.get(codename="delete_user"))
    place, before = f"/admin/auth/user/{root.pk}", all_rows()
    choice = {"action": "delete_selected", ACTION_CHECKBOX_NAME: [root.pk], "post": "yes"}

    sent = [
        client.post(f"{place}/change/", {"username": "gone", "is_active": ""}),
        client.post(f"{place}/password/", PASSWORD),
        client.post(f"{place}/delete/", {"post": "yes"}),
    ]
    client.post("/admin/auth/user/", choice)

    assert [answer.status_code for answer in sent] == [403] * 3
    assert all_rows() == before
    assert client.get(f"{place}/change/").status_code == 200
