"""What a query of the list of runs means, on every database."""

import datetime as dt
import uuid

import pytest
from django.utils import timezone

from runs import filters
from runs.errors import InvalidFilter, UnknownFilter
from runs.filters import runs_matching, searched_as
from runs.ids import first_id_at
from tests import builders
from workers.case_filing import file_letters

pytestmark = pytest.mark.django_db


def found(**query):
    return {run.session for run in runs_matching({key.rstrip("_"): value for key, value in query.items()})}


@pytest.fixture
def some(account, other_account):
    """Three runs, known by their sessions."""
    error = {"class": "timeout", "type": "TooSlow", "message": "Took 40 % Longer", "traceback": "", "cause": "fatal"}
    builders.make_run("queued", account=account, session="one", queue="slow", priority="high", tags=["a b", "grün"])
    builders.make_run(
        "failed", account=other_account, session="two", agent="probe.varied", cost=1_500_000, worker="w-1", error=error,
        error_class="timeout", metadata={"size": 5, "name": "acme", "ok": True, "odd.key": "x"},
    )  # fmt: skip
    builders.make_run("succeeded", account=account, session="three", cost=20, tags=["a"], metadata={"size": "7"})


@pytest.mark.parametrize(
    ("query", "sessions"),
    [
        ({}, "one two three"),
        ({"state": "failed"}, "two"),
        ({"state": "failed,queued"}, "one two"),
        ({"state": ""}, "one two three"),
        ({"agent": "probe.varied"}, "two"),
        ({"account": "acme"}, "one three"),
        ({"account": "nobody"}, ""),
        ({"queue": "slow"}, "one"),
        ({"priority": "high"}, "one"),
        ({"priority": "normal"}, "two three"),
        ({"session": "two"}, "two"),
        ({"session": "Two"}, ""),
        ({"tag": "a"}, "three"),
        ({"tag": "grün"}, "one"),
        ({"tag": "gr"}, ""),
        ({"metadata": "size"}, "two three"),
        ({"metadata": "size=5"}, "two"),
        ({"metadata": "size=7"}, "three"),
        ({"metadata": "ok=true"}, "two"),
        ({"metadata": "odd.key=x"}, "two"),
        ({"metadata": "name=acm"}, ""),
        ({"min_cost": "1.5"}, "two"),
        ({"min_cost": "0.00001"}, "two three"),
        ({"error_class": "timeout"}, "two"),
        ({"worker": "w-1"}, "two"),
        ({"error": "longer"}, "two"),
        ({"error": "40 %"}, "two"),
        ({"error": "tooslow"}, "two"),
        ({"error": "l%r"}, ""),
        ({"from": "1h"}, "one two three"),
        ({"to": "1h"}, ""),
        ({"from": "today", "state": "queued"}, "one"),
        ({"q": "three"}, "three"),
        ({"q": "a b"}, "one"),
        ({"q": "name=acme"}, "two"),
        ({"q": "Took"}, "two"),
        ({"q": "nothing like it"}, ""),
    ],
    ids=str,
)
def test_a_filter_finds_what_it_says(some, query, sessions):
    assert {run.session for run in runs_matching(query)} == set(sessions.split())


def test_runs_are_named_one_by_one_and_by_the_beginning_of_an_id(account):
    runs = [builders.make_run(account=account) for _ in range(3)]

    assert set(runs_matching({"ids": f"{runs[0].pk},{runs[2].pk}"})) == {runs[0], runs[2]}
    assert list(runs_matching({"q": str(runs[1].pk)})) == [runs[1]]
    assert set(runs_matching({"q": str(runs[1].pk)[:9]})) >= {runs[1]}


def test_the_time_is_that_of_the_submit(account):
    at = timezone.now().replace(microsecond=0) - dt.timedelta(days=3)
    ids = [uuid.UUID(int=first_id_at((at + dt.timedelta(seconds=n)).timestamp()).int + 5) for n in range(3)]
    for number, pk in enumerate(ids):
        builders.make_run(account=account, session=str(number), id=pk)
    second, third = (at + dt.timedelta(seconds=1)).isoformat(), (at + dt.timedelta(seconds=2)).isoformat()

    assert found(from_=second, to=third) == {"1"}
    assert found(to=second) == {"0"}
    assert found(from_=at.date().isoformat(), to=at.date().isoformat()) == {"0", "1", "2"}
    assert found(from_="2d") == set()


def test_a_long_wait_is_that_of_a_queued_run(account):
    long_ago = timezone.now() - dt.timedelta(minutes=10)
    builders.make_run(account=account, session="long", queued_at=long_ago)
    builders.make_run(account=account, session="short")
    builders.make_run("succeeded", account=account, session="over", queued_at=long_ago)

    assert found(waiting_over="300") == {"long"}


def test_a_run_is_found_by_the_case_of_its_dead_letter(account):
    run = builders.make_run("failed", account=account, session="dead")
    builders.make_run("failed", account=account, session="other")
    letter = builders.make_dead_letter(run)
    if letter.case is None:
        file_letters([letter])
        letter.save(update_fields=["case"])

    assert found(case=str(letter.case_id)) == found(fingerprint=letter.case.fingerprint) == {"dead"}
    assert found(case=str(letter.case_id + 1)) == set()


def test_words_of_an_error_are_looked_for_in_the_newest_failures_only(account, monkeypatch):
    monkeypatch.setattr(filters, "ERROR_WINDOW", 2)
    for number in range(3):
        builders.make_run("failed", account=account, session=str(number))

    assert found(error="built to fail") == {"1", "2"}
    assert found(error="built to fail", session="0") == {"0"}, "the window is that of what else is asked"


@pytest.mark.parametrize(
    ("term", "kind"),
    [("one", "session"), ("grün", "tag"), ("size=5", "metadata"), ("=", "error"), ("deadbeef", "error")],
)
def test_a_search_says_what_it_was_taken_for(some, term, kind):
    assert searched_as(term) == kind


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"state": "gone"}, "scheduled, queued"),
        ({"priority": "x"}, "critical"),
        ({"from": "yesterday"}, "90m"),
        ({"to": "2026-13-01"}, "90m"),
        ({"from": "99999d"}, ""),
        ({"min_cost": "much"}, "credits"),
        ({"min_cost": "-1"}, "credits"),
        ({"min_cost": "1e400"}, "credits"),
        ({"min_cost": "1e999999"}, "credits"),
        ({"min_cost": "NaN"}, "credits"),
        ({"waiting_over": "1.5"}, "seconds"),
        ({"case": "x"}, "number"),
        ({"ids": "1,2"}, "ids"),
        ({"tag": "a\0b"}, "300"),
        ({"session": "x" * 301}, "300"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_value_that_is_none_is_refused(account, query, told):
    if query == {"from": "99999d"}:
        assert list(runs_matching(query)) == []
        return
    with pytest.raises(InvalidFilter) as refused:
        runs_matching(query)

    assert next(iter(query)) in refused.value.message
    assert told in refused.value.message


def test_an_unknown_key_is_refused_and_the_known_ones_are_named():
    with pytest.raises(UnknownFilter, match=r"stat.*Known: from, to, state"):
        runs_matching({"stat": "failed"})
