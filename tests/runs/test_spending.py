"""Totals of spending: to the unit what the ledger says, by whatever they are asked for (docs/money.md)."""

import csv
import datetime as dt
import io
from dataclasses import asdict
from zoneinfo import ZoneInfo

import pytest
from django.db.models import Sum
from django.utils import timezone

from quotas.models import Account, LedgerEntry
from runs.models import Attempt, Run
from runs.spending import BY, PIECE, Question, lines_for, rows_of, spending, total_of
from tests import builders
from tests.api import Api, problem

pytestmark = pytest.mark.django_db
SPENDING = "/api/v1/spending"


@pytest.fixture
def api(api_key):
    return Api(api_key)


@pytest.fixture
def spent(account, other_account):
    """Runs of an account that have cost something, one that still does, manual lines, and one of somebody else."""

    def made(state, cost, **fields):
        return builders.make_run(state, account=account, cost=cost, **fields)

    builders.make_run("succeeded", account=other_account, cost=5, session="talk", tags=["blue"])
    LedgerEntry.objects.create(account=account, kind="grant", amount=-1000, actor="boss", reason="gift")
    LedgerEntry.objects.create(account=account, kind="carry", amount=-3, period="2026-10")
    LedgerEntry.objects.create(account=account, kind="carry", amount=3, period="2026-11")
    return {
        "a": made("succeeded", 10, agent="one", session="talk", tags=["blue", "Blue", "blue"]),
        "b": made("failed", 200, agent="two", session="Talk", tags=["blue"]),
        "c": made("cancelled", 3000, agent="one"),
        "open": made("running", 40000, agent="one", session="talk", tags=["green"]),
    }


def told(page):
    return {row["key"]: (row["settled"], row["manual"], row["accrued"], row["runs"]) for row in page["results"]}


def by(api, what, **more):
    answer = api.get(SPENDING, data={"by": what, **more})
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_totals_by_agent_session_and_tag(api, spent):
    page = by(api, "agent")
    assert page["total"] == {"key": None, "settled": 3210, "manual": -1000, "accrued": 40000, "runs": 3}
    assert told(page) == {None: (0, -1000, 0, 0), "one": (3010, 0, 40000, 2), "two": (200, 0, 0, 1)}
    assert told(by(api, "session")) == {
        None: (3000, -1000, 0, 1),
        "Talk": (200, 0, 0, 1),
        "talk": (10, 0, 40000, 1),
    }
    assert told(by(api, "tag")) == {
        None: (3000, -1000, 0, 1),
        "Blue": (10, 0, 0, 1),
        "blue": (210, 0, 0, 2),
        "green": (0, 0, 40000, 0),
    }


def test_totals_by_run_and_attempt(api, spent):
    assert told(by(api, "run")) == {
        None: (0, -1000, 0, 0),
        str(spent["open"].pk): (0, 0, 40000, 0),
        str(spent["c"].pk): (3000, 0, 0, 1),
        str(spent["b"].pk): (200, 0, 0, 1),
        str(spent["a"].pk): (10, 0, 0, 1),
    }
    attempts = by(api, "attempt")
    assert [row["key"] for row in attempts["results"]] == [
        None, *(f"{spent[name].pk}/2" for name in ("open", "c", "b", "a")),
    ]  # fmt: skip
    assert [row["settled"] for row in attempts["results"]] == [0, 0, 3000, 200, 10]


def test_days_are_those_of_the_accounts_time_zone(api, account):
    Account.objects.filter(pk=account.pk).update(timezone="Europe/Berlin")
    # Two sides of midnight in Berlin, in winter and in summer; the day on which summer time ends has 25 hours.
    moments = {
        "2026-03-01T22:59:59.999999Z": 10,
        "2026-03-01T23:00:00Z": 200,
        "2026-07-01T22:00:00Z": 3000,
        "2026-10-25T22:59:59.999999Z": 40000,
        "2026-10-24T22:00:00Z": 500000,
    }
    for moment, amount in moments.items():
        line = LedgerEntry(account=account, kind="settle", amount=amount, at=dt.datetime.fromisoformat(moment))
        line.save_base(raw=True)  # as an old one: its time is not now

    assert list(told(by(api, "day", **{"from": "2026-03-01", "to": "2026-10-25"})).items()) == [
        ("2026-10-25", (540000, 0, 0, 2)),
        ("2026-07-02", (3000, 0, 0, 1)),
        ("2026-03-02", (200, 0, 0, 1)),
        ("2026-03-01", (10, 0, 0, 1)),
    ]
    assert list(told(by(api, "day", **{"from": "2026-03-02", "to": "2026-03-02"}))) == ["2026-03-02"]
    assert list(told(by(api, "day", **{"from": "2026-03-01", "to": "2026-03-01T23:00:00Z"}))) == ["2026-03-01"]


