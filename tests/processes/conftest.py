"""Trials that need a database with sessions and a clock of its own: collected where there is one."""

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest
from django.db import connection

from tests.lying import LyingProxy

SERVER_ONLY, POSTGRES_ONLY = {"database_server", "database_wire", "wrong_clock"}, {"database_wire"}


def pytest_collection_modifyitems(items):
    """Leave out what SQLite does not have, and what speaks PostgreSQL's protocol, also when it was named.

    What needs `faketime` is left out where it is not installed; `python -m tests.matrix` says so and, under CI, fails.
    """
    unfit = {"sqlite": SERVER_ONLY, "postgresql": set()}.get(connection.vendor, POSTGRES_ONLY)
    unfit = unfit | (set() if shutil.which("faketime") else {"wrong_clock"})
    items[:] = [item for item in items if not unfit & set(getattr(item, "fixturenames", ()))]


@pytest.fixture
def database_server():
    """The database is a server: it ends sessions, and tells the time."""
    return connection.vendor


@pytest.fixture
def database_wire(stack):
    """PostgreSQL behind a proxy, for the processes that are told its folder."""
    with LyingProxy(connection.settings_dict["HOST"]) as made:
        yield made


@pytest.fixture
def wrong_clock() -> Callable[[str, str], dict[str, str]]:
    """A function that makes the environment of a process in a time zone whose clock is shifted, as by `+10m`.

    The database keeps its own. What is monotonic stays so.
    """
    said = subprocess.run(
        ["faketime", "-f", "+0s", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    library = said.stdout.strip().replace("libfaketime.so", "libfaketimeMT.so")
    preloaded = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), library]))
    fixed = {"LD_PRELOAD": preloaded, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return lambda shift, zone: {**fixed, "FAKETIME": shift, "TZ": zone}
