"""`./run test`: the suite on every database that is here, and one table at the end that says what ran.

Without arguments: everything on SQLite, then the parts that depend on a database on PostgreSQL and on MariaDB.
With a choice of tests (paths, -k, -m, --lf): one invocation for each `--db` given, default SQLite. Every other
argument goes to pytest as it is.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests import servers

ROOT = Path(__file__).resolve().parent.parent
ON_DATABASES = (
    "tests/races",
    "tests/quotas",
    "tests/runs",
    "tests/workers",
    "tests/test_budget.py",
    "tests/acceptance/test_api_parallel.py",
    "tests/processes/test_takeover.py",
    "tests/processes/test_redis_loss.py",
)
DATABASES = ("sqlite", "postgres", "mariadb")
NO_TESTS = 5  # pytest's exit code
SELECTING = ("-k", "-m", "--lf", "--last-failed")
FAILING = ("failed", "error", "xpassed")


@dataclass
class Leg:
    """One invocation of pytest, and what it reported."""

    database: str
    redis: str
    arguments: list[str]
    exit: int = -1
    seconds: float = 0.0
    servers: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        return self.counts.get("passed", 0) + self.counts.get("xfailed", 0)

    @property
    def failed(self) -> int:
        """Failed tests; at least 1 when pytest itself ended badly."""
        failed = sum(self.counts.get(kind, 0) for kind in FAILING)
        return max(failed, 0 if self.exit in (0, NO_TESTS) else 1)

    @property
    def skipped(self) -> int:
        return self.counts.get("skipped", 0)

    def run(self) -> None:
        """Run pytest with its output going straight to ours."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.json")
            command = [sys.executable, "-m", "pytest", f"--db={self.database}", f"--redis={self.redis}"]
            command += [f"--matrix-report={report}", *self.arguments]
            print(f"\n=== {self.database}, {self.redis}: pytest {' '.join(self.arguments)}", flush=True)
            started = time.monotonic()
            self.exit = subprocess.run(command, cwd=ROOT, check=False).returncode
            self.seconds = time.monotonic() - started
            if report.exists():
                facts = json.loads(report.read_text(encoding="utf-8"))
                self.servers, self.counts = facts["servers"], facts["counts"]


def selects(arguments: list[str]) -> bool:
    """Whether the caller chose tests, by path, expression or memory, and not only options of the whole run."""
    chosen = [word for word in arguments if word.startswith(SELECTING) or (ROOT / word.partition("::")[0]).exists()]
    return bool(chosen)


def whole_matrix(missing: dict[str, str], workers: str, rest: list[str]) -> list[Leg]:
    """Return the default legs. Redis proper serves the MariaDB leg, so that both servers are covered."""
    parallel = ["-n", workers, *rest]
    everything = list(parallel)
    if "chromium" in missing:
        everything += ["-m", "not browser"]
    parts = [part for part in ON_DATABASES if (ROOT / part).exists()]
    legs = [Leg("sqlite", "valkey", everything)]
    if parts:
        legs.append(Leg("postgres", "valkey", [*parallel, *parts]))
    if parts and "mariadb" not in missing:
        redis = "valkey" if "redis" in missing else "redis"
        legs.append(Leg("mariadb", redis, [*parallel, *parts]))
    return legs


def chosen_legs(options: argparse.Namespace, rest: list[str]) -> list[Leg]:
    """Return one leg for each chosen database with the caller's own arguments."""
    arguments = ["-n", options.workers, *rest] if options.workers else rest
    return [Leg(database, options.redis, arguments) for database in options.db or ["sqlite"]]


def print_summary(legs: list[Leg], missing: dict[str, str]) -> None:
    print("\n=== summary")
    print(f"{'database':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}  servers that ran")
    for leg in legs:
        counts = f"{leg.passed:>8}{leg.failed:>8}{leg.skipped:>9}{leg.seconds:>9.1f}"
        print(f"{leg.database:<10}{counts}  {', '.join(leg.servers) or '-'}")
    for kind, how in missing.items():
        print(f"not found: {kind}, so its tests did not run ({how})")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run test", description=__doc__)
    parser.add_argument("--db", action="append", choices=DATABASES, help="may be repeated")
    parser.add_argument("--redis", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("-n", dest="workers", default="", help="processes (default: the cores, at most 4)")
    options, rest = parser.parse_known_args(arguments)
    missing = servers.missing()
    cores = str(min(4, os.cpu_count() or 1))
    if selects(rest):
        legs, missing = chosen_legs(options, rest), {}
    elif options.db:
        options.workers = options.workers or cores
        legs, missing = chosen_legs(options, rest), {}
    else:
        legs = whole_matrix(missing, options.workers or cores, rest)
    for leg in legs:
        leg.run()
    print_summary(legs, missing)
    insists = os.environ.get("CI", "").lower() in {"1", "true"}
    if missing and insists:
        print("CI=true: every server has to be here, so this counts as a failure.")
    passed, failed, skipped = (sum(getattr(leg, kind) for leg in legs) for kind in ("passed", "failed", "skipped"))
    # With nothing at all run, "0 failed" would be a lie of omission.
    empty = passed + failed + skipped == 0
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or empty or (missing and insists) else 0


if __name__ == "__main__":
    sys.exit(main())