def test_what_runs_now_accrues_today(api, account, spent):
    Account.objects.filter(pk=account.pk).update(timezone="Pacific/Kiritimati")

    before = timezone.now()
    days = told(by(api, "day"))
    around = {at.astimezone(ZoneInfo("Pacific/Kiritimati")).date().isoformat() for at in (before, timezone.now())}

    assert sum(day[2] for day in days.values()) == 40000
    assert {key for key, day in days.items() if day[2]} <= around


def test_filters_narrow_rows_and_total_alike(api, spent):
    assert told(by(api, "session", agent="one")) == {None: (3000, 0, 0, 1), "talk": (10, 0, 40000, 1)}
    assert by(api, "run", tag="blue")["total"]["settled"] == 210
    assert by(api, "run", session="talk")["total"] == {
        "key": None, "settled": 10, "manual": 0, "accrued": 40000, "runs": 1,
    }  # fmt: skip
    # What is still running belongs to now, not to what is over.
    assert by(api, "agent", to="2020-01-01")["total"]["accrued"] == 0
    year_ago = (timezone.now() - dt.timedelta(days=300)).date().isoformat()
    assert by(api, "agent", **{"from": year_ago})["total"]["accrued"] == 40000


@pytest.mark.parametrize("what", BY)
def test_pages_follow_each_other_and_lose_nothing(api, spent, what):
    whole = by(api, what)["results"]

    found, after = [], None
    while True:
        page = by(api, what, limit=1, **({"after": after} if after else {}))
        found += page["results"]
        after = page["next"]
        if after is None:
            break

    assert found == whole


@pytest.mark.parametrize("what", BY)
def test_rows_and_ledger_agree_to_the_unit_also_when_runs_are_gone(account, spent, what):
    Attempt.objects.filter(run=spent["b"]).delete()
    Run.objects.filter(pk=spent["b"].pk).delete()
    question = Question(account)

    rows = [row for piece in rows_of(question, what) for row in piece]

    ledger = lines_for(question).aggregate(sum=Sum("amount"))["sum"]
    total = total_of(question)
    assert total.settled + total.manual == ledger == 2210
    twice = 10 if what == "tag" else 0  # one run of two tags
    assert sum(row[1] + row[2] for row in rows) == ledger + twice
    if what in {"agent", "day", "run"}:  # the ledger keeps these
        keyless = [row for row in rows if row[0] is None]
        assert sum(row[1] for row in keyless) == 0
    else:
        assert next(row for row in rows if row[0] is None)[1] >= 200


def test_an_account_without_anything_has_empty_totals(api):
    for what in BY:
        page = by(api, what)
        assert (page.pop("from") is None, page.pop("to")) == (False, None)
        assert page == {
            "total": {"key": None, "settled": 0, "manual": 0, "accrued": 0, "runs": 0}, "results": [], "next": None,
        }  # fmt: skip


def test_totals_as_csv(api, spent):
    answer = api.get(SPENDING, data={"by": "agent", "format": "csv"})

    assert answer["Content-Disposition"] == 'attachment; filename="spending-by-agent.csv"'
    assert list(csv.reader(io.StringIO(answer.getvalue().decode()))) == [
        ["agent", "settled", "manual", "accrued", "runs"],
        ["", "0", "-1000", "0", "0"],
        ["one", "3010", "0", "40000", "2"],
        ["two", "200", "0", "0", "1"],
    ]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({}, "by"),
        ({"by": "week"}, "by"),
        ({"by": "run", "after": "nonsense"}, "after"),
        ({"by": "attempt", "after": "nonsense"}, "after"),
        ({"by": "attempt", "after": "00000000-0000-0000-0000-000000000000/x"}, "after"),
        ({"by": "day", "after": "2026-13-01"}, "after"),
        ({"by": "day", "from": "yesterday"}, "from"),
        ({"by": "day", "from": "2026-11-29T10:00:00"}, "from"),
        ({"by": "day", "to": "9999-12-31"}, "to"),
        ({"by": "day", "to": "0001-01-01T00:00:00+14:00"}, "to"),
        ({"by": "day", "limit": "0"}, "limit"),
    ],
    ids=str,
)
def test_what_cannot_be_understood_is_said(api, spent, query, parameter):
    assert problem(api.get(SPENDING, data=query), 400, "invalid_parameter")["parameter"] == parameter


