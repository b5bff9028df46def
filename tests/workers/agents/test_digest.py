"""`document.digest` on the real embedded model, and with an endpoint that rambles or refuses."""

import importlib.util
import re
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import pytest
from pypdf import PdfWriter

from agentops.testing import run_agent
from quotas.prices import PriceTable
from runs.agents import get_agent
from runs.errors import InvalidInputRefused
from tests.workers.agents.conftest import MODEL
from tests.workers.agents.endpoint import endpoint

pytestmark = pytest.mark.usefixtures("priced")
EXAMPLE = Path(__file__).parents[3] / "examples" / "make_sample_pdf.py"
TEXT = """# Lamp
The keeper trims the wick of the lamp at dusk. The lamp burns until the morning. A clean lamp is seen from far away.
# Harbour
The pilot boats lie in the harbour at night. The harbour master counts the pilot boats. No boat leaves in fog."""


def short_handbook() -> bytes:
    """Return a PDF of two short chapters, written by the example's writer."""
    spec = importlib.util.spec_from_file_location("make_sample_pdf", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.as_pdf([page[:9] for page in example.handbook(2)])


def largest_request(log: Path, since: int) -> int:
    return max(int(n) for n in re.findall(r"prompt_tokens=(\d+)", log.read_text()[since:]))


@pytest.mark.timeout(600)
def test_a_pdf_is_digested_once_and_its_vectors_are_kept(model):
    file_id = str(uuid4())
    files = {file_id: ("handbook.pdf", short_handbook())}

    first = run_agent("document.digest", {"file": file_id}, files=files)
    again = run_agent("document.digest", {"file": file_id, "questions": 0}, files=files)

    assert first.outcome == "succeeded", first.error
    result = first.result
    assert (result["pages"], result["chunks"]) == (2, 2)
    assert [c["title"] for c in result["chapters"]] == ["Chapter 1 The Lamp", "Chapter 2 The Lens and the Clockwork"]
    assert result["summary"]
    assert any("lamp" in word.casefold() or "lens" in word.casefold() for word in result["key_words"])
    assert len(result["key_sentences"]) >= 5
    for chapter in result["chapters"]:
        assert set(chapter) == {"title", "summary", "key_words", "questions"}
        assert chapter["summary"]
        [pair] = chapter["questions"]
        assert pair["question"]
        assert pair["answer"]
    used = first.usage[MODEL]
    assert set(used) >= {"embedding", "output"}
    assert first.cost == PriceTable.current().cost(MODEL, used) > 0
    assert first.progress["done"] == first.progress["total"] == 2 + 2 * 3 + 1
    assert "## Chapter 1 The Lamp" in first.output
    assert result["summary"] in first.artifacts["digest.md"].decode()

    assert result["embedded"] > 15
    assert again.result["embedded"] == 0
    assert "embedding" not in again.usage[MODEL]
    assert again.result["key_sentences"] == result["key_sentences"]


@pytest.mark.timeout(600)
def test_no_request_is_over_a_small_window(model, settings):
    settings.AGENTOPS_MODEL_WINDOW = 256
    since = len(model.read_text())
    long = " ".join(f"Rule {n}: the keeper of light {n} writes the hour, the wind and the tide." for n in range(30))

    done = run_agent("document.digest", {"text": long, "questions": 1})

    assert done.outcome == "succeeded", done.error
    assert done.result["chunks"] > 5
    assert done.result["pages"] is None
    assert largest_request(model, since) <= 256


@pytest.mark.timeout(300)
def test_a_broken_cache_costs_the_vectors_and_not_the_run(model, settings):
    cache = settings.CACHES["default"]
    settings.CACHES = {"default": {**cache, "LOCATION": "redis://127.0.0.1:9/0"}}

    done = run_agent("document.digest", {"text": TEXT, "questions": 0})

    assert done.outcome == "succeeded", done.error
    assert done.result["embedded"] > 0


def vectors(reply, body) -> None:
    data = [
        {"object": "embedding", "index": i, "embedding": [len(t) % 7 + 1.0, len(t) % 5, 1]}
        for i, t in enumerate(body["input"])
    ]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    reply.answer({"object": "list", "model": "m", "data": data, "usage": usage})


@pytest.mark.parametrize("said", ["", "Sure! Happy to help you.", "\n\n?!?!\n", "1. 2. 3. ((({{{", "Q: A: Q: A:"])
def test_a_rambling_model_gives_way_to_the_texts_own_sentences(settings, said):
    def script(reply, body):
        if "input" in body:
            vectors(reply, body)
            return
        reply.start_stream()
        reply.chunk(said)
        reply.chunk(finish="stop")
        reply.frame("[DONE]")

    with endpoint(settings, script) as server:
        done = run_agent("document.digest", {"text": TEXT, "questions": 2})

    assert done.outcome == "succeeded", done.error
    lamp, harbour = done.result["chapters"]
    assert lamp["summary"] in TEXT
    assert harbour["summary"] in TEXT
    assert done.result["summary"]
    assert [len(c["questions"]) for c in (lamp, harbour)] == [2, 2]
    assert all(pair["question"].endswith("?") and pair["answer"] in TEXT for pair in lamp["questions"])
    assert len([path for path, _ in server.requests if "chat" in path]) == 2 * (1 + 2 * 2) + 1


def test_a_window_smaller_than_set_halves_the_prompts(settings):
    def script(reply, body):
        if "input" in body:
            vectors(reply, body)
        elif len(body["messages"][0]["content"]) > 400:
            reply.problem(400, "request exceeds the available context size", type="exceed_context_size_error")
        else:
            reply.start_stream()
            reply.chunk("The lamp and the harbour have a keeper.", finish="stop")
            reply.frame("[DONE]")

    with endpoint(settings, script):
        done = run_agent("document.digest", {"text": TEXT.replace("# Harbour", "") * 4, "questions": 0})

    assert done.outcome == "succeeded", done.error
    assert done.result["summary"] == "The lamp and the harbour have a keeper."


def test_a_failing_endpoint_fails_the_run_as_the_providers(settings):
    with endpoint(settings, lambda reply, body: reply.problem(503, "out of memory")):
        done = run_agent("document.digest", {"text": TEXT})

    assert (done.outcome, done.error["class"]) == ("failed", "provider_transient")
    assert done.artifacts == {}


def test_files_that_cannot_be_read_are_bad_input(model):
    blank, out = PdfWriter(), BytesIO()
    blank.add_blank_page(200, 200)
    blank.write(out)
    scan, torn, unknown = str(uuid4()), str(uuid4()), str(uuid4())
    files = {scan: ("scan.pdf", out.getvalue()), torn: ("torn.pdf", b"%PDF-1.7 nothing")}

    ended = [run_agent("document.digest", {"file": name}, files=files) for name in (scan, torn, unknown)]

    assert [(e.outcome, e.error["class"]) for e in ended] == [("failed", "input")] * 3
    assert "no text on its 1 page(s)" in ended[0].error["message"]
    assert "not a readable PDF" in ended[1].error["message"]
    assert all(e.cost == 0 for e in ended)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"text": ""}, {"text": "a", "file": str(uuid4())}, {"text": "a", "questions": 9}, {"text": "a", "x": 1}],
)
def test_wrong_inputs_are_refused_at_the_door(wrong):
    with pytest.raises(InvalidInputRefused):
        run_agent("document.digest", wrong)


def test_the_estimate_follows_the_text_and_names_both_models(settings):
    settings.AGENTOPS_MODEL, settings.AGENTOPS_EMBEDDING_MODEL = "gpt-4o-mini", "text-embedding-3-small"
    spec = get_agent("document.digest")

    assert spec.models({}) == ["gpt-4o-mini", "text-embedding-3-small"]
    assert 0 < spec.estimate.of({"text": TEXT}) < spec.estimate.of({"text": TEXT * 200})
    assert spec.estimate.of({"file": "any"}) > 0
    assert spec.file_fields == ("file",)
