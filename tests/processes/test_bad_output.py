"""Answers of no use, and handlers that fall silent, through a real worker: tried again, then set aside.

What clients see of it comes over HTTP; what they see while it happens, from the log.
"""

import pytest
from django.test import Client

from runs.reader import read_events
from tests import builders, invariants
from tests.processes.trials import kinds, submit, until
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
def account(stack):
    return builders.make_account()


@pytest.fixture
def api(account):
    key = builders.make_api_key(account, scopes=["read", "admin"])[1]
    return Client(headers={"authorization": f"Bearer {key}"})


def test_a_bad_answer_is_tried_again_and_the_last_one_is_kept(stack, account, api):
    stack.worker()
    mended, never = submit(account, "probe.bad_output", fails=1), submit(account, "probe.bad_output", by="ctx")
    until("succeeded", mended, timeout=60)
    until("failed", never, timeout=60)

    good, bad = (api.get(f"/api/v1/runs/{run.pk}").json() for run in (mended, never))
    assert (good["result"], good["attempt"], good["max_attempts"], good["error"]) == ({"answer": 2}, 2, 3, None)
    first, second = good["attempts"]
    assert (first["outcome"], first["result"]) == ("failed", {"answer": "none on attempt 1"})
    assert first["error"]["class"] == "bad_output"
    assert (second["outcome"], second["result"]) == ("succeeded", None)
    assert (bad["result"], bad["attempt"]) == ({"answer": "none on attempt 3"}, 3)
    assert [one["number"] for one in bad["attempts"]] == [1, 2, 3]
    assert (bad["error"]["class"], bad["error"]["cause"]) == ("bad_output", "exhausted")
    letter = DeadLetter.objects.get()
    shown = api.get(f"/api/v1/dead-letters/{letter.pk}").json()
    assert (shown["run"], shown["reason"], shown["answer"]) == (bad["id"], "exhausted", bad["result"])
    assert (shown["error_class"], shown["message"]) == ("bad_output", "no whole number on attempt 3")
    invariants.check(account)


def test_each_attempt_but_the_first_begins_by_taking_back_what_was_shown(stack, account):
    stack.worker()
    run = submit(account, "probe.bad_output", fails=2)
    until("succeeded", run, timeout=60)

    life = ["run.queued", "run.started", "run.retrying"]
    assert [kind for kind in kinds(run) if kind != "run.succeeded"] == [*life, *life, "run.queued", "run.started"]
    events = read_events(run.pk, "").events
    shown = [(event["kind"], event["data"]) for event in events if event["kind"].startswith("output.")]
    assert shown == [
        ("output.delta", {"text": "This is the answer of attempt 1. "}),
        ("output.rollback", {"after": ""}),
        ("output.delta", {"text": "This is the answer of attempt 2. "}),
        ("output.rollback", {"after": ""}),
        ("output.delta", {"text": "This is the answer of attempt 3. "}),
    ]
    retries = [event["data"] for event in events if event["kind"] == "run.retrying"]
    assert [(data["attempt"], data["of"], data["error"]["class"]) for data in retries] == [
        (2, 3, "bad_output"),
        (3, 3, "bad_output"),
    ]
    for event in events:
        if event["kind"] == "output.rollback":
            assert event["id"].endswith("-2")  # right after the `run.started` of its attempt


def test_a_handler_that_falls_silent_is_stopped_and_one_that_speaks_in_time_is_not(stack, account, api):
    stack.worker()
    silent = submit(account, "probe.silent", ticks=1, seconds=100)
    speaking = submit(account, "probe.silent", ticks=45, seconds=0.1)  # longer than the limit altogether
    until("succeeded", speaking, timeout=60)
    until("failed", silent, timeout=60)

    error = api.get(f"/api/v1/runs/{silent.pk}").json()["error"]
    assert (error["class"], error["cause"]) == ("timeout", "fatal")
    assert error["message"] == "The handler showed no progress for 3 s: no event came from it."
    assert DeadLetter.objects.get().run_id == silent.pk
    invariants.check(account)
