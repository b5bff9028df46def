"""`./run`: what it refuses and what it installs, in a folder with a blank in its name and nothing from an index."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

LOCKS = ("requirements.txt", "requirements-dev.txt", "requirements-model.txt")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with `run`, empty locks and a manage.py that prints its arguments."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    shutil.copy(settings.BASE_DIR / "run", folder)
    for lock in LOCKS:
        (folder / lock).write_text("", encoding="utf-8")
    (folder / "manage.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    return folder


def run(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return subprocess.run(
        [str(folder / "run"), *arguments],
        cwd="/",
        env={**kept, "PYTHON": sys.executable, **env},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def stand_in(folder: Path, name: str, script: str) -> str:
    """Put a program of that name first on a PATH and return the PATH."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (programs / name).chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


def test_it_makes_the_environment_once_and_keeps_stdout_clean(clone: Path) -> None:
    first = run(clone, "up", "--no-model", "--json", "two words")

    assert first.returncode == 0, first.stderr
    assert first.stdout == "['up', '--no-model', '--json', 'two words']\n"
    assert "Installing requirements.txt" in first.stderr
    assert "requirements-model.txt" not in first.stderr

    again = run(clone, "up", OPENAI_BASE_URL="http://localhost:1/v1")

    assert again.stdout == "['up']\n"
    assert again.stderr == ""

    with_model = run(clone, "up")

    assert "Installing requirements-model.txt" in with_model.stderr
    assert "requirements-dev.txt" not in with_model.stderr


def test_windows_gets_one_sentence(clone: Path) -> None:
    answer = run(clone, "up", PATH=stand_in(clone, "uname", "echo MINGW64_NT-10.0"))

    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "WSL 2" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_an_old_python_is_named(clone: Path) -> None:
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        path = stand_in(clone, name, "exit 1")

    answer = run(clone, "up", PATH=path, PYTHON="python3")

    assert answer.returncode == 1
    assert "needs Python 3.11 or newer" in answer.stderr
