"""`bench fill`: made-up runs that hold together, and go away again."""

import pytest

from agentops.benchmark.made_up import ACCOUNTS, AGENTS, TEXT_BYTES
from agentops.invariants import broken_log, money_drift, unended
from quotas import append_only
from quotas.models import Account, Hold, LedgerEntry
from runs.models import Run
from runs.states import TERMINAL, RunState
from tests import builders
from workers.case_filing import _fingerprint
from workers.models import Case, CaseAccount, DeadLetter

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_is_made_up_holds_together(manage):
    ran = manage("bench", "fill", "--json", "--runs", "600", "--dead", "60")

    assert (ran.code, ran.json["runs"], ran.json["dead"]) == (0, 600, 60), ran.err
    assert set(Run.objects.values_list("state", flat=True)) == set(RunState.values)
    assert Run.objects.values("agent").distinct().count() == AGENTS
    assert Account.objects.filter(name__startswith="fill-").count() == ACCOUNTS
    assert money_drift(Account.objects.all()) == []
    ended = Run.objects.filter(state__in=[str(state) for state in TERMINAL])
    assert unended(ended) == []
    assert [problem for run in ended.exclude(archive=None) for problem in broken_log(run)] == []
    texts = [max(len(run.input_json), len(run.result_json or ""), len(str(run.error))) for run in Run.objects.all()]
    assert sum(length >= TEXT_BYTES for length in texts) == 6


def test_dead_letters_are_in_their_cases_and_the_cases_count_them(manage):
    manage("bench", "fill", "--runs", "400", "--dead", "100")

    letters = list(DeadLetter.objects.select_related("run", "case"))
    assert len(letters) == Run.objects.filter(state="failed").count() == 100
    assert [letter.pk for letter in letters if letter.case.fingerprint != _fingerprint(letter).value] == []
    for case in Case.objects.all():
        of_case = [letter for letter in letters if letter.case_id == case.pk]
        is_open = [letter for letter in of_case if letter.state == "open"]
        assert (case.count, case.open_count) == (len(of_case), len(is_open))
        assert case.account_count == CaseAccount.objects.filter(case=case).count()
    assert sum(share.cost for share in CaseAccount.objects.all()) == sum(letter.run.cost for letter in letters)


def test_all_of_it_goes_away_and_the_ledger_is_kept_by_its_triggers_again(manage):
    manage("bench", "fill", "--runs", "100", "--dead", "10")
    refused = manage("bench", "fill", "--json", "--runs", "10", "--dead", "1")

    removed = manage("bench", "fill", "--remove", "--json")

    assert refused.code == 2
    assert "made-up runs here already" in refused.json["detail"]
    assert (removed.code, removed.json) == (0, {"runs": 100, "ledger": True})
    for model in (Run, Hold, LedgerEntry, DeadLetter, Case):
        assert not model.objects.exists(), model
    assert not Account.objects.filter(name__startswith="fill-").exists()
    assert append_only.missing() == set()


def test_an_instance_with_runs_of_its_own_is_refused_and_keeps_them(manage, account):
    run = builders.make_run("succeeded", account=account, cost=5)
    refused = manage("bench", "fill", "--json", "--runs", "20", "--dead", "2")
    forced = manage("bench", "fill", "--json", "--runs", "20", "--dead", "2", "--force")

    removed = manage("bench", "fill", "--remove", "--json")

    assert refused.code == 2
    assert "not made up" in refused.json["detail"]
    assert (forced.code, removed.json) == (0, {"runs": 20, "ledger": False})
    assert list(Run.objects.all()) == [run]
    assert LedgerEntry.objects.filter(run_id=run.pk).count() == 1


def test_more_dead_letters_than_half_of_the_runs_are_refused(manage):
    assert "at most half" in manage("bench", "fill", "--json", "--runs", "10", "--dead", "6").json["detail"]
