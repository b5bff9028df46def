"""Who may act for which account: by API key and by membership."""

import datetime as dt
import hashlib

import pytest
from django.utils import timezone

from quotas.access import ALL_SCOPES, caller_for_key, caller_for_user
from quotas.api_keys import create_api_key, find_live_key, revoke
from quotas.errors import InvalidApiKey, NoAccount, NoSuchAccount
from quotas.models import Account, ApiKey
from tests import builders

pytestmark = pytest.mark.django_db


def test_only_the_hash_of_a_key_is_kept(account):
    row, raw = create_api_key(account=account, name="n" * 200, scopes=["submit", "read"])

    mark, prefix, secret = raw.split("_", 2)
    stored = ApiKey.objects.get(pk=row.pk)
    assert (mark, prefix) == ("ao", stored.prefix)
    assert stored.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in str(ApiKey.objects.values().get(pk=row.pk))
    assert (stored.scopes, len(stored.name)) == (["read", "submit"], 100)


def test_a_live_key_names_its_account_and_scopes(account):
    row, raw = builders.make_api_key(account, scopes=["read", "invented"])

    caller = caller_for_key(raw)

    assert (caller.account, caller.actor, caller.scopes) == (account, f"key:{row.prefix}", frozenset({"read"}))
    assert caller.may("read")
    assert not caller.may("submit")


def _no_key(raw):
    return [
        "",
        "ao",
        "ao__",
        f"{raw}x",
        raw[:-1],
        raw.upper(),
        raw.replace("ao_", "xx_"),
        f" {raw}",
        "ao_ä_ö",
        "ao_\0_x",
    ]


def test_anything_else_is_no_key(account, api_key):
    for raw in [*_no_key(api_key), "ao_\ud83d_x", f"ao_{api_key.split('_')[1]}_\ud83d", "ao_" + "9" * 5000 + "_x"]:
        with pytest.raises(InvalidApiKey):
            find_live_key(raw)


def test_a_revoked_and_an_expired_key_are_no_keys(account):
    past = timezone.now() - dt.timedelta(seconds=1)
    revoked, raw_revoked = builders.make_api_key(account)
    _, raw_expired = builders.make_api_key(account, expires_at=past)

    assert revoke(revoked)
    assert not revoke(revoked)

    for raw in (raw_revoked, raw_expired):
        with pytest.raises(InvalidApiKey):
            caller_for_key(raw)


def test_the_last_use_is_written_once_a_minute(account, django_assert_num_queries):
    row, raw = builders.make_api_key(account)
    with django_assert_num_queries(2):
        find_live_key(raw)
    with django_assert_num_queries(1):
        find_live_key(raw)

    ApiKey.objects.filter(pk=row.pk).update(last_used_at=timezone.now() - dt.timedelta(minutes=2))

    with django_assert_num_queries(2):
        find_live_key(raw)


@pytest.mark.parametrize(
    ("role", "scopes"),
    [("viewer", {"read"}), ("member", {"read", "submit", "cancel"}), ("owner", set(ALL_SCOPES))],
)
def test_a_members_role_says_what_they_may(account, role, scopes):
    user = builders.make_user("someone", account=account, role=role)

    caller = caller_for_user(user)

    assert (caller.account, caller.actor, set(caller.scopes)) == (account, "someone", scopes)


def test_a_member_of_several_accounts_chooses_and_gets_the_first_by_name_else(account, other_account):
    user = builders.make_user("someone", account=other_account, role="viewer")
    user.memberships.create(account=account, role="owner")

    assert caller_for_user(user).account == account
    assert caller_for_user(user, "globex").account == other_account
    assert not caller_for_user(user, "globex").may("submit")


def test_another_accounts_name_looks_like_no_account(account, outsider):
    for name in ("acme", "no such"):
        with pytest.raises(NoSuchAccount) as refused:
            caller_for_user(outsider, name)
        assert refused.value.status == 404


def test_a_member_of_no_account_is_told_so(operator):
    with pytest.raises(NoAccount):
        caller_for_user(operator)


def test_a_superuser_may_act_for_any_account(account):
    root = builders.make_user("root", is_superuser=True)
    with pytest.raises(NoSuchAccount):
        caller_for_user(root)
    Account.objects.create(name="default")

    assert caller_for_user(root).account.name == "default"
    assert caller_for_user(root, "acme").scopes == ALL_SCOPES
    with pytest.raises(NoSuchAccount):
        caller_for_user(root, "no such")


def test_a_superuser_who_is_a_member_starts_there(account, other_account):
    root = builders.make_user("root", account=other_account, is_superuser=True)

    assert caller_for_user(root).account == other_account
