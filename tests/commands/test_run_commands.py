"""submit_run, watch_run and cancel_runs."""

import datetime as dt
import json

import pytest

from quotas.models import Account
from quotas.prices import install_default_prices
from runs.archive import pack
from runs.events import Event
from runs.models import EventArchive, Run, StoredFile
from runs.states import RunState
from tests import builders, working

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


def test_submit_run_says_when_how_long_and_how_often(manage, default_account):
    first = manage("submit_run", "probe.ret", "--session", "s", "--deadline", "900", "--delay", "60", "--json").json
    options = ("--max-attempts", "5", "--on-lost", "rerun", "--time-limit", "7")
    behind = manage("submit_run", "probe.ret", "--session", "s", "--on-busy", "enqueue", *options, "--json").json

    run = Run.objects.get(pk=first["id"])
    assert (first["state"], first["blocked_by_session"], run.not_before - run.submitted_at) == (
        "scheduled",
        None,
        dt.timedelta(seconds=60),
    )
    assert run.deadline_at - run.submitted_at == dt.timedelta(seconds=900)
    assert (behind["state"], behind["blocked_by_session"], behind["not_before"]) == ("scheduled", "s", None)
    run = Run.objects.get(pk=behind["id"])
    assert (run.max_attempts, run.on_lost, run.time_limit_seconds) == (5, "rerun", 7.0)

    at = "2026-01-01T00:00:00+02:00"
    assert manage("submit_run", "probe.ret", "--start-at", at, "--json").json["state"] == "queued"


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
        (("probe.ret", "--delay", "-1"), "delay: Must be at least 0"),
        (("probe.ret", "--delay", "nan"), "delay: Must be at least 0"),
        (("probe.ret", "--delay", "5", "--start-at", "2031-05-01T09:00:00Z"), "not both"),
        (("probe.ret", "--start-at", "2031-05-01T09:00:00"), "offset from UTC"),
        (("probe.ret", "--deadline", "0"), "deadline_seconds: Must be above 0"),
        (("probe.ret", "--deadline", "5", "--delay", "6"), "over before it may begin"),
        (("probe.ret", "--time-limit", "0"), "time_limit: Must be above 0"),
        (("probe.ret", "--max-attempts", "0"), "max_attempts"),
        (("probe.ret", "--on-busy", "wait"), "wait"),
        (("probe.ret", "--on-lost", "forget"), "forget"),
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


def kept_log(run, *lines):
    """Keep these events as the log of an ended run: (id, kind, data, prev)."""
    pairs = [
        (Event(id=event_id, run=str(run.id), at="2026-01-01T00:00:00Z", kind=kind, data=data), prev)
        for event_id, kind, data, prev in lines
    ]
    EventArchive.objects.filter(run=run).update(body=pack(pairs), event_count=len(pairs), last_id=lines[-1][0])


def test_watch_run_tells_of_waits_retries_and_void_text(manage, default_account):
    run = builders.make_run("succeeded", account=default_account, result=7)
    error = {"class": "provider_limit", "type": "Retryable", "message": "slow down"}
    lost = {"class": "lost_worker", "type": "WorkerLost", "message": "gone"}
    at = "2026-01-01T00:01:00+00:00"
    kept_log(
        run,
        ("1-1", "run.scheduled", {"agent": "x", "not_before": at, "blocked_by_session": "s"}, ""),
        ("2-1", "run.queued", {}, "1-1"),
        ("3-1", "run.started", {"attempt": 1}, "2-1"),
        ("3-2", "output.delta", {"text": "first "}, ""),
        ("4-1", "run.retrying", {"attempt": 2, "of": 3, "not_before": at, "error": error}, "3-2"),
        ("5-1", "run.queued", {}, "4-1"),
        ("6-1", "run.started", {"attempt": 2}, "5-1"),
        ("6-2", "output.rollback", {"after": ""}, ""),
        ("7-1", "run.retaken", {"attempt": 3, "of": 3, "not_before": None, "error": lost}, "6-2"),
        ("8-1", "run.queued", {}, "7-1"),
        ("9-1", "run.started", {"attempt": 3}, "8-1"),
        ("9-2", "output.rollback", {"after": ""}, ""),
        ("9-3", "output.delta", {"text": "third"}, ""),
        ("10-1", "run.handed_back", {"reason": "the worker was stopped"}, "9-3"),
        ("11-1", "run.started", {"attempt": 3}, "10-1"),
        ("11-2", "output.rollback", {"after": "9-2"}, ""),
        ("11-3", "output.delta", {"text": "last"}, ""),
        ("12-1", "run.succeeded", {}, "11-3"),
    )

    told = manage("watch_run", run.id).out

    assert "[run.scheduled] begins not before 2026-01-01 00:01:00 UTC and when its session s is free\n" in told
    assert (
        "first \n[run.retrying] attempt 2 of 3 begins not before 2026-01-01 00:01:00 UTC,"
        " because of provider_limit: slow down\n"
    ) in told
    assert "[run.retaken] attempt 3 of 3 begins at once, because of lost_worker: gone\n" in told
    assert "[run.handed_back] the worker was stopped; the attempt does not count\n" in told
    assert "[output.rollback] the text above since 9-2 is void: this attempt begins anew\nlast\n" in told
    assert told.count("[output.rollback]") == 2  # nothing was shown by the second attempt
    assert told.index("first") < told.index("[output.rollback]") < told.index("third")


