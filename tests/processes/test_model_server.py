"""The embedded model's server, with the real model: chat, embeddings, its log, a client that leaves."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from django.conf import settings

from agentops import embedded
from agentops.model_server import MODEL_NAME
from tests import servers
from tests.probes import eventually

pytestmark = pytest.mark.process


class Model:
    """The server's process, a client of it, and its log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.listener: socket.socket = embedded.model_listener()
        self.spec = embedded.model(self.listener, env=dict(os.environ))
        self.process = servers.spawn(self.spec.command, log=log, cwd=settings.BASE_DIR, pass_fds=self.spec.pass_fds)
        self.client = openai.OpenAI(
            base_url=f"{embedded.model_address(self.listener)}/v1", api_key="any", max_retries=0, timeout=60
        )

    def requests(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if line.startswith("request ")]

    def chat(self, prompt: str, **options: Any) -> Any:
        messages: Any = [{"role": "user", "content": prompt}]
        return self.client.chat.completions.create(model=MODEL_NAME, messages=messages, temperature=0, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    started = Model(tmp_path_factory.mktemp("model") / "model.log")

    def is_ready() -> None:
        assert started.process.poll() is None, started.log.read_text()
        assert started.spec.ready(started.process.pid)

    eventually(is_ready, timeout=100)
    yield started
    started.process.terminate()
    assert started.process.wait(timeout=20) == 0
    started.client.close()
    started.listener.close()


def test_each_request_is_one_line_with_the_tokens_it_reports(model: Model) -> None:
    before = len(model.requests())

    streamed = list(model.chat("Name a colour", stream=True, stream_options={"include_usage": True}, max_tokens=12))
    plain = model.chat("Count to five", max_tokens=12)

    reported = [streamed[-1].usage, plain.usage]
    expected = [f"completion_tokens={u.completion_tokens} prompt_tokens={u.prompt_tokens}" for u in reported]
    eventually(lambda: _equal(len(model.requests()), before + 2))
    for line, tokens in zip(model.requests()[before:], expected, strict=True):
        assert re.fullmatch(rf"request POST /v1/chat/completions 200 {tokens} [\d.]+s", line)


def _equal(left: object, right: object) -> None:
    assert left == right


def test_different_prompts_give_different_texts(model: Model) -> None:
    first, second = (model.chat(prompt, max_tokens=16) for prompt in ("What is rain?", "Who wrote Hamlet?"))

    assert first.model == MODEL_NAME
    assert first.choices[0].message.content != second.choices[0].message.content


def test_embeddings_come_from_the_same_process(model: Model) -> None:
    answer = model.client.embeddings.create(model=MODEL_NAME, input=["the sea", "the ocean", "a spreadsheet"])

    sea, ocean, sheet = (entry.embedding for entry in answer.data)
    assert sum(a * b for a, b in zip(sea, ocean, strict=True)) > sum(a * b for a, b in zip(sea, sheet, strict=True))
    assert answer.usage.prompt_tokens > 0


def test_what_is_too_long_is_refused(model: Model) -> None:
    with pytest.raises(openai.BadRequestError, match="context size"):
        model.chat("word " * 3000, max_tokens=5)


def test_a_client_that_leaves_ends_the_generation(model: Model) -> None:
    before = len(model.requests())
    stream = model.chat("Tell a long story", stream=True, max_tokens=1800)
    next(iter(stream))

    stream.close()

    eventually(lambda: _equal(len(model.requests()), before + 1), timeout=5)
    assert "client left" in model.requests()[-1]
