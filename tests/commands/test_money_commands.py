"""create_api_key, api_keys and set_price."""

import datetime as dt

from django.utils import timezone

from quotas.access import caller_for_key
from quotas.models import ApiKey, AuditEntry, PriceBook
from quotas.prices import PriceTable


def test_create_api_key_prints_a_key_that_works(manage, default_account):
    ran = manage("create_api_key", "--name", "ci", "--scopes", "read, submit", "--expires-days", 2, "--json")

    assert ran.code == 0
    caller = caller_for_key(ran.json["key"])
    assert (caller.account, caller.scopes) == (default_account, {"read", "submit"})
    row = ApiKey.objects.get()
    assert row.name == "ci"
    assert row.expires_at is not None
    assert abs(row.expires_at - timezone.now() - dt.timedelta(days=2)) < dt.timedelta(minutes=1)
    assert AuditEntry.objects.get().action == "api_key.created"


def test_create_api_key_prints_nothing_but_the_key_on_stdout(manage, default_account):
    ran = manage("create_api_key")
    assert caller_for_key(ran.out.strip()).may("admin")
    assert "only this once" in ran.err


def test_create_api_key_refuses_nonsense(manage, default_account):
    for options in (("--scopes", "read,root"), ("--scopes", ","), ("--expires-days", 0), ("--expires-days", 10**9)):
        assert manage("create_api_key", *options).code == 2, options
    assert not ApiKey.objects.exists()


def test_api_keys_lists_rotates_and_revokes(manage, default_account):
    made = manage("create_api_key", "--name", "ci", "--json").json
    rotated = manage("api_keys", "rotate", made["prefix"], "--overlap-hours", 3, "--reason", "spring", "--json")
    listed = manage("api_keys", "list", "--json").json["results"]
    third = manage("create_api_key", "--name", "ci")
    revoked = manage("api_keys", "revoke", made["prefix"], "--reason", "old", "--json")
    again = manage("api_keys", "revoke", made["prefix"], "--reason", "old")

    assert (rotated.code, rotated.json["old_prefix"]) == (0, made["prefix"])
    assert caller_for_key(rotated.json["key"]).account == default_account
    assert {row["prefix"]: row["state"] for row in listed} == {
        made["prefix"]: "live",
        rotated.json["prefix"]: "live",
    }
    assert not any(raw.split("_", 2)[2] in str(listed) for raw in (made["key"], rotated.json["key"]))
    assert (third.code, "2 live keys named ci" in third.err) == (2, True)
    assert (revoked.code, revoked.json["revoked"], again.code) == (0, True, 1)
    assert [row["prefix"] for row in manage("api_keys", "list", "--json").json["results"]] == [rotated.json["prefix"]]
    assert made["prefix"] in manage("api_keys", "list", "--all").out
    assert AuditEntry.objects.get(action="api_key.revoked").reason == "old"


def test_api_keys_refuses_nonsense(manage, default_account):
    prefix = manage("create_api_key", "--json").json["prefix"]
    for words in (
        ("rotate", "nothing"),
        ("rotate", prefix, "--overlap-hours", -1),
        ("rotate", prefix, "--overlap-hours", 10**6),
        ("revoke", "nothing", "--reason", "x"),
        ("revoke", prefix, "--reason", " "),
        ("list", "--account", "nobody"),
    ):
        assert manage("api_keys", *words).code == 2, words
    assert ApiKey.objects.get().is_live


def test_set_price_makes_a_new_book_in_force_at_once(manage, default_account):
    assert manage("set_price", "gpt-x", "input=10", "output=30").code == 0
    ran = manage("set_price", "gpt-x", "output=40", "--json")

    assert ran.code == 0
    assert ran.json["prices"] == {"input": 10, "output": 40}
    PriceTable.forget()
    assert PriceTable.current().cost("gpt-x", {"input": 1_000_000, "output": 1_000_000}) == 50
    assert PriceBook.objects.count() == 2


def test_set_price_refuses_nonsense(manage, default_account):
    for prices in (
        ["input"],
        ["input=-1"],
        ["input=1.5"],
        ["word=1"],
        ["input=1e5"],
        ["input=" + "9" * 17],
        ["=1"],
        ["input=nan"],
        [f"input={2**63}"],
        [f"input={2**53 + 1}"],
    ):
        ran = manage("set_price", "m", *prices)
        assert ran.code == 2, prices
        assert prices[0] in ran.err
    assert manage("set_price", "a\0b", "input=1").code == 2
    assert not PriceBook.objects.exists()
