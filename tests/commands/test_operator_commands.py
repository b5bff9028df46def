"""dead_letters and queue_status."""

from runs.models import Run
from runs.states import RunState
from tests import builders
from workers.models import DeadLetter


def letter_of(account):
    return builders.make_dead_letter(builders.make_run(RunState.FAILED, account=account))


def test_dead_letters_list_and_show(manage, default_account, account):
    mine, other = letter_of(default_account), letter_of(account)

    assert [row["id"] for row in manage("dead_letters", "list", "--json").json["results"]] == [mine.pk]
    assert str(mine.run_id) in manage("dead_letters", "list").out.replace("\n", "")
    assert manage("dead_letters", "--account", account.name, "list", "--json").json["results"][0]["id"] == other.pk
    shown = manage("dead_letters", "show", mine.pk, "--json").json
    assert (shown["id"], shown["run"], shown["payload"]) == (mine.pk, str(mine.run_id), "")
    assert "built to fail" in manage("dead_letters", "show", mine.pk).out
    assert manage("dead_letters", "show", other.pk).code == 2
    assert manage("dead_letters", "show", 10**30).code == 2
    assert manage("dead_letters", "list", "--limit", 0).code == 2


def test_dead_letters_says_what_it_can_do_and_when_there_are_none(manage, default_account):
    assert "list|cases|show|requeue|discard" in manage("dead_letters").err
    assert manage("dead_letters", "list").out == "There are no dead letters in state open.\n"
    assert manage("dead_letters", "list", "--json").json == {"results": []}


def test_dead_letters_requeue_makes_one_run_each(manage, default_account):
    first, second = letter_of(default_account), letter_of(default_account)

    ran = manage("dead_letters", "requeue", first.pk, second.pk, "--reason", "fixed", "--json")

    assert ran.code == 0
    made = {row["dead_letter"]: row["run"] for row in ran.json["results"]}
    assert Run.objects.get(pk=made[first.pk]).retry_of_id == first.run_id
    assert manage("dead_letters", "requeue", first.pk).code == 2
    third = letter_of(default_account)
    mixed = manage("dead_letters", "requeue", first.pk, third.pk, "--json")
    assert mixed.code == 1
    assert ["code" in row for row in mixed.json["results"]] == [True, False]
    assert manage("dead_letters", "list", "--state", "requeued", "--json").json["results"][0]["id"] == third.pk


def test_dead_letters_discard_needs_a_reason(manage, default_account):
    letter = letter_of(default_account)
    assert manage("dead_letters", "discard", letter.pk, "--reason", " ").code == 2
    assert manage("dead_letters", "discard", letter.pk, "--reason", "known").code == 0
    row = DeadLetter.objects.get()
    assert (row.state, row.resolved_reason) == ("discarded", "known")
    assert row.resolved_by.startswith("command")


def test_dead_letters_of_a_case_are_listed_and_requeued_together(manage, default_account, account, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # wide enough that no word of the table is cut
    mine, second, others = letter_of(default_account), letter_of(default_account), letter_of(account)
    assert mine.case_id == others.case_id

    row = manage("dead_letters", "cases", "--json").json["results"][0]
    assert (row["id"], row["count"], row["open_count"], row["state"]) == (mine.case_id, 2, 2, "open")
    assert "built to fail" in manage("dead_letters", "cases", "--state", "open").out
    assert manage("dead_letters", "cases", "--state", "resolved").out == "There are no cases.\n"
    listed = manage("dead_letters", "list", "--case", mine.case_id, "--json").json["results"]
    assert [letter["id"] for letter in listed] == [second.pk, mine.pk]
    ran = manage("dead_letters", "requeue", "--case", mine.case_id, "--json")
    assert [row["dead_letter"] for row in ran.json["results"]] == [mine.pk, second.pk]
    assert manage("dead_letters", "requeue", "--case", mine.case_id, "--json").json == {"results": []}
    assert manage("dead_letters", "requeue", "--case", mine.case_id + 1).code == 2
    assert manage("dead_letters", "requeue", mine.pk, "--case", mine.case_id).code == 2
    assert manage("dead_letters", "requeue").code == 2
    others.refresh_from_db()
    assert others.state == "open"


def test_dead_letters_tells_people_in_sentences(manage, default_account):
    first, second, third = (letter_of(default_account) for _ in range(3))
    manage("dead_letters", "discard", first.pk, "--reason", "known")

    ran = manage("dead_letters", "requeue", first.pk, second.pk)
    run = Run.objects.get(retry_of=second.run_id)
    refused = f"{first.pk}: The dead letter {first.pk} is discarded already; nothing was done."
    assert (ran.code, ran.out.splitlines()) == (1, [refused, f"{second.pk}: requeued as run {run.pk}"])
    assert manage("dead_letters", "discard", third.pk, "--reason", "x").out == f"{third.pk}: discarded\n"
    assert manage("dead_letters", "restore", first.pk, "--reason", "x").out == f"{first.pk}: open again\n"
    manage("dead_letters", "discard", first.pk, "--reason", "known")
    none = manage("dead_letters", "requeue", "--case", first.case_id)
    assert (none.code, none.out) == (0, f"There are no open dead letters in case {first.case_id}.\n")


def test_queue_status_counts_what_waits(manage, default_account):
    builders.make_worker()
    ran = manage("queue_status", "--json")
    assert ran.code == 0
    assert [row["priority"] for row in ran.json["queues"]] == ["critical", "high", "normal", "low"]
    assert ran.json["workers_alive"] == 1
    assert "workers alive: 1" in manage("queue_status").out


def test_queue_status_counts_from_the_database_while_redis_is_away(manage, default_account, own_redis):
    builders.make_run(account=default_account)
    own_redis.kill()
    ran = manage("queue_status", "--json")
    assert (ran.code, ran.json["redis"]) == (0, "away")
    assert sum(row["waiting"] for row in ran.json["queues"]) == 1