def at(account, moment, amount):
    line = LedgerEntry(account=account, kind="settle", amount=amount, at=moment, agent="one")
    line.save_base(raw=True)  # as an old one: its time is not now


def span(api, **asked):
    page = by(api, "agent", **asked)
    return [None if page[name] is None else dt.datetime.fromisoformat(page[name]) for name in ("from", "to")]


@pytest.mark.parametrize("period", Account.Period.values)
def test_without_a_span_it_is_the_accounts_period_or_the_last_month(api, account, period):
    zone = ZoneInfo("Pacific/Kiritimati")
    Account.objects.filter(pk=account.pk).update(timezone=zone.key, period=period)
    before = timezone.now()

    start, end = span(api)

    midnights = {
        now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0) for now in (before, timezone.now())
    }
    month = dt.timedelta(days=31)
    expected = {"day": midnights, "month": {midnight.replace(day=1) for midnight in midnights}}
    assert end is None
    assert start in expected[period] if period in expected else before - month <= start <= timezone.now() - month
    at(account, start, 7)
    at(account, start - dt.timedelta(microseconds=1), 500)
    assert by(api, "agent")["total"]["settled"] == (7 if period in expected else 0)


def test_an_end_alone_has_the_month_before_it(api):
    assert span(api, to="2026-05-31T00:00:00Z") == [
        dt.datetime(2026, 4, 30, tzinfo=dt.UTC), dt.datetime(2026, 5, 31, tzinfo=dt.UTC),
    ]  # fmt: skip


def test_more_than_a_year_at_once_is_refused(api, account):
    Account.objects.filter(pk=account.pk).update(timezone="Europe/Berlin")
    fits = [
        {"from": "2024-01-01", "to": "2024-12-31"},
        {"from": "2025-10-26", "to": "2026-10-26"},  # an hour longer than 366 times 24
    ]
    too_long = [
        {"from": "2024-01-01", "to": "2025-01-01"},
        {"from": "2020-01-01"},
        {"from": "2020-01-01", "session": "talk"},
        {"from": "2020-01-01", "format": "csv"},
    ]

    assert [span(api, **asked)[1] is not None for asked in fits] == [True, True]
    for asked in too_long:
        told = problem(api.get(SPENDING, data={"by": "run", **asked}), 400, "invalid_parameter")
        assert "more than 366 days" in told["detail"]


@pytest.mark.parametrize("what", BY)
def test_all_totals_are_asked_for_once_however_many(account, spent, what, django_assert_max_num_queries):
    for number in range(3 * PIECE if what in {"run", "attempt"} else 20):
        builders.make_run("succeeded", account=account, cost=number, archived=False, tags=["z"], session=str(number))
    pages, after = [], None
    while after is not None or not pages:
        page = spending(Question(account), what, after=after)
        pages += [list(asdict(total).values()) for total in page.results]
        after = page.next

    with django_assert_max_num_queries(4):
        assert [row for piece in rows_of(Question(account), what) for row in piece] == pages


def test_an_unknown_parameter_is_named(api):
    assert problem(api.get(SPENDING, data={"by": "run", "group": "x"}), 400, "unknown_parameter")


def test_a_year_of_lines_is_asked_for_in_few_statements(account, django_assert_max_num_queries):
    for number in range(12):
        builders.make_run("succeeded", account=account, cost=number, tags=[str(number)], session=str(number))
    for what in BY:
        with django_assert_max_num_queries(4):
            assert len(spending(Question(account), what, limit=5).results) in {1, 5, 6}
