"""`make scale`: fill a PostgreSQL of its own, open every page some times, print how long each took, and judge its SQL.

Exit codes: 0 every page answered within LIMIT_MS, median of the rounds, with bounded SQL; 1 one did not.
Times are in this process, without HTTP: what a page costs itself. A page's cache has ended before it is opened again.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import django
from rich.console import Console
from rich.table import Table

from tests import servers

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_MS = 1000.0
TOUCHED_MAX = 150_000  # rows of one table: all dead letters, or an account's ledger lines of a span, but not the runs
FRESH_SECONDS = 1.1  # after which nothing of a page is answered from memory


@dataclass
class Measured:
    """What a page did: milliseconds a round, questions asked, and what is wrong with these."""

    milliseconds: list[float] = field(default_factory=list)
    questions: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def is_good(self) -> bool:
        return self.median <= LIMIT_MS and not self.faults


@contextmanager
def instance(url: str) -> Iterator[None]:
    """Have a database and a Redis server; the database of `url` instead of an own one, if it is given."""
    started = [servers.STARTERS["valkey9"]()]
    if not url:
        started.append(servers.STARTERS["postgres"]())
    folder = tempfile.mkdtemp(prefix="agentops-scale-")
    Path(folder, "static").mkdir()
    os.environ |= {
        "DATABASE_URL": url or started[1].url, "REDIS_URL": started[0].url, "AGENTOPS_DATA_DIR": folder,
        "AGENTOPS_SECRET_KEY": "only-for-make-scale", "AGENTOPS_ALLOWED_HOSTS": "testserver",
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
    }  # fmt: skip
    try:
        yield
    finally:
        for server in started:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def manage(*arguments: str) -> str:
    """Run a command of ours and return what it said."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def make_database(url: str) -> None:
    """Make the database that the address names, and its tables."""
    if not url:
        import psycopg

        folder = os.environ["DATABASE_URL"].partition("?host=")[2]
        with psycopg.connect(host=folder, user="postgres", dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE agentops")
    manage("migrate", "--verbosity", "0")


def measure(rounds: int) -> dict[str, Measured]:
    """Open every page once a round, one after the other."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from tests.scale import pages, plans

    user = User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("scale")
    console = Client(raise_request_exception=False)
    console.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    key, raw = pages.key_of()
    api = Client(raise_request_exception=False, headers={"authorization": f"Bearer {raw}"})
    found = [(console, *page) for page in pages.console()] + [(api, *page) for page in pages.api()]
    measured = {name: Measured() for _, name, _ in found}
    asked: dict[str, list[str]] = {}
    for turn in range(rounds):
        for client, name, address in found:
            with CaptureQueriesContext(connection) as captured:
                began = time.perf_counter()
                answer = client.get(address)
                body = b"".join(answer.streaming_content) if answer.streaming else answer.content
            measured[name].milliseconds.append((time.perf_counter() - began) * 1000)
            if answer.status_code not in {200, 302}:
                measured[name].faults.append(f"answered {answer.status_code}: {body[:200]!r}")
            if turn == 0:
                asked[name] = [query["sql"] for query in captured.captured_queries]
        threading.Event().wait(FRESH_SECONDS)
    seen: set[str] = set()
    for name, statements in asked.items():
        measured[name].questions = len(statements)
        new = [one for one in dict.fromkeys(statements) if one not in seen]
        if name.startswith("plan "):  # it groups what it is about, up to TARGETS_MAX rows, however they are best read
            continue
        measured[name].faults += plans.faults(new, most=TOUCHED_MAX)
        seen |= set(statements)
    key.delete()
    return measured


def show(measured: dict[str, Measured], filled: dict[str, Any]) -> None:
    """Print the table, the slowest first, and what is wrong."""
    out = Console(width=160)
    table = Table("page", "median ms", "most ms", "questions", "", box=None)
    for name, found in sorted(measured.items(), key=lambda item: -item[1].median):
        row = (name, f"{found.median:.0f}", f"{max(found.milliseconds):.0f}", str(found.questions))
        table.add_row(*row, "" if found.is_good else "BAD")
    out.print(json.dumps(filled), markup=False)
    out.print(table)
    for name, found in measured.items():
        for fault in dict.fromkeys(found.faults):
            out.print(f"{name}: {fault}", markup=False, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make scale", description="Every page on a full PostgreSQL.")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--database", default="", help="address of a database that is filled already, or is to be")
    options = parser.parse_args()
    with instance(options.database):
        make_database(options.database)
        django.setup()
        from agentops.benchmark.fill import accounts

        filled = {"filled": "before"}
        if not accounts().exists():
            filled = json.loads(
                manage("bench", "fill", "--json", "--runs", str(options.runs), "--dead", str(options.dead))
            )
        measured = measure(options.rounds)
    show(measured, filled)
    return 0 if all(found.is_good for found in measured.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
