"""Prometheus and promtool: collected where they are installed; `tests.matrix` names what is missing (CI: and fails)."""

import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.conf import settings

from tests.probes import ROOT, Child, child_env

DEPLOY = ROOT / "deploy" / "prometheus"
PROGRAMS = {"promtool", "prometheus"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {program for program in PROGRAMS if shutil.which(program) is None}
    items[:] = [item for item in items if not missing & set(getattr(item, "fixturenames", ()))]


class Prometheus(Child):
    """A Prometheus on the sample configuration, told where our processes are and to look every half second."""

    def __init__(self, *, web: str, workers: list[str]) -> None:
        folder = Path(tempfile.mkdtemp(dir=settings.DATA_DIR))
        shutil.copy(DEPLOY / "agentops.rules.yml", folder)
        sample = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
        fitted = sample.replace("127.0.0.1:8000", web).replace("_interval: 15s", "_interval: 500ms")
        before, _, rest = fitted.partition("[127.0.0.1:9100")
        fitted = f"{before}[{', '.join(workers)}]{rest.partition(']')[2]}"
        (folder / "prometheus.yml").write_text(fitted, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [shutil.which("prometheus") or "", f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address={self.url[7:]}", "--log.level=warn"]
        super().__init__(command, child_env())

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query: {metric: labels, value: [time, text]}."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=20).raise_for_status()
        return answer.json()["data"]["result"]

    def value(self, query: str) -> float:
        """Return the one value of a query; -1 where it has none yet."""
        found = self.ask(query)
        return float(found[0]["value"][1]) if found else -1.0


@pytest.fixture
def promtool() -> str:
    return shutil.which("promtool") or ""


@pytest.fixture
def prometheus() -> Iterator[Callable[..., Prometheus]]:
    """A function that starts one."""
    made: list[Prometheus] = []

    def start(**targets: Any) -> Prometheus:
        made.append(Prometheus(**targets))
        made[-1].begin()
        made[-1].await_ready()
        return made[-1]

    yield start
    for one in made:
        one.kill()