def test_watch_run_shows_an_answer_that_was_not_accepted_and_why_it_was_the_last(manage, default_account):
    error = {"class": "bad_output", "type": "BadOutput", "message": "no number", "traceback": "", "cause": "exhausted"}
    run = builders.make_run("failed", account=default_account, error=error, result_json='{"said":1}')

    told = manage("watch_run", run.id).out

    assert 'error: bad_output: no number (exhausted)\nanswer: {\n  "said": 1\n}' in told


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


def test_submit_run_dry_tells_the_estimate_and_stores_nothing(manage, default_account):
    before = working.rows()
    ran = manage("submit_run", "probe.ret", "--dry-run")
    told = manage("submit_run", "probe.ret", "--dry-run", "--delay", "60", "--json").json

    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "estimate: 0.001 credits (1000 micro-units)",
            "account default: 100 of 100 credits available",
            "It would be queued, as number 1 of default.",
        ],
    )
    assert (told["estimate"], told["allowed"], told["state"]) == (1000, True, "scheduled")
    assert working.new_rows(before) == {}


def test_submit_run_dry_names_the_limits_it_would_hit(manage, default_account):
    Account.objects.update(limit=500, max_in_flight=0, period="none")

    ran, told = manage("submit_run", "probe.ret", "--dry-run"), manage("submit_run", "probe.ret", "--dry-run", "--json")

    assert ran.code == told.code == 1
    assert "  too_many_in_flight: The account default has 0 runs in flight; its limit is 0." in ran.out
    assert "quota_exceeded: The account default has 0.0005 of 0.0005 credits available; this run needs" in ran.out
    assert [hit["code"] for hit in told.json["limits_hit"]] == ["too_many_in_flight", "quota_exceeded"]


def test_submit_run_dry_uploads_no_file_and_refuses_what_is_wrong(manage, default_account, tmp_path):
    install_default_prices()
    path = tmp_path / "a.txt"
    path.write_text("text")

    assert manage("submit_run", "document.digest", "--file", str(path), "--dry-run").code == 0
    assert not StoredFile.objects.exists()
    refused = manage("submit_run", "probe.ret", "--dry-run", "--input", '{"bytes": -1}')
    assert (refused.code, Run.objects.count()) == (2, 0)


def test_submit_run_says_in_credits_what_is_missing(manage, default_account):
    Account.objects.update(limit=1500, period="month")
    manage("submit_run", "probe.ret")

    ran, told = manage("submit_run", "probe.ret"), manage("submit_run", "probe.ret", "--json")

    assert (ran.code, told.code) == (2, 2)
    assert "has 0.0005 of 0.0015 credits available; this run needs 0.001; the period ends at 20" in ran.err
    facts = told.json
    assert (facts["code"], facts["limit"], facts["held"], facts["spent"]) == ("quota_exceeded", 1500, 1000, 0)
    assert (facts["available"], facts["needed"]) == (500, 1000)
    assert facts["period_ends_at"]
