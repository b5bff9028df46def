"""A COMMIT whose answer was lost, at the door: not a failure, and not done twice (protocol 1.8). On PostgreSQL."""

import io
import json

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction

from quotas.api_keys import create_api_key, find_live_key, rotate
from quotas.models import ApiKey, AuditEntry, LedgerEntry
from runs import broker
from runs.models import Run
from runs.services import cancel_run, requeue_run, submit_run
from tests import builders, invariants, working
from tests.api import RUNS, Api, problem
from tests.desk import Desk, end, in_stream
from tests.lying import Fate
from workers.sweeper import Sweeper

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]
ONE_RUN = {"Run": 1, "Transition": 1, "Hold": 1}


@pytest.fixture
def api(account):
    return Api(builders.make_api_key(account, scopes=["read", "submit", "cancel", "admin"])[1])


def sweep():
    Sweeper(working.config(), broker.client()).run_once()


def submit(account, **fields):
    return submit_run(**({"account": account, "agent": "probe.ret", "input": {}, "actor": "tester"} | fields))


# -- the proxy itself ------------------------------------------------------------------------------------------------
def test_the_proxy_passes_on_what_it_is_not_told_to_lose(proxy, account):
    with transaction.atomic():
        type(account).objects.filter(pk=account.pk).update(limit=7)
    proxy.lose_next_commit()

    with pytest.raises(OperationalError), transaction.atomic():
        type(account).objects.filter(pk=account.pk).update(limit=8)

    account.refresh_from_db()
    assert (account.limit, proxy.lost) == (8, 1)


@pytest.mark.parametrize("extended", [False, True])
def test_the_proxy_sees_a_commit_in_either_form(proxy, extended):
    entry = connection.settings_dict
    with psycopg.connect(host=entry["HOST"], user=entry["USER"], dbname=entry["NAME"], autocommit=True) as client:
        client.execute("BEGIN")
        proxy.lose_next_commit()

        with pytest.raises(psycopg.OperationalError):
            client.execute("COMMIT", binary=extended)

    assert proxy.lost == 1


def test_the_proxy_is_down_until_it_is_told_otherwise(proxy, account):
    account.refresh_from_db()
    proxy.refuse()

    for _ in range(2):
        with pytest.raises(OperationalError):
            account.refresh_from_db()
        connection.close()
    proxy.accept()
    account.refresh_from_db()


# -- submit and requeue ----------------------------------------------------------------------------------------------
def test_a_submit_whose_answer_is_lost_is_accepted_once(proxy, account, redis):
    before = working.rows()
    proxy.lose_next_commit()

    submitted = submit(account)

    assert (proxy.lost, submitted.replayed, submitted.run.state) == (1, False, "queued")
    assert working.new_rows(before) == ONE_RUN
    assert working.log_of(submitted.run) == ["1-1"]
    assert in_stream(redis) == 1
    end(Desk().handle(), account)


def test_a_submit_over_http_whose_answer_is_lost_is_accepted(proxy, account, api, redis):
    proxy.lose_next_commit()

    answer = api.submit()

    assert (answer.status_code, proxy.lost) == (202, 1)
    assert str(Run.objects.get().pk) == answer.json()["id"]
    assert in_stream(redis) == 1


def test_a_submit_that_a_caller_wraps_is_the_callers_to_know(proxy, account, redis):
    proxy.lose_next_commit()

    with pytest.raises(OperationalError), transaction.atomic():
        submit(account, idempotency_key="k")
    assert (Run.objects.count(), in_stream(redis)) == (1, 0)

    assert submit(account, idempotency_key="k").replayed
    sweep()
    sweep()
    assert in_stream(redis) == 1
    end(Desk().handle(), account)


def test_a_connection_lost_inside_a_callers_transaction_leaves_nothing(proxy, account, redis):
    before = working.rows()

    def twice():
        with transaction.atomic():
            submit(account)
            proxy.refuse()
            proxy.accept()
            submit(account)

    with pytest.raises(OperationalError):
        twice()
    assert (working.new_rows(before), in_stream(redis)) == ({}, 0)


def test_a_submit_while_the_database_stays_away_is_told_as_unknown_and_its_key_finds_it(proxy, account, api, redis):
    before = working.rows()
    proxy.lose_next_commit(Fate.LOST_AND_DOWN)

    unknown = api.submit(key="k")
    still = api.submit(key="k")
    proxy.accept()
    again = api.submit(key="k")

    for answer in (unknown, still):
        assert "unknown" in problem(answer, 503, "database_unavailable")["detail"]
        assert answer["Retry-After"] == "1"
    assert (again.status_code, again["Idempotent-Replayed"], proxy.lost) == (200, "true", 1)
    assert working.new_rows(before) == ONE_RUN
    assert again.json()["id"] == str(Run.objects.get().pk)
    sweep()
    assert in_stream(redis) == 1


