"""Who may act for which account: by API key and by membership."""

import datetime as dt
import hashlib

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from quotas import api_keys
from quotas.access import ALL_SCOPES, caller_for_key, caller_for_user
from quotas.api_keys import create_api_key, find_live_key, get_key, revoke, rotate
from quotas.errors import InvalidApiKey, KeyNotLive, NoAccount, NoSuchAccount, NoSuchKey, TooManyKeys
from quotas.models import Account, ApiKey, AuditEntry
from tests import builders

pytestmark = pytest.mark.django_db


def test_only_the_hash_of_a_key_is_kept(account):
    row, raw = create_api_key(account=account, name="n" * 200, scopes=["submit", "read"], actor="test")

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

    assert revoke(revoked, actor="test")
    assert not revoke(revoked, actor="test")

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


# -- two live keys of a name ---------------------------------------------------------------------------------------


def make(account, name="ci", **fields):
    return create_api_key(account=account, name=name, scopes=["read"], actor="test", **fields)


def test_a_rotated_key_lives_on_for_the_overlap_beside_its_heir(account):
    old, raw = make(account, expires_at=timezone.now() + dt.timedelta(days=30))

    new, raw_new = rotate(old, overlap=dt.timedelta(hours=2), actor="boss", reason="spring", request_id="r1")

    old.refresh_from_db()
    assert (new.name, new.scopes, new.account) == (old.name, old.scopes, account)
    assert abs(old.expires_at - timezone.now() - dt.timedelta(hours=2)) < dt.timedelta(minutes=1)
    assert abs(new.expires_at - timezone.now() - dt.timedelta(days=30)) < dt.timedelta(minutes=1)
    assert [caller_for_key(one).actor for one in (raw, raw_new)] == [f"key:{old.prefix}", f"key:{new.prefix}"]
    entry = AuditEntry.objects.get(action="api_key.rotated")
    assert (entry.actor, entry.target_id, entry.reason, entry.request_id) == ("boss", old.prefix, "spring", "r1")
    assert entry.after["prefix"] == new.prefix
    ApiKey.objects.filter(pk=old.pk).update(expires_at=timezone.now())
    with pytest.raises(InvalidApiKey):
        find_live_key(raw)
    assert find_live_key(raw_new) == new


def test_an_overlap_does_not_lengthen_a_life(account):
    ends = timezone.now() + dt.timedelta(hours=1)
    old, _ = make(account, expires_at=ends)

    rotate(old, overlap=dt.timedelta(days=7), actor="test")

    assert ApiKey.objects.get(pk=old.pk).expires_at == ends


def test_a_key_that_is_rotated_again_in_its_overlap_hands_on_its_whole_life(account):
    old, _ = make(account, expires_at=timezone.now() + dt.timedelta(days=30))
    forever, _ = make(account, name="forever")
    for row in (old, forever):
        revoke(rotate(row, overlap=dt.timedelta(hours=2), actor="test")[0], actor="test")

    again, last = rotate(old, actor="test")[0], rotate(forever, actor="test")[0]

    assert abs(again.expires_at - timezone.now() - dt.timedelta(days=30)) < dt.timedelta(minutes=1)
    assert last.expires_at is None


def test_a_third_live_key_of_a_name_is_refused_and_leaves_nothing(account, other_account):
    old, _ = make(account)
    new, _ = rotate(old, actor="test")
    audits = AuditEntry.objects.count()

    for again in (lambda: make(account), lambda: rotate(old, actor="test"), lambda: rotate(new, actor="test")):
        with pytest.raises(TooManyKeys) as refused:
            again()
        assert "acme has 2 live keys named ci" in refused.value.message
    assert (ApiKey.objects.count(), AuditEntry.objects.count()) == (2, audits)

    make(account, "CI")  # another name, also where the database's collation ignores case
    make(other_account)
    revoke(old, actor="test")
    assert make(account)[0].is_live


def test_an_ended_key_is_not_rotated(account):
    revoked, _ = make(account)
    revoke(revoked, actor="test")
    expired, _ = make(account, expires_at=timezone.now())

    for row in (revoked, expired):
        with pytest.raises(KeyNotLive):
            rotate(row, actor="test")


def test_a_key_is_found_by_its_prefix_in_its_account_only(account, other_account):
    row, raw = make(account)

    assert [get_key(account, name) for name in (row.prefix, raw)] == [row, row]
    for name in ("", "nothing", row.prefix.upper() + "x", "ao_", f"{row.prefix}\0"[:5]):
        with pytest.raises(NoSuchKey):
            get_key(account, name)
    with pytest.raises(NoSuchKey) as refused:
        get_key(other_account, raw)
    assert raw.split("_", 2)[2] not in refused.value.message


@pytest.mark.sqlite_only  # it can be made to refuse every write
def test_only_a_lock_is_no_reason_to_fail_when_the_last_use_is_written(account):
    _, raw = builders.make_api_key(account)
    connection.connection.execute("PRAGMA query_only = ON")
    try:
        with pytest.raises(OperationalError), transaction.atomic():
            find_live_key(raw)
    finally:
        connection.connection.execute("PRAGMA query_only = OFF")

    assert find_live_key(raw).account == account


def test_the_database_decides_who_writes_the_last_use(account):
    row, _ = builders.make_api_key(account)
    stale = ApiKey.objects.get(pk=row.pk)
    used = timezone.now() - dt.timedelta(seconds=30)
    ApiKey.objects.filter(pk=row.pk).update(last_used_at=used)

    api_keys._note_use(stale)

    assert ApiKey.objects.get(pk=row.pk).last_used_at == used
