"""What a process holds on to, as the kernel and the servers tell it: connections, files, memory."""

import re
from pathlib import Path

import httpx
from django.conf import settings
from django.db import connection

from tests.probes import Child

IDLE_MAX_SECONDS = 5
SERIES = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
PG_SESSIONS = """
    SELECT count(*),
        count(*) FILTER (WHERE state LIKE 'idle in transaction%%' AND xact_start < now() - %s * interval '1 s')
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
MARIADB_SESSIONS = """
    SELECT count(*), count(t.trx_id) FROM information_schema.processlist p
    LEFT JOIN information_schema.innodb_trx t
        ON t.trx_mysql_thread_id = p.id AND p.command = 'Sleep' AND t.trx_started < now() - INTERVAL %s SECOND
    WHERE p.db = database() AND p.id <> connection_id()
"""


def open_files(child: Child) -> list[str]:
    """Return what the process has open, by the kernel's list."""
    names = []
    for link in Path(f"/proc/{child.pid}/fd").iterdir():
        try:
            names.append(str(link.readlink()))
        except OSError:  # closed meanwhile
            continue
    return names


def resident_bytes(child: Child) -> int:
    status = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def database_sessions(*children: Child) -> tuple[int, int]:
    """Return (connections of these processes to the database, those that stand idle in a transaction for long).

    On a database server: all connections but ours, which are theirs where nobody else works on the test's database.
    """
    if connection.vendor == "sqlite":
        name = Path(settings.DATABASES["default"]["NAME"]).name
        return sum(Path(file).name == name for child in children for file in open_files(child)), 0
    query = PG_SESSIONS if connection.vendor == "postgresql" else MARIADB_SESSIONS
    with connection.cursor() as cursor:
        cursor.execute(query, [IDLE_MAX_SECONDS])
        count, idle = cursor.fetchone()
    return int(count), int(idle)


def scrape(url: str) -> dict[str, float]:
    """Return {series with its labels: value} of a metrics page, without the times at which series began."""
    text = httpx.get(f"{url}/metrics", timeout=30).raise_for_status().text
    return {name: float(value) for name, value in SERIES.findall(text) if "_created" not in name}
