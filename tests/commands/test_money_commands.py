"""create_api_key and set_price."""

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
    assert AuditEntry.objects.get().action == "api_key.create"


def test_create_api_key_prints_nothing_but_the_key_on_stdout(manage, default_account):
    ran = manage("create_api_key")
    assert caller_for_key(ran.out.strip()).may("admin")
    assert "only this once" in ran.err


def test_create_api_key_refuses_nonsense(manage, default_account):
    for options in (("--scopes", "read,root"), ("--scopes", ","), ("--expires-days", 0), ("--expires-days", 10**9)):
        assert manage("create_api_key", *options).code == 2, options
    assert not ApiKey.objects.exists()


def test_set_price_makes_a_new_book_in_force_at_once(manage, default_account):
    assert manage("set_price", "gpt-x", "input=10", "output=30").code == 0
    ran = manage("set_price", "gpt-x", "output=40", "--json")

    assert ran.code == 0
    assert ran.json["prices"] == {"input": 10, "output": 40}
    PriceTable.forget()
    assert PriceTable.current().cost("gpt-x", {"input": 1_000_000, "output": 1_000_000}) == 50
    assert PriceBook.objects.count() == 2


def test_set_price_refuses_nonsense(manage, default_account):
    for prices in (["input"], ["input=-1"], ["input=1.5"], ["word=1"], ["input=1e5"], ["input=" + "9" * 17], ["=1"]):
        ran = manage("set_price", "m", *prices)
        assert ran.code == 2, prices
        assert prices[0] in ran.err
    assert manage("set_price", "a\0b", "input=1").code == 2
    assert not PriceBook.objects.exists()
