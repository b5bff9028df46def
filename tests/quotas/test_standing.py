"""What a connection was opened with, looked up again: one look for all, and every way in which it ends."""

import datetime as dt
from importlib import import_module

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.utils import timezone

from quotas.access import ALL_SCOPES, MEMBER_SCOPES, caller_for_key, caller_for_user
from quotas.api_keys import revoke
from quotas.models import ApiKey, Membership
from quotas.standing import Standing, rights_of, standing_of
from tests import builders

pytestmark = pytest.mark.django_db


def sign_in(user):
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    return store.session_key


def scopes_now(standing):
    found = rights_of([standing])
    return set(found[standing].scopes) if standing in found else None


def change(row, **columns):
    type(row).objects.filter(pk=row.pk).update(**columns)


def test_a_key_counts_until_it_is_revoked_or_expires(account):
    row, raw = builders.make_api_key(account, scopes=["read", "invented"])
    standing = standing_of(caller_for_key(raw), None)
    assert scopes_now(standing) == {"read"}

    change(row, expires_at=timezone.now())
    expired = scopes_now(standing)
    change(row, expires_at=None)
    revoke(row, actor="test")

    assert (expired, scopes_now(standing)) == (None, None)
    assert scopes_now(Standing(account.pk, key_id=10**9)) is None


def test_a_member_counts_with_the_role_they_have_now(account, other_account):
    user = builders.make_user("someone", account=account, role="owner")
    standing = standing_of(caller_for_user(user), sign_in(user))
    seen = [scopes_now(standing)]

    Membership.objects.update(role="viewer")
    seen.append(scopes_now(standing))
    Membership.objects.update(account=other_account)
    seen.append(scopes_now(standing))

    assert seen == [set(ALL_SCOPES), set(MEMBER_SCOPES["viewer"]), None]
    change(user, is_superuser=True)
    assert scopes_now(standing) == set(ALL_SCOPES)


@pytest.mark.parametrize(
    "end",
    [
        lambda user: Session.objects.all().delete(),
        lambda user: Session.objects.update(expire_date=timezone.now() - dt.timedelta(seconds=1)),
        lambda user: change(user, is_active=False),
        lambda user: change(user, password="another"),
        lambda user: user.delete(),
    ],
    ids=["logged out", "session expired", "not active", "another password", "deleted"],
)
def test_a_sign_in_counts_until_it_ends(account, end):
    user = builders.make_user("someone", account=account)
    standing = standing_of(caller_for_user(user), sign_in(user))
    assert scopes_now(standing) == set(MEMBER_SCOPES["member"])

    end(user)

    assert scopes_now(standing) is None


def test_a_session_is_no_other_users(account):
    user, other = builders.make_user("one", account=account), builders.make_user("two", account=account)

    assert scopes_now(Standing(account.pk, user_id=user.pk, session_key=sign_in(other))) is None
    assert scopes_now(Standing(account.pk, user_id=user.pk)) is None


def test_staff_count_while_they_have_the_permissions():
    operator = builders.make_operator("operator", permissions=["view_run"])
    key = sign_in(operator)
    anything, run = Standing(user_id=operator.pk, session_key=key), ("runs.view_run",)
    seeing, more = Standing(user_id=operator.pk, session_key=key, permissions=run), (*run, "runs.view_payload")

    assert (scopes_now(anything), scopes_now(seeing)) == ({"read"}, {"read"})
    assert scopes_now(Standing(user_id=operator.pk, session_key=key, permissions=more)) is None
    change(operator, is_staff=False)
    assert (scopes_now(anything), scopes_now(seeing)) == (None, None)


def test_one_look_serves_all(account, other_account, django_assert_num_queries):
    standings = []
    for number in range(20):
        user = builders.make_user(f"user-{number}", account=account if number % 2 else other_account)
        standings.append(standing_of(caller_for_user(user), sign_in(user)))
        standings.append(standing_of(caller_for_key(builders.make_api_key(account)[1]), None))

    with django_assert_num_queries(4):
        found = rights_of(standings)

    assert set(found) == set(standings)
    with django_assert_num_queries(1):
        rights_of([one for one in standings if one.key_id is not None])
    ApiKey.objects.all().delete()
    assert {one.key_id for one in rights_of(standings)} == {None}
