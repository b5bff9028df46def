"""Trials of full size, with the product's own timings: `make soak`. The ordinary suite leaves them out.

Each tells in the report at the end what it measured. One at a time: they need the machine, and restart its servers.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from tests import probes
from tests.plugin import SESSION, TIMINGS
from tests.probes import ROOT

READY_SECONDS = 240.0
REPORT = pytest.StashKey[list[str]]()
Report = Callable[[str, str], None]


def pytest_collection_modifyitems(config, items):
    """Leave the trials out unless `-m` asks for them, and what restarts PostgreSQL where there is none."""
    unfit = set() if connection.vendor == "postgresql" else {"postgres_server"}
    asked = "soak" in config.getoption("markexpr")

    def stays(item: Any) -> bool:
        return item.get_closest_marker("soak") is None or (asked and not unfit & set(item.fixturenames))

    items[:] = [item for item in items if stays(item)]


@pytest.fixture(scope="session")
def own_timings() -> dict[str, float]:
    """What the settings are that the ordinary tests shorten, as a process reads them that was told nothing."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    names = [name.removeprefix("AGENTOPS_") for name in TIMINGS]
    code = f"import json; from agentops import settings as s; print(json.dumps({{n: getattr(s, n) for n in {names}}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=bare, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def full_size(own_timings: dict[str, float], settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process and those it starts the product's own timings, and these the time to start."""
    monkeypatch.setattr(probes, "READY_SECONDS", READY_SECONDS)
    for name, seconds in own_timings.items():
        setattr(settings, name, seconds)
        monkeypatch.setenv(f"AGENTOPS_{name}", str(seconds))


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    """Take a trial's number and what it measured, for the report at the end."""
    lines = request.config.stash.setdefault(REPORT, [])
    before, began = len(lines), time.monotonic()

    def say(trial: str, figures: str) -> None:
        lines.append(f"{trial:<4}{figures} [{time.monotonic() - began:.0f} s]")

    yield say
    if len(lines) == before:
        lines.append(f"{'!':<4}{request.node.name} did not come to its end [{time.monotonic() - began:.0f} s]")


@pytest.fixture
def postgres_server(request: pytest.FixtureRequest) -> Any:
    """The session's PostgreSQL, for restarting it. Nobody else may be at work on it."""
    return request.config.stash[SESSION].servers["postgres"]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    lines = config.stash.get(REPORT, [])
    if lines:
        versions = ", ".join(sorted(config.stash[SESSION].versions))
        terminalreporter.section(f"trials of full size on {versions}")
        for line in sorted(lines, key=lambda line: int(re.sub(r"\D", "", line[:3]) or 99)):  # they come in any order
            terminalreporter.write_line(line)
