"""submit_run, watch_run and cancel_runs."""

import json

import pytest

from runs.models import Run, StoredFile
from runs.states import RunState
from tests import builders

UNKNOWN = "01890000-0000-7000-8000-000000000000"


def test_submit_run_prints_the_id(manage, default_account):
    ran = manage(
        "submit_run",
        "probe.ret",
        "--input",
        '{"value": 1}',
        "--priority",
        "low",
        "--session",
        "s",
        "--idempotency-key",
        "k",
    )

    run = Run.objects.get()
    assert (ran.code, ran.out.strip()) == (0, str(run.id))
    assert (run.account, run.input, run.priority, run.session) == (default_account, {"value": 1}, "low", "s")
    assert run.submitted_by.startswith("command")


def test_submit_run_repeats_by_its_key(manage, default_account):
    arguments = ("submit_run", "probe.ret", "--idempotency-key", "k", "--json")
    first, again = manage(*arguments), manage(*arguments)
    assert (first.json["replayed"], again.json["replayed"]) == (False, True)
    assert first.json["id"] == again.json["id"]
    other = manage(*arguments, "--input", '{"value": 2}')
    assert (other.code, other.json["code"]) == (2, "idempotency_mismatch")


def test_submit_run_reads_its_input_from_a_file(manage, default_account, tmp_path):
    path = tmp_path / "input.json"
    path.write_text('{"value": "ü"}', encoding="utf-8")
    assert manage("submit_run", "probe.ret", "--input", f"@{path}").code == 0
    assert Run.objects.get().input == {"value": "ü"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no.such",), "There is no agent no.such"),
        (("probe.ret", "--input", "{"), "not valid JSON"),
        (("probe.ret", "--input", '{"a":1,"a":2}'), "twice"),
        (("probe.ret", "--input", '{"a":"\\u0000"}'), "NUL"),
        (("probe.ret", "--input", "@/no/such/file"), "cannot read"),
        (("probe.ret", "--file", "/no/such/file"), "FIELD=PATH"),
        (("probe.sleep", "--input", '{"seconds":"x"}'), "seconds"),
        (("probe.ret", "--idempotency-key", "a\0"), "printable"),
        (("probe.ret", "--session", "x" * 201), "session"),
        (("probe.ret", "--priority", "urgent"), "urgent"),
        (("document.digest", "--file", "/no/such/file"), "cannot read"),
        (("assistant.chat", "--input", '{"system": "x"}'), "'prompt' is a required property, or 'messages' is"),
    ],
)
def test_submit_run_refuses_with_a_sentence(manage, default_account, arguments, said):
    ran = manage("submit_run", *arguments)
    assert (ran.code, ran.out) in {(2, ""), (1, "")}
    assert said in ran.err
    assert not Run.objects.exists()


def test_submit_run_uploads_a_file_for_the_agents_file_field(manage, default_account, tmp_path):
    path = tmp_path / "notes.md"
    path.write_text("# Notes")
    manage("set_price", "smollm2-135m-instruct", "input=1", "output=1", "embedding=1")

    for given in (str(path), f"file={path}"):
        ran = manage("submit_run", "document.digest", "--file", given)
        assert ran.code == 0, ran.err
        run = Run.objects.get(pk=ran.out.strip())
        row = StoredFile.objects.get(pk=run.input["file"])
        assert (row.name, row.content_type, row.size, row.account) == ("notes.md", "text/markdown", 7, default_account)
    bad = tmp_path / "x.pdf"
    bad.write_text("no pdf")
    assert manage("submit_run", "document.digest", "--file", bad).code == 2


@pytest.mark.parametrize(
    ("state", "code"),
    [(RunState.SUCCEEDED, 0), (RunState.FAILED, 1), (RunState.CANCELLED, 3), (RunState.INTERRUPTED, 3)],
)
def test_watch_run_ends_with_the_outcome(manage, default_account, state, code):
    run = builders.make_run(state, account=default_account, result={"a": 1}, cost=1500)

    ran = manage("watch_run", run.id)

    assert ran.code == code
    assert f"[run.{state}]" in ran.out
    assert f"{state}: run {run.id}" in ran.out
    assert "cost 0.0015 credits (1500 micro-units)" in ran.out


def test_watch_run_prints_one_json_value_a_line(manage, default_account):
    run = builders.make_run(RunState.SUCCEEDED, account=default_account, result="done")
    lines = [json.loads(line) for line in manage("watch_run", run.id, "--json").out.splitlines()]
    assert [line["kind"] for line in lines[:-1]] == ["run.queued", "run.started", "run.succeeded"]
    assert (lines[-1]["state"], lines[-1]["result"]) == ("succeeded", "done")
    rest = manage("watch_run", run.id, "--json", "--after", "2-1").out.splitlines()
    assert len(rest) == 2


def test_watch_run_shows_where_an_agent_broke(manage, default_account):
    error = {"class": "agent_bug", "type": "KeyError", "message": "'x'", "traceback": "Traceback: line 9"}
    run = builders.make_run(RunState.FAILED, account=default_account, error=error)
    assert "Traceback: line 9\nerror: agent_bug: 'x'" in manage("watch_run", run.id).out


def test_watch_run_refuses_what_is_not_there(manage, default_account, account):
    foreign = builders.make_run(RunState.SUCCEEDED, account=account)
    for given in ("x", UNKNOWN, foreign.id):
        assert manage("watch_run", given).code == 2
    run = builders.make_run(RunState.SUCCEEDED, account=default_account)
    assert manage("watch_run", run.id, "--after", "x").code == 2


def test_cancel_runs_by_id(manage, default_account):
    queued, running = builders.make_run(account=default_account), builders.make_run("running", account=default_account)
    ran = manage("cancel_runs", queued.id, running.id, "--json")
    assert ran.code == 0
    assert {row["run"]: row["what"] for row in ran.json["results"]} == {
        str(queued.id): "cancelled",
        str(running.id): "requested",
    }
    assert manage("cancel_runs", queued.id).code == 1


def test_cancel_runs_by_filter_needs_yes_and_leaves_the_others(manage, default_account, account):
    mine = [builders.make_run(account=default_account, session="s") for _ in range(3)]
    kept = [
        builders.make_run(account=default_account, session="t"),
        builders.make_run(account=account, session="s"),
        builders.make_run("succeeded", account=default_account, session="s"),
    ]
    refused = manage("cancel_runs", "--session", "s")
    assert refused.code == 2
    assert "3 runs match" in refused.err
    done = manage("cancel_runs", "--session", "s", "--state", "queued", "--yes", "--json")
    assert (done.code, done.json["count"]) == (0, 3)
    assert {run.state for run in Run.objects.filter(pk__in=[run.pk for run in mine])} == {"cancelled"}
    assert "cancelled" not in {run.state for run in Run.objects.filter(pk__in=[run.pk for run in kept])}


def test_cancel_runs_counts_in_words(manage, default_account):
    assert manage("cancel_runs", "--session", "s").out == "No open run matches --session s: nothing was cancelled.\n"
    builders.make_run(account=default_account, session="s")
    assert "1 run matches --session s" in manage("cancel_runs", "--session", "s").err


def test_cancel_runs_cancels_nothing_when_one_id_is_wrong(manage, default_account):
    run = builders.make_run(account=default_account)
    for given in ([run.id, UNKNOWN], [run.id, "x"], [], [run.id, "--agent", "probe.ret"]):
        assert manage("cancel_runs", *given).code == 2, given
    run.refresh_from_db()
    assert run.state == "queued"
