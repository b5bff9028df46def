"""What a usage costs: whole micro-units, rounded once, and never free by accident."""

import asyncio
from contextlib import suppress

import pytest

from quotas.errors import InvalidCost, UnknownPrice
from quotas.models import AMOUNT_MAX
from quotas.prices import PriceTable, check_amount
from tests import working
from workers.usage import Usage

TABLE = PriceTable(
    7,
    {
        "plain": {"input": 1_000_000, "output": 3_000_000},
        "cheap": {"input": 1, "output": 1},
        "full": {"input": 10, "cached": 2_000_000, "output": 20, "reasoning": 5_000_000, "embedding": 7_000_000},
        "embedder": {"embedding": 1_000_000},
        "dear": {"input": AMOUNT_MAX},
    },
)


@pytest.mark.parametrize(
    ("model", "tokens", "cost"),
    [
        ("plain", {}, 0),
        ("plain", {"input": 0, "output": 0}, 0),
        ("plain", {"input": 2, "output": 1}, 5),
        ("cheap", {"input": 1}, 1),
        ("cheap", {"input": 1, "output": 1}, 1),
        ("cheap", {"input": 999_999, "output": 1}, 1),
        ("cheap", {"input": 1_000_000, "output": 1}, 2),
        ("plain", {"cached": 3}, 3),
        ("plain", {"reasoning": 2}, 6),
        ("plain", {"embedding": 4}, 4),
        ("full", {"cached": 1, "reasoning": 1, "embedding": 1}, 14),
        ("plain", {"input": 2**52 + 1}, 2**52 + 1),
        ("cheap", {"input": 4_503_599_627_000_001}, 4_503_599_628),
    ],
)
def test_a_cost_is_rounded_up_once_over_all_kinds(model, tokens, cost):
    assert TABLE.cost(model, tokens) == cost


@pytest.mark.parametrize(("model", "kind"), [("nobody", "input"), ("embedder", "output"), ("embedder", "cached")])
def test_a_token_without_a_price_is_refused_and_not_free(model, kind):
    with pytest.raises(UnknownPrice) as refused:
        TABLE.cost(model, {kind: 1})
    assert refused.value.facts == {"model": model, "kind": kind}


def test_no_tokens_of_an_unknown_kind_cost_nothing():
    assert TABLE.cost("embedder", {"output": 0, "embedding": 2}) == 2


@pytest.mark.parametrize("count", [-1, 1.0, float("nan"), True, "1", None, 2**63, AMOUNT_MAX + 1])
def test_a_count_that_is_no_sane_whole_number_is_refused(count):
    with pytest.raises(InvalidCost):
        TABLE.cost("plain", {"input": count})
    with pytest.raises(InvalidCost):
        check_amount(count)


@pytest.fixture
def usage(monkeypatch):
    monkeypatch.setattr(PriceTable, "current", classmethod(lambda cls: TABLE))
    return Usage()


def test_usage_is_priced_by_its_totals_and_not_report_by_report(usage):
    for _ in range(10):
        usage.add("cheap", input=1)

    assert usage.snapshot() == ({"cheap": {"input": 10}}, 1)
    assert usage.price_book == 7


def test_usage_of_an_unknown_model_is_kept_and_the_priced_part_is_booked(usage):
    usage.add_cost(5)
    usage.add("plain", input=2)
    with pytest.raises(UnknownPrice):
        usage.add("nobody", output=3)

    assert usage.snapshot() == ({"plain": {"input": 2}, "nobody": {"unpriced_output": 3}}, 7)
    assert (usage.totals, usage.missing.facts) == (usage.snapshot()[0], {"model": "nobody", "kind": "output"})


def test_a_kind_without_a_price_takes_no_cost_back_from_the_kinds_that_have_one(usage):
    usage.add("embedder", embedding=2)
    with pytest.raises(UnknownPrice):
        usage.add("embedder", embedding=3, output=4)
    usage.add("embedder", embedding=1)  # these have a price

    assert usage.snapshot() == ({"embedder": {"embedding": 6, "unpriced_output": 4}}, 6)


def test_whoever_watches_is_told_of_every_report(usage):
    told = []
    usage.watch(told.append)

    usage.add_cost(5)
    usage.add("plain", input=2)
    for refused in (lambda: usage.add("nobody", output=3), lambda: usage.add_cost(-1)):
        with suppress(UnknownPrice, InvalidCost):
            refused()

    assert told == [5, 7, 7]


@pytest.mark.parametrize("amount", [-1, 1.5, 2**63, AMOUNT_MAX + 1, None])
def test_a_cost_that_is_no_sane_whole_number_is_refused_and_changes_nothing(usage, amount):
    usage.add_cost(5)
    with pytest.raises(InvalidCost):
        usage.add_cost(amount)
    assert usage.cost == 5


def test_costs_that_add_up_beyond_the_border_are_refused_before_they_reach_a_column(usage):
    usage.add_cost(AMOUNT_MAX)
    with pytest.raises(InvalidCost):
        usage.add_cost(1)
    assert usage.cost == AMOUNT_MAX


@pytest.mark.parametrize("model", ["plain", "dear"])
def test_tokens_that_add_up_beyond_the_border_are_refused_before_they_reach_a_column(usage, model):
    with suppress(InvalidCost):
        usage.add(model, input=AMOUNT_MAX // 2 + 1)
    with pytest.raises(InvalidCost):
        usage.add(model, input=AMOUNT_MAX // 2 + 1)

    totals, cost = usage.snapshot()
    assert cost <= AMOUNT_MAX
    assert all(count <= AMOUNT_MAX for kinds in totals.values() for count in kinds.values())


@pytest.mark.django_db(transaction=True)
async def test_an_async_handler_may_report_usage_when_the_table_has_to_be_read_again():
    from quotas.prices import install_default_prices

    await asyncio.to_thread(install_default_prices)
    PriceTable.forget()
    ctx = working.context()

    ctx.usage.add("smollm2-135m-instruct", input=1_000_000)

    assert ctx.usage.cost == 20_000
