"""What `up` notes in the data folder is what other processes of the instance go by."""

import json
import os
import subprocess
import sys
from pathlib import Path

from agentops import instance
from tests.probes import ROOT

ASK = "from agentops import settings as s; print(s.AGENTOPS_APPS, s.AGENTOPS_PROBE_AGENTS)"


def asked(folder: Path, **given: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTOPS_")}
    env = {**kept, "AGENTOPS_DATA_DIR": str(folder), **given}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_agents_of_the_instance_are_known_unless_the_variable_says_otherwise(tmp_path: Path) -> None:
    assert asked(tmp_path) == "[] False"
    (tmp_path / "instance.json").write_text(json.dumps({"apps": ["greetings"], "probe_agents": True}))

    assert asked(tmp_path) == "['greetings'] True"
    assert asked(tmp_path, AGENTOPS_APPS="other", AGENTOPS_PROBE_AGENTS="0") == "['other'] False"


def test_places_are_noted_as_absolute_paths(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "greetings").mkdir()
    monkeypatch.chdir(tmp_path)

    assert instance.absolute_apps(["greetings", "my.agents"]) == [str(tmp_path / "greetings"), "my.agents"]
