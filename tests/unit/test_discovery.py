"""Finding agents: once, completely, and by whoever asks first."""

import os
import subprocess
import sys
import threading

import pytest
from django.core.exceptions import ImproperlyConfigured

from runs import agents
from tests.probes import ROOT


@pytest.fixture
def undiscovered(monkeypatch):
    """A process that has not looked for agents yet."""
    monkeypatch.setattr(agents, "_discovered", [])


def test_threads_that_ask_first_together_all_see_every_agent(undiscovered, settings, tmp_path):
    entered = tmp_path / "entered"
    (tmp_path / "slow_agents.py").write_text(
        "import threading\n"
        "from pathlib import Path\n"
        "from runs.agents import agent\n"
        f"Path({str(entered)!r}).touch()\n"
        "threading.Event().wait(0.2)\n"
        "@agent('test.slow')\n"
        "async def slow(ctx, run_input):\n"
        "    '''Import slowly.'''\n",
        encoding="utf-8",
    )
    settings.AGENTOPS_APPS = [str(tmp_path)]
    found = []

    def second():
        while not entered.exists():
            pass
        found.append(agents.get_agent("test.slow").name)

    threads = [threading.Thread(target=agents.discover), *[threading.Thread(target=second) for _ in range(3)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert found == ["test.slow"] * 3
    del agents._registry["test.slow"], sys.modules["slow_agents"]


def test_a_place_that_is_not_there_is_named_every_time(undiscovered, settings):
    settings.AGENTOPS_APPS = ["no.such.module"]
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured, match=r"no\.such\.module"):
            agents.discover()


def test_a_file_that_fails_to_import_fails_every_time(undiscovered, settings, tmp_path):
    (tmp_path / "broken_agents.py").write_text("raise RuntimeError('half a module')\n", encoding="utf-8")
    settings.AGENTOPS_APPS = [str(tmp_path)]

    for _ in range(2):
        with pytest.raises(RuntimeError, match="half a module"):
            agents.discover()


MANY_AT_ONCE = """
import django, threading
django.setup()
from runs.agents import get_agent
names, barrier = [], threading.Barrier(20)
def ask():
    barrier.wait()
    names.append(get_agent("probe.ret").name)
threads = [threading.Thread(target=ask) for _ in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(names))
"""


def test_the_first_requests_of_a_fresh_process_know_every_agent():
    command = [sys.executable, "-c", MANY_AT_ONCE]
    env = os.environ | {"DJANGO_SETTINGS_MODULE": "agentops.settings"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "20", done.stderr[-2000:]
