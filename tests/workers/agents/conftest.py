"""The real embedded model for the tests of the shipped agents: one server for the session."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from quotas.prices import PriceTable, install_default_prices
from tests import servers
from tests.probes import eventually

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def model_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start the embedded model's server. Yields its base URL and its log."""
    log = tmp_path_factory.mktemp("model") / "model.log"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "agentops.model_server", "--fd", str(listener.fileno())]
        process = servers.spawn(command, log=log, pass_fds=[listener.fileno()], cwd=Path(__file__).parents[3])
    eventually(lambda: _is_up(f"http://127.0.0.1:{port}/health", process, log), timeout=60, interval=0.2)
    yield f"http://127.0.0.1:{port}/v1", log
    process.terminate()
    process.wait(10)


def _is_up(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"the model server ended: {log.read_text()[-2000:]}")
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5).status_code == 200
    return False


@pytest.fixture
def model(model_server: tuple[str, Path], settings: Any) -> Path:
    """Point the agents at the embedded model. Returns the server's log, one line a request."""
    settings.OPENAI_BASE_URL, log = model_server
    settings.OPENAI_API_KEY = "embedded"
    settings.AGENTOPS_MODEL = settings.AGENTOPS_EMBEDDING_MODEL = MODEL
    settings.AGENTOPS_MODEL_WINDOW = 2048
    return log


@pytest.fixture
def priced(transactional_db: None) -> None:
    """The shipped prices, committed: handlers read them on threads of their own."""
    install_default_prices()
    PriceTable.forget()