def test_a_submit_whose_commit_is_late_is_told_as_unknown_and_its_key_finds_it(proxy, account, api):
    proxy.lose_next_commit(Fate.LATE)

    problem(api.submit(key="k"), 503, "database_unavailable")
    proxy.deliver()
    again = api.submit(key="k")  # waits for the account's lock, which the late one holds

    assert (again.status_code, Run.objects.count()) == (200, 1)
    invariants.check_money([account])


def test_a_requeue_whose_answer_is_lost_is_accepted_once(proxy, account, redis):
    old = builders.make_run("failed", account=account)
    before = working.rows()
    proxy.lose_next_commit()

    new = requeue_run(run_id=old.pk, actor="tester").run

    old.refresh_from_db()
    assert (old.retried_by, proxy.lost) == (new.pk, 1)
    assert working.new_rows(before) == ONE_RUN | {"AuditEntry": 1}
    assert in_stream(redis) == 1


def test_a_retry_while_the_database_stays_away_is_found_by_its_key(proxy, account, api):
    old = builders.make_run("failed", account=account)
    proxy.lose_next_commit(Fate.LOST_AND_DOWN)

    problem(api.post(f"{RUNS}/{old.pk}/retry", **{"idempotency-key": "k"}), 503, "database_unavailable")
    proxy.accept()
    again = api.post(f"{RUNS}/{old.pk}/retry", **{"idempotency-key": "k"})

    assert (again.status_code, Run.objects.filter(retry_of=old).count()) == (200, 1)


# -- keys and manual lines -------------------------------------------------------------------------------------------
def test_a_key_whose_answer_is_lost_is_shown_and_works(proxy, account):
    proxy.lose_next_commit()
    made, raw = create_api_key(account=account, name="ci", scopes=["read"], actor="tester")
    proxy.lose_next_commit()
    heir, raw_of_heir = rotate(made, actor="tester")

    assert proxy.lost == 2
    assert [find_live_key(raw), find_live_key(raw_of_heir)] == [made, heir]
    assert (ApiKey.objects.filter(name="ci").count(), AuditEntry.objects.count()) == (2, 2)


def test_a_manual_line_whose_answer_is_lost_is_told_as_written(proxy, account):
    said = io.StringIO()
    proxy.lose_next_commit()

    call_command("grant", "--account", account.name, "--amount", "5", "--reason", "gift", "--json", stdout=said)

    line = LedgerEntry.objects.get()
    assert (json.loads(said.getvalue())["id"], line.amount, proxy.lost) == (line.pk, -5, 1)
    invariants.check_money([account])


# -- cancel and dead letters -----------------------------------------------------------------------------------------
def test_a_cancel_whose_answer_is_lost_is_told_as_unknown_and_may_be_repeated(proxy, account, api):
    run = working.submit(account)
    proxy.lose_next_commit()

    problem(api.post(f"{RUNS}/{run.pk}/cancel"), 503, "database_unavailable")
    again = api.post(f"{RUNS}/{run.pk}/cancel")

    assert (again.status_code, again.json()["what"]) == (200, "cancelled")
    assert (run.transitions.count(), AuditEntry.objects.filter(action="run.cancel").count()) == (2, 1)
    assert Desk().handle().started == []
    invariants.check(account)


def test_a_cancel_of_a_running_run_marks_it_though_the_answer_is_lost(proxy, account):
    run = working.submit(account)
    handled = Desk().handle()
    proxy.lose_next_commit()

    with pytest.raises(OperationalError):
        cancel_run(run_id=run.pk, actor="tester")
    marked = Run.objects.get(pk=run.pk).cancel_requested_at
    assert cancel_run(run_id=run.pk, actor="tester").what == "requested"

    assert marked is not None
    assert Run.objects.get(pk=run.pk).cancel_requested_at == marked
    end(handled, account)
    assert Run.objects.get(pk=run.pk).state == "cancelled"


def test_a_dead_letter_requeued_with_a_lost_answer_makes_one_run(proxy, account, api, redis):
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))
    address = f"/api/v1/dead-letters/{letter.pk}/requeue"
    proxy.lose_next_commit()

    problem(api.post(address), 503, "database_unavailable")
    again = problem(api.post(address), 409, "not_open")

    new = Run.objects.get(retry_of=letter.run)
    assert (again["state"], again["retried_by"]) == ("requeued", str(new.pk))
    assert in_stream(redis) == 0
    sweep()
    assert in_stream(redis) == 1
    end(Desk().handle(), account)


def test_a_discard_with_a_lost_answer_is_done_and_the_repeat_says_so(proxy, account, api):
    letter = builders.make_dead_letter(builders.make_run("failed", account=account))
    proxy.lose_next_commit()

    problem(api.post(f"/api/v1/dead-letters/{letter.pk}/discard", {"reason": "known"}), 503, "database_unavailable")
    again = api.post(f"/api/v1/dead-letters/{letter.pk}/discard", {"reason": "known"})

    assert problem(again, 409, "not_open")["state"] == "discarded"
    assert AuditEntry.objects.filter(action="dead_letter.discard").count() == 1
