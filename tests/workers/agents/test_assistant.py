"""`assistant.chat` on the real embedded model, and against an endpoint that answers wrong."""

import re
import threading

import pytest
from django.conf import settings as django_settings

from agentops.testing import run_agent
from quotas.prices import PriceTable
from runs.errors import InvalidInputRefused
from tests.probes import eventually
from tests.workers.agents.conftest import MODEL
from tests.workers.agents.endpoint import endpoint

pytestmark = pytest.mark.usefixtures("priced")
CHAT = re.compile(r"request POST /v1/chat/completions (?:200|client left)(.*)")


def chats(log) -> list[dict[str, int]]:
    """Return the token counts of each chat request in the model server's log."""
    found = CHAT.findall(log.read_text())
    return [{k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", line)} for line in found]


def test_two_prompts_stream_two_texts_and_cost_their_reported_tokens(model):
    before = len(chats(model))

    fox = run_agent("assistant.chat", {"prompt": "Tell a story about a fox.", "max_tokens": 24})
    sea = run_agent("assistant.chat", {"prompt": "What is the sea?", "system": "Be short.", "max_tokens": 24})

    assert (fox.outcome, sea.outcome) == ("succeeded", "succeeded"), fox.error or sea.error
    assert fox.result["text"] == fox.output != ""
    assert fox.result["text"] != sea.result["text"]
    assert fox.result["model"] == MODEL
    assert fox.result["finish_reason"] in {"stop", "length"}
    counted = eventually(lambda: len(chats(model)) == before + 2 and chats(model)[before:])
    for done, reported in zip((fox, sea), counted, strict=True):
        used = done.usage[MODEL]
        assert used["input"] + used.get("cached", 0) == reported["prompt_tokens"]
        assert used["output"] == reported["completion_tokens"]
        assert done.cost == PriceTable.current().cost(MODEL, used) > 0


def test_a_conversation_is_sent_as_it_is(settings):
    def script(reply, body):
        reply.start_stream()
        reply.chunk("Yes.")
        reply.chunk(finish="stop")
        reply.chunk(
            usage={
                "prompt_tokens": 30,
                "completion_tokens": 9,
                "total_tokens": 39,
                "prompt_tokens_details": {"cached_tokens": 10},
                "completion_tokens_details": {"reasoning_tokens": 4},
            }
        )
        reply.frame("[DONE]")

    messages = [{"role": "user", "content": "Hm?"}, {"role": "assistant", "content": "Yes?"}]
    with endpoint(settings, script) as server:
        done = run_agent("assistant.chat", {"messages": messages, "model": "gpt-4o-mini", "temperature": 0})

    assert done.result == {"text": "Yes.", "model": "gpt-4o-mini", "finish_reason": "stop"}
    assert done.usage == {"gpt-4o-mini": {"input": 20, "cached": 10, "output": 5, "reasoning": 4}}
    [(path, body)] = server.requests
    assert path == "/v1/chat/completions"
    assert (body["messages"], body["model"], body["temperature"]) == (messages, "gpt-4o-mini", 0)
    assert body["stream_options"] == {"include_usage": True}
    assert server.headers[0]["connection"] == "close"  # no request is sent into a connection the server is closing


def test_a_limit_known_under_its_newer_name_is_sent_again_under_it(settings):
    def script(reply, body):
        if "max_tokens" in body:
            reply.problem(400, "Unsupported parameter", param="max_tokens", code="unsupported_parameter")
            return
        reply.start_stream()
        reply.chunk("Yes.", finish="stop")
        reply.frame("[DONE]")

    with endpoint(settings, script) as server:
        done = run_agent("assistant.chat", {"prompt": "Hm?", "max_tokens": 7})

    assert done.outcome == "succeeded"
    assert server.requests[-1][1]["max_completion_tokens"] == 7
    assert done.usage[MODEL]["output"] == 1  # nothing was reported: what came is counted


@pytest.mark.parametrize(
    ("status", "message", "error_class", "said"),
    [
        (400, "This model's maximum context length is 8 tokens", "input", "too long for the window"),
        (400, "messages: not allowed", "input", "refused the request (HTTP 400): messages: not allowed"),
        (401, "Incorrect API key provided: sk-secret-key-1234567890", "not_configured", "Check OPENAI_API_KEY"),
        (404, "no such model", "not_configured", "does not know the model"),
        (429, "quota of sk-secret-key-1234567890 used up", "provider_limit", "limits the rate or the budget"),
        (500, "boom", "provider_transient", "failed (HTTP 500): boom"),
    ],
)
def test_a_refusal_of_the_provider_is_told_without_the_key(settings, status, message, error_class, said):
    with endpoint(settings, lambda reply, body: reply.problem(status, message)):
        done = run_agent("assistant.chat", {"prompt": "Hm?"})

    assert done.outcome == "failed"
    assert done.error["class"] == error_class
    assert said in done.error["message"]
    assert "sk-secret" not in str(done.error)
    assert done.cost == 0


def test_a_real_prompt_over_the_models_window_is_bad_input(model):
    done = run_agent("assistant.chat", {"prompt": "one two three " * 2000})

    assert (done.outcome, done.error["class"]) == ("failed", "input")
    assert "too long for the window" in done.error["message"]


def test_a_stream_that_breaks_off_fails_and_its_tokens_are_paid(settings):
    def script(reply, body):
        reply.start_stream()
        reply.chunk("One")
        reply.chunk(" two")

    with endpoint(settings, script):
        done = run_agent("assistant.chat", {"prompt": "Hm?"})

    assert (done.outcome, done.error["class"]) == ("failed", "provider_transient")
    assert done.output == "One two"
    assert done.usage[MODEL]["output"] == 2
    assert done.cost > 0


def test_an_error_inside_the_stream_is_the_providers(settings):
    def script(reply, body):
        reply.start_stream()
        reply.chunk("One")
        reply.frame('{"error": {"message": "the model fell over", "code": 500}}')

    with endpoint(settings, script):
        done = run_agent("assistant.chat", {"prompt": "Hm?"})

    assert (done.outcome, done.error["class"]) == ("failed", "provider_transient")
    assert "the model fell over" in done.error["message"]


def test_an_endpoint_that_is_not_there_is_named_without_its_password(settings):
    settings.OPENAI_BASE_URL, settings.OPENAI_API_KEY = "http://user:pass@127.0.0.1:9/v1", ""

    done = run_agent("assistant.chat", {"prompt": "Hm?"})

    assert done.error["class"] == "provider_transient"
    assert "http://127.0.0.1:9 cannot be reached" in done.error["message"]
    assert "pass@" not in str(done.error)


def test_a_web_page_instead_of_an_api_is_the_providers_failure(settings):
    def script(reply, body):
        reply.send_response(200)
        reply.send_header("content-type", "text/html")
        reply.end_headers()
        reply.wfile.write(b"<html>hello</html>")

    with endpoint(settings, script):
        done = run_agent("assistant.chat", {"prompt": "Hm?"})

    assert done.error["class"] == "provider_transient"
    assert "OPENAI_BASE_URL" in done.error["message"]


def test_without_an_endpoint_the_run_says_what_to_do(settings):
    settings.OPENAI_BASE_URL = settings.OPENAI_API_KEY = ""

    done = run_agent("assistant.chat", {"prompt": "Hm?"})

    assert done.error["class"] == "not_configured"
    assert "OPENAI_BASE_URL" in done.error["message"]


def test_a_cancelled_run_closes_its_request_and_pays_for_what_came(settings):
    client_left, pace = threading.Event(), threading.Event()

    def script(reply, body):
        reply.start_stream()
        try:
            while not pace.wait(0.02):
                reply.chunk("more ")
        except OSError:
            client_left.set()

    with endpoint(settings, script):
        done = run_agent("assistant.chat", {"prompt": "Tell a long story.", "max_tokens": 2000}, cancel_after=1)
        assert client_left.wait(60)
        pace.set()

    assert done.outcome == "cancelled"
    assert set(done.output.split()) == {"more"}
    assert done.usage[MODEL]["output"] >= len(done.output.split()) - 1 > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"prompt": ""},
        {"prompt": "a", "messages": [{"role": "user", "content": "b"}]},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "b"}]},
        {"system": "b", "messages": [{"role": "user", "content": "b"}]},
        {"prompt": "a", "max_tokens": 0},
        {"prompt": "a", "temperature": 3},
        {"prompt": "a", "other": 1},
    ],
)
def test_wrong_inputs_are_refused_at_the_door(wrong):
    with pytest.raises(InvalidInputRefused):
        run_agent("assistant.chat", wrong)


def test_the_estimate_grows_with_the_input_and_covers_the_cost(model):
    from runs.agents import get_agent

    spec = get_agent("assistant.chat")
    small, large = ({"prompt": text, "max_tokens": 16} for text in ("Hello there.", "Hello there. " * 50))

    assert django_settings.AGENTOPS_MODEL == MODEL
    assert list(spec.models(small)) == [MODEL]
    assert list(spec.models({**small, "model": "gpt-4o"})) == ["gpt-4o"]
    assert spec.estimate.of(small) < spec.estimate.of(large)
    assert run_agent("assistant.chat", large).cost <= spec.estimate.of(large)
