"""The ledger over HTTP: filters, and all of it as a CSV file that a spreadsheet may open (docs/api.md)."""

import csv
import io
import uuid

import pytest

from quotas import services as money
from quotas.csv_export import cell
from quotas.database import PIECE
from quotas.ledger import COLUMNS, csv_rows, lines_of
from quotas.models import LedgerEntry
from runs.models import Run
from tests import builders
from tests.api import Api, problem

pytestmark = pytest.mark.django_db
LEDGER = "/api/v1/ledger"
EVIL = '=HYPERLINK("http://evil","x")'


@pytest.fixture
def api(api_key):
    return Api(api_key)


@pytest.fixture
def runs(account, other_account):
    builders.make_run("succeeded", account=other_account, agent="one", session="talk", cost=9)
    one = builders.make_run("succeeded", account=account, agent="one", session="talk", cost=10)
    two = builders.make_run("failed", account=account, agent="two", session="Talk", cost=200)
    return [one, two]


def amounts(api, **query):
    answer = api.get(LEDGER, data=query)
    assert answer.status_code == 200, answer.content
    return [line["amount"] for line in answer.json()["results"]]


def test_a_line_tells_what_it_is_about(api, account, runs):
    line = money.grant(account, amount=5, reason="a gift", actor="boss", run_id=runs[0].pk)

    manual, settled = api.get(LEDGER, data={"run": runs[0].pk}).json()["results"]

    assert manual.pop("at").endswith("Z")
    assert manual == {
        "id": line.pk, "kind": "grant", "amount": -5, "run": str(runs[0].pk), "period": line.period, "agent": "one",
        "overdraft": False, "price_book": None, "actor": "boss", "reason": "a gift",
    }  # fmt: skip
    assert (settled["kind"], settled["amount"], settled["period"]) == ("settle", 10, line.period)


def test_lines_are_filtered(api, account, runs):
    money.grant(account, amount=5, reason="a gift", actor="boss")

    assert amounts(api) == [-5, 200, 10]
    assert amounts(api, kind="settle") == [200, 10]
    assert amounts(api, kind="grant") == [-5]
    assert amounts(api, run=runs[1].pk) == [200]
    assert amounts(api, run=uuid.uuid4()) == []
    assert amounts(api, agent="one") == [10]
    assert amounts(api, agent="One") == []
    assert amounts(api, session="talk") == [10]
    assert amounts(api, **{"from": "2020-01-01T00:00:00+00:00"}) == [-5, 200, 10]
    assert amounts(api, to="2020-01-01") == []
    Run.objects.filter(pk=runs[0].pk).delete()
    assert amounts(api, session="talk") == []
    assert amounts(api, agent="one") == [10]


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"kind": "refund"}, "kind"),
        ({"run": "7"}, "run"),
        ({"from": "2026-02-30"}, "from"),
        ({"to": "2026-11-29T10:00:00"}, "to"),
        ({"to": "soon"}, "to"),
        ({"agent": "x" * 201}, "agent"),
    ],
    ids=str,
)
def test_what_cannot_be_understood_is_said(api, query, parameter):
    assert problem(api.get(LEDGER, data=query), 400, "invalid_parameter")["parameter"] == parameter


def test_an_error_is_a_problem_document_also_for_who_wants_csv(api):
    assert problem(api.get(LEDGER, data={"format": "csv", "kind": "refund"}), 400, "invalid_parameter")
    assert problem(api.get(LEDGER, data={"group": "x"}, headers={"accept": "text/csv"}), 400, "unknown_parameter")
    assert problem(api.get(LEDGER, headers={"accept": "text/html"}), 406, "not_acceptable")


@pytest.mark.parametrize("how", [{"data": {"format": "csv"}}, {"headers": {"accept": "text/csv"}}], ids=str)
def test_the_whole_ledger_as_csv(api, account, runs, how):
    line = money.adjust(account, amount=-7, reason=EVIL, actor="=boss")

    answer = api.get(LEDGER, **how)
    rows = list(csv.reader(io.StringIO(answer.getvalue().decode())))

    assert answer.streaming
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="ledger.csv"'
    assert rows[0] == list(COLUMNS)
    assert [row[4] for row in rows[1:]] == ["-7", "200", "10"]
    told = dict(zip(COLUMNS, rows[1], strict=True))
    assert told.pop("at") == line.at.isoformat()
    assert told == {
        "id": str(line.pk), "account": "acme", "kind": "adjustment", "amount": "-7", "period": line.period, "run": "",
        "agent": "", "actor": "'=boss", "reason": f"'{EVIL}", "overdraft": "false", "price_book": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("  =1", "'  =1"),
        ("\u00a0\u200b\x0b=1", "'\u00a0\u200b\x0b=1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("\u3000\uff20x", "'\u3000\uff20x"),
        ("\u200b", "\u200b"),
        ("'=1", "'=1"),
        ("a=1", "a=1"),
        ("", ""),
        (-5, -5),
        (True, "true"),
        (None, ""),
    ],
)
def test_no_spreadsheet_computes_a_text(value, written):
    assert cell(value) == written


def test_never_more_than_a_piece_is_in_memory(account, django_assert_num_queries):
    lines = [LedgerEntry(account=account, kind="settle", amount=n) for n in range(2 * PIECE + 1)]
    LedgerEntry.objects.bulk_create(lines)

    pieces = csv_rows(lines_of(account))
    with django_assert_num_queries(1):
        assert len(next(pieces)) == PIECE
    assert [len(piece) for piece in pieces] == [PIECE, 1]


def test_others_ledgers_and_totals_stay_unseen(api, other_account, runs):
    line = LedgerEntry.objects.get(account=other_account)

    assert amounts(api, run=line.run_id) == []
    assert api.get("/api/v1/spending", data={"by": "run"}).json()["total"]["settled"] == 210
    assert str(line.run_id) not in api.get(LEDGER, data={"format": "csv"}).getvalue().decode()
