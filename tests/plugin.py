"""The pytest plugin that starts the servers and writes the environment before Django reads its settings.

`-p tests.plugin` in pyproject.toml loads it ahead of pytest-django. Who starts what: the database server belongs to
the whole session (the xdist controller hands its address down in the environment), a Redis server and a data
folder belong to each process that runs tests. Nothing here may import Django's settings.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.invariants", "tests.probes", "tests.builders")

from tests import conformance, servers  # noqa: E402
from tests.servers import Server  # noqa: E402

LEAVE_SECONDS = 60.0

DATABASES = ("sqlite", "postgres", "mariadb")
REDISES = (*servers.REDIS_KINDS, *servers.ALIASES)
TIMINGS = {
    "AGENTOPS_LEASE_SECONDS": "3",
    "AGENTOPS_SWEEP_SECONDS": "0.3",
    "AGENTOPS_WAKE_WAIT_SECONDS": "0.5",
    "AGENTOPS_HEARTBEAT_SECONDS": "1",
}
OURS = ("AGENTOPS_", "OPENAI_", "DATABASE_URL", "REDIS_URL")  # a developer's own must not reach the tests


class Session:
    """What this process started for the tests."""

    def __init__(self, database: str, redis: str, *, is_controller: bool) -> None:
        self.is_worker = "PYTEST_XDIST_WORKER" in os.environ
        self.is_controller = is_controller
        self.names = {"database": database, "redis": servers.ALIASES.get(redis, redis)}
        self.servers: dict[str, Server] = {}
        self.versions: set[str] = set()
        self.folder = servers.short_folder("test")

    def start(self) -> None:
        database = os.environ.get("DATABASE_URL", "") if self.is_worker else ""
        for name in [name for name in os.environ if name.startswith(OURS)]:
            del os.environ[name]
        if self.names["database"] != "sqlite" and not self.is_worker:
            database = self._start(self.names["database"]).url
        if not self.is_controller:
            os.environ["REDIS_URL"] = self._start(self.names["redis"]).url
        if self.names["database"] == "sqlite":
            database = f"sqlite:///{self.folder}/unused.sqlite3"  # conftest names the test database
            self.versions.add(_sqlite_version())
        os.environ["DATABASE_URL"] = database
        self._environment()

    def _start(self, kind: str) -> Server:
        server = self.servers[kind] = servers.STARTERS[kind]()
        self.versions.add(server.version)
        return server

    def _environment(self) -> None:
        data = self.folder / "data"
        for folder in (data, data / "static", data / "files"):
            folder.mkdir()
        os.environ |= TIMINGS | {
            "AGENTOPS_DATA_DIR": str(data),
            "AGENTOPS_SECRET_KEY": "tests-only-" + "k" * 50,
            "AGENTOPS_PROBE_AGENTS": "1",
            "AGENTOPS_PROBE_LOG": str(self.folder / "probe.jsonl"),
        }

    def stop(self) -> None:
        for server in reversed(self.servers.values()):
            server.stop()
        self.servers.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _sqlite_version() -> str:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        return f"SQLite {connection.execute('SELECT sqlite_version()').fetchone()[0]}"


SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agentops")
    database = os.environ.get("AGENTOPS_TEST_DB", "sqlite")
    redis = os.environ.get("AGENTOPS_TEST_REDIS", "valkey9")
    group.addoption("--db", choices=DATABASES, default=database, help="database of the tests")
    group.addoption("--redis", choices=REDISES, default=redis, help="Redis server of the tests")
    group.addoption("--rounds", type=int, default=3, help="how often a trial of many clients at once is repeated")
    group.addoption("--matrix-report", metavar="FILE", help="write counts and servers as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, Any, Any]:
    options = early_config.known_args_namespace
    controller = bool(getattr(options, "numprocesses", None)) and "PYTEST_XDIST_WORKER" not in os.environ
    session = early_config.stash[SESSION] = Session(options.db, options.redis, is_controller=controller)
    early_config.add_cleanup(session.stop)
    try:
        session.start()
    except servers.ServerNotFound as error:
        raise pytest.UsageError(str(error)) from error
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what the conformance cells run, before `-m` chooses."""
    parts = tuple(config.rootpath / part for part in conformance.PARTS)
    for item in items:
        if item.path.is_relative_to(parts[0]) or item.path in parts:
            item.add_marker(pytest.mark.conformance)


def pytest_report_header(config: pytest.Config) -> str:
    return "servers: " + ", ".join(sorted(config.stash[SESSION].versions))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["versions"] = sorted(session.config.stash[SESSION].versions)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[SESSION].versions.update(getattr(node, "workeroutput", {}).get("versions", ()))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    versions = sorted(config.stash[SESSION].versions)
    terminalreporter.write_line("servers that ran: " + ", ".join(versions))
    report = config.getoption("--matrix-report")
    if not report:
        return
    kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
    reports = {kind: terminalreporter.stats.get(kind, []) for kind in kinds}
    counts = {kind: len(found) for kind, found in reports.items()}
    # A file that could not be read is an error without keywords.
    conforming = {
        kind: sum("conformance" in getattr(one, "keywords", ()) for one in found) for kind, found in reports.items()
    }
    failing = sorted({one.nodeid for kind in ("failed", "error") for one in reports[kind] if "::" in one.nodeid})
    facts = {"servers": versions, "counts": counts, "conformance": conforming, "failing": failing}
    facts["exit"] = int(exitstatus)
    Path(report).write_text(json.dumps(facts), encoding="utf-8")


def pytest_unconfigure() -> None:
    """See to it that the process ends: a thread that a failed test left behind would keep it for ever."""
    timer = threading.Timer(LEAVE_SECONDS, _leave)
    timer.daemon = True
    timer.start()


def _leave() -> None:
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.name != "MainThread"]
    if not left:  # one of xdist's processes that was done before the others
        pytest_unconfigure()
        return
    print(f"threads are left behind, so this counts as a failure: {left}", file=sys.stderr, flush=True)
    os._exit(1)
