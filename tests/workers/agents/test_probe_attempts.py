"""The probes that fail for some attempts: each attempt alone, without servers."""

import pytest

from agentops.testing import run_agent
from runs.agents import get_agent
from runs.outcomes import ErrorClass
from workers.agents.probe import NO_PROGRESS_SECONDS


def test_the_bad_output_probe_answers_wrong_until_it_may_be_right():
    by_schema = run_agent("probe.bad_output", {"fails": 1})
    by_itself = run_agent("probe.bad_output", {"by": "ctx"}, attempt=7)
    good = run_agent("probe.bad_output", {"fails": 1}, attempt=2)

    assert (by_schema.outcome, by_schema.error["class"]) == ("failed", "bad_output")
    assert "does not fit the output schema" in by_schema.error["message"]
    assert (by_itself.error["class"], by_itself.error["type"]) == ("bad_output", "BadOutput")
    assert by_itself.error["message"] == "no whole number on attempt 7"
    assert (good.outcome, good.result) == ("succeeded", {"answer": 2})


@pytest.mark.parametrize("error_class", ["provider_transient", "provider_limit"])
def test_the_retryable_probe_fails_like_a_provider(error_class):
    failed = run_agent("probe.retryable", {"fails": 2, "class": error_class}, attempt=2)
    done = run_agent("probe.retryable", {"fails": 2, "class": error_class}, attempt=3)

    assert (failed.error["class"], failed.output) == (error_class, "This is what attempt 2 says. ")
    assert (done.outcome, done.result) == ("succeeded", {"attempt": 3})


def test_the_silent_probe_has_a_limit_of_no_progress():
    done = run_agent("probe.silent", {"ticks": 3, "seconds": 0})

    assert (done.result, len(done.events)) == ({"ticks": 3}, 3)
    assert get_agent("probe.silent").no_progress_seconds == NO_PROGRESS_SECONDS


@pytest.mark.parametrize("name", ["assistant.chat", "document.digest"])
def test_the_shipped_agents_are_tried_again_when_a_provider_hiccups_and_only_then(name):
    spec = get_agent(name)

    assert (spec.max_attempts, spec.policy) == (3, "interrupt")
    assert set(spec.retry_on) == {ErrorClass.PROVIDER_TRANSIENT, ErrorClass.PROVIDER_LIMIT}
    assert spec.allow == {"time_limit", "max_attempts", "on_lost"}
