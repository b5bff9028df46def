"""The database: reachable, durable, read committed, migrated, and on our time."""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.db import DatabaseError, NotSupportedError, connection

from agentops.diagnosis.finding import Finding, judged
from agentops.health import pending_migrations
from quotas import append_only

PART = "database"
CLOCK_SECONDS = 2.0  # protocol 8.2: a larger step is treated as a fault
SHARED_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"})


def examine() -> Iterator[Finding]:
    try:
        connection.ensure_connection()
    except NotSupportedError as error:
        yield Finding(PART, "fail", str(error), "Use a newer database server (docs/deploy.md names the versions).")
        return
    except DatabaseError as error:
        yield Finding(PART, "fail", f"cannot connect: {error}", "Start the server, or correct DATABASE_URL.")
        return
    yield from {"sqlite": _sqlite, "postgresql": _postgresql}.get(connection.vendor, _mysql)()
    waiting = pending_migrations()
    yield judged("migrations", waiting or "all applied", well=not waiting, advice="Run ./run migrate.")
    if not waiting:
        yield _append_only()
    yield from _clock()


def _append_only() -> Finding:
    missing = append_only.missing()
    kept = "ledger and audit log are append-only"
    return judged(
        PART,
        f"{kept}, without {', '.join(sorted(missing))}" if missing else kept,
        well=not missing,
        advice="Let the database user make triggers (docs/deploy.md), and run ./run reconcile_quotas --fix.",
        otherwise="warn",
    )


def _value(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    return row[0] if row else None


def _setting(name: str, value: Any, wanted: str, advice: str) -> Finding:
    return judged(PART, f"{name} = {value}", well=str(value).lower() == wanted, advice=advice)


def _sqlite() -> Iterator[Finding]:
    name = str(connection.settings_dict["NAME"])
    yield Finding(PART, "ok", f"SQLite {sqlite3.sqlite_version}, {name}")
    yield _setting("journal_mode", _value("PRAGMA journal_mode"), "wal", "Use a local disk: WAL needs one.")
    yield _setting("synchronous", _value("PRAGMA synchronous"), "2", "FULL keeps accepted runs over a power cut.")
    kind = _filesystem(Path(name).absolute())
    yield judged(
        PART,
        f"file system {kind or 'unknown'}",
        well=kind not in SHARED_FILESYSTEMS,
        advice="SQLite's WAL is unsafe on a network file system: move the data folder, or use PostgreSQL.",
    )


def _filesystem(path: Path) -> str:
    """Return the type of the file system that holds the path, or "" where the system does not tell."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    entries = [line.split()[1:3] for line in mounts]
    holding = [(place, kind) for place, kind in entries if path.is_relative_to(place)]
    return max(holding, key=lambda entry: len(entry[0]))[1] if holding else ""


def _postgresql() -> Iterator[Finding]:
    yield Finding(PART, "ok", f"PostgreSQL {_value('SHOW server_version')}")
    yield _setting(
        "transaction_isolation",
        _value("SHOW transaction_isolation"),
        "read committed",
        "Reset default_transaction_isolation of this role and database.",
    )
    yield _setting("fsync", _value("SHOW fsync"), "on", "Without fsync a power cut loses accepted runs and money.")
    commit = _value("SHOW synchronous_commit")
    yield judged(
        PART,
        f"synchronous_commit = {commit}",
        well=commit != "off",
        advice="With off a crash loses the last commits: set it to on (or to local).",
    )
    yield _setting("server_encoding", _value("SHOW server_encoding"), "utf8", "Make the database with UTF8.")


def _mysql() -> Iterator[Finding]:
    version = str(_value("SELECT VERSION()"))
    yield Finding(PART, "ok", version if "MariaDB" in version else f"MySQL {version}")
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')")
        isolation = cursor.fetchall()[0][1]
    yield _setting("isolation", isolation, "read-committed", "The connection asks for it: is a proxy in between?")
    yield _setting(
        "innodb_flush_log_at_trx_commit",
        _value("SELECT @@innodb_flush_log_at_trx_commit"),
        "1",
        "Set it to 1: with 0 or 2 a power cut loses accepted runs and money.",
    )
    for name in ("character_set_connection", "character_set_database"):
        advice = "ALTER DATABASE … CHARACTER SET utf8mb4: other sets cannot store every input."
        yield _setting(name, _value(f"SELECT @@{name}"), "utf8mb4", advice)


def _clock() -> Iterator[Finding]:
    query = {
        "postgresql": "SELECT EXTRACT(EPOCH FROM clock_timestamp())",
        "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000",
    }.get(connection.vendor)
    if query is None:
        return  # SQLite asks this machine
    before = time.time()
    difference = float(_value(query)) - (before + time.time()) / 2
    yield judged(
        "clock",
        f"database and this machine differ by {difference:+.3f} s",
        well=abs(difference) < CLOCK_SECONDS,
        advice="Let both follow the same time service (chrony, systemd-timesyncd).",
        otherwise="warn",
    )
