"""Price books in the database: versioned, in force at once, merged with what was known."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from quotas.errors import InvalidCost, UnknownPrice
from quotas.models import AuditEntry, Price, PriceBook
from quotas.prices import DEFAULTS, PriceTable, install_default_prices, set_price

pytestmark = pytest.mark.django_db


def test_a_new_price_is_in_force_at_once_and_the_others_stay(django_capture_on_commit_callbacks):
    set_price(model="a", prices={"input": 1, "output": 2}, actor="tester")
    assert PriceTable.current().prices == {"a": {"input": 1, "output": 2}}

    with django_capture_on_commit_callbacks(execute=True):
        book = set_price(model="a", prices={"output": 3}, actor="tester")
        set_price(model="b", prices={"embedding": 4}, actor="tester")

    table = PriceTable.current()
    assert table.prices == {"a": {"input": 1, "output": 3}, "b": {"embedding": 4}}
    assert table.version == book.version + 1
    assert table.knows("b")
    assert not table.knows("c")


def test_a_book_is_never_changed_and_every_change_is_audited():
    first = set_price(model="a", prices={"input": 1}, actor="tester")
    set_price(model="a", prices={"input": 2}, actor="tester")

    assert list(first.prices.values_list("per_million", flat=True)) == [1]
    assert PriceBook.objects.count() == 2
    entries = AuditEntry.objects.filter(action="price.set").order_by("id")
    assert [(entry.actor, entry.after) for entry in entries] == [
        ("tester", {"a": {"input": 1}}),
        ("tester", {"a": {"input": 2}}),
    ]


@pytest.mark.parametrize(
    ("prices", "error"),
    [({"input": -1}, InvalidCost), ({"input": 2**63}, InvalidCost), ({"thoughts": 1}, UnknownPrice)],
)
def test_a_price_that_cannot_be_is_refused_and_makes_no_book(prices, error):
    with pytest.raises(error):
        set_price(model="a", prices=prices, actor="tester")
    assert (PriceBook.objects.count(), AuditEntry.objects.count()) == (0, 0)


def test_a_table_without_books_knows_nothing():
    table = PriceTable.current()

    assert (table.version, dict(table.prices)) == (None, {})
    with pytest.raises(UnknownPrice):
        table.require("gpt-4o")


def test_the_shipped_prices_are_installed_once():
    book = install_default_prices()

    assert book is not None
    assert install_default_prices() is None
    assert PriceTable.current().prices == DEFAULTS
    assert PriceTable.current().cost("smollm2-135m-instruct", {"input": 10, "output": 10}) == 1
    assert all(price > 0 for price in Price.objects.values_list("per_million", flat=True))


def test_installing_leaves_an_operators_price_alone():
    set_price(model="gpt-4o", prices={"input": 1}, actor="tester")

    install_default_prices()

    PriceTable.forget()
    assert PriceTable.current().prices["gpt-4o"] == {"input": 1}
    assert PriceTable.current().knows("gpt-4o-mini")


def test_configured_prices_are_installed_with_the_shipped_ones(settings, tmp_path):
    settings.AGENTOPS_PRICES = '{"ours": {"input": 5}, "gpt-4o": {"input": 6}}'
    install_default_prices()
    assert PriceTable.current().prices["ours"] == {"input": 5}
    assert PriceTable.current().prices["gpt-4o"] == {"input": 6}

    PriceTable.forget()
    (tmp_path / "prices.json").write_text('{"filed": {"output": 7}}', encoding="utf-8")
    settings.AGENTOPS_PRICES = str(tmp_path / "prices.json")
    install_default_prices()
    assert PriceTable.current().prices["filed"] == {"output": 7}


AMOUNTS = ["-1", "1.5", "NaN", "1e30", "9223372036854775808", "true", '"7"', "null"]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"m": 1}', '{"m": {"input": "much"}}', "/no/such/file"]
    + [f'{{"m": {{"input": {amount}}}}}' for amount in AMOUNTS],
)
def test_configured_prices_that_cannot_be_read_are_named(settings, text):
    settings.AGENTOPS_PRICES = text

    with pytest.raises(ImproperlyConfigured, match="AGENTOPS_PRICES"):
        install_default_prices()


def test_names_of_models_differ_by_case():
    set_price(model="Model", prices={"input": 1}, actor="tester")
    set_price(model="model", prices={"input": 2}, actor="tester")

    PriceTable.forget()
    assert PriceTable.current().prices == {"Model": {"input": 1}, "model": {"input": 2}}
