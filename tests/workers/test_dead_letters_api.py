"""Dead letters, queues and workers over HTTP: for the scope admin, of the key's account only."""

import pytest
from django.test import Client

from quotas.models import AuditEntry
from runs.models import Run
from runs.states import RunState
from tests import builders
from workers.models import DeadLetter

pytestmark = pytest.mark.django_db
LETTERS = "/api/v1/dead-letters"


def client_of(account, scopes):
    return Client(headers={"authorization": f"Bearer {builders.make_api_key(account, scopes=scopes)[1]}"})


@pytest.fixture
def client(account):
    return client_of(account, ["read", "admin"])


@pytest.fixture
def letter(account):
    return builders.make_dead_letter(builders.make_run(RunState.FAILED, account=account))


def post(client, path, body=None):
    return client.post(path, body or {}, content_type="application/json")


def test_the_list_shows_the_accounts_own(client, letter, other_account):
    builders.make_dead_letter(builders.make_run(RunState.FAILED, account=other_account))
    DeadLetter.objects.create(reason="undecodable", entry_key="s:1", buried_at=letter.buried_at)

    results = client.get(LETTERS).json()["results"]

    assert [row["id"] for row in results] == [letter.pk]
    assert results[0]["run"] == str(letter.run_id)
    assert results[0]["agent"] == "probe.ret"
    assert "payload" not in results[0]


def test_a_letter_carries_the_runs_attempts_and_its_last_answer(client, account):
    error = {"class": "bad_output", "type": "BadOutput", "message": "no number", "traceback": "", "cause": "exhausted"}
    run = builders.make_run("failed", account=account, error=error, result_json='{"said":1}', attempt=3, max_attempts=3)
    letter = builders.make_dead_letter(run, reason="exhausted")
    other = builders.make_dead_letter(builders.make_run("failed", account=account), reason="crash_loop")

    shown = client.get(f"{LETTERS}/{letter.pk}").json()

    facts = {name: shown[name] for name in ("reason", "attempt", "max_attempts", "answer")}
    assert facts == {"reason": "exhausted", "attempt": 3, "max_attempts": 3, "answer": {"said": 1}}
    assert client.get(f"{LETTERS}/{other.pk}").json()["answer"] is None


def test_the_list_is_paged_and_filtered(client, account):
    letters = [builders.make_dead_letter(builders.make_run(RunState.FAILED, account=account)) for _ in range(3)]
    letters[0].state = DeadLetter.State.DISCARDED
    letters[0].save(update_fields=["state"])
    Run.objects.filter(pk=letters[1].run_id).update(retried_by=letters[0].run_id)

    page = client.get(f"{LETTERS}?limit=2").json()
    rest = client.get(f"{LETTERS}?limit=2&after={page['next']}").json()

    assert [row["id"] for row in page["results"] + rest["results"]] == [row.pk for row in reversed(letters)]
    assert rest["next"] is None
    for state, number in (("open", 2), ("requeued", 1), ("discarded", 0)):
        rows = client.get(f"{LETTERS}?state={state}").json()["results"]
        assert [(row["id"], row["state"]) for row in rows] == [(letters[number].pk, state)]


def test_requeue_makes_one_new_run(client, letter):
    first = post(client, f"{LETTERS}/{letter.pk}/requeue", {"reason": "fixed"})
    assert first.status_code == 202, first.content
    new = first.json()["run"]
    assert new["retry_of"] == str(letter.run_id)
    assert first["Location"] == f"/api/v1/runs/{new['id']}"
    again = post(client, f"{LETTERS}/{letter.pk}/requeue")
    assert again.status_code == 409
    assert Run.objects.count() == 2
    shown = client.get(f"{LETTERS}/{letter.pk}").json()
    assert (shown["state"], shown["retried_by"]) == ("requeued", new["id"])
    assert AuditEntry.objects.filter(action__contains="requeue").exists()


def test_discard_needs_a_reason(client, letter):
    for body in ({}, {"reason": ""}, {"reason": "  "}, {"reason": 1}, {"reason": "x" * 501}, {"reason": None}):
        assert post(client, f"{LETTERS}/{letter.pk}/discard", body).status_code == 400, body
    done = post(client, f"{LETTERS}/{letter.pk}/discard", {"reason": "known"})
    assert done.status_code == 200
    assert (done.json()["state"], done.json()["resolved_reason"]) == ("discarded", "known")
    assert post(client, f"{LETTERS}/{letter.pk}/requeue").status_code == 409


def test_another_accounts_letter_is_not_there(letter, other_account):
    stranger = client_of(other_account, ["read", "admin"])
    assert stranger.get(f"{LETTERS}/{letter.pk}").json()["code"] == "no_such_dead_letter"
    assert post(stranger, f"{LETTERS}/{letter.pk}/requeue").status_code == 404
    assert post(stranger, f"{LETTERS}/{letter.pk}/discard", {"reason": "x"}).status_code == 404
    letter.refresh_from_db()
    assert letter.state == "open"


@pytest.mark.parametrize("path", ["dead-letters", "queue/status", "workers"])
def test_all_of_it_needs_the_scope_admin(account, path):
    response = client_of(account, ["read", "submit", "cancel"]).get(f"/api/v1/{path}")
    assert (response.status_code, response.json()["needed"]) == (403, "admin")


def test_queue_status_and_workers(client, account):
    builders.make_run(account=account)
    worker = builders.make_worker()

    status = client.get("/api/v1/queue/status").json()
    listed = client.get("/api/v1/workers").json()["results"]

    assert {row["priority"] for row in status["queues"]} == {"critical", "high", "normal", "low"}
    assert status["workers_alive"] == 1
    assert [row["name"] for row in listed] == [worker.name]
