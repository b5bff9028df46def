"""`./run test`: the suite on every kind of server that is here, and tables at the end that say what ran.

Without arguments: everything on SQLite, then the parts that depend on a database on PostgreSQL and on MariaDB, then
the conformance tests on each other pair of a Redis kind and a database. With `--conformance`: those alone, on all
pairs. With a choice of tests (paths, -k, -m, --lf): one invocation for each `--db` and `--redis` given, default
SQLite and Valkey 9. Every other argument goes to pytest as it is.

A test that failed is tried once more by itself: trials with real processes, clocks and signals share the machine with
others here. The last lines name those that passed only then: a name that comes back is a defect.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests import conformance, servers

ROOT = Path(__file__).resolve().parent.parent
ON_DATABASES = (
    "tests/conformance",
    "tests/races",
    "tests/quotas",
    "tests/runs",
    "tests/workers",
    "--ignore=tests/workers/agents",  # about models and documents
    "tests/test_budget.py",
    "tests/acceptance/test_api_parallel.py",
    "tests/processes/test_takeover.py",
    "tests/processes/test_redis_loss.py",
)
DATABASES = {"sqlite": "SQLite ", "postgres": "PostgreSQL ", "mariadb": "MariaDB "}
NO_TESTS = 5  # pytest's exit code
SELECTING = ("-k", "-m", "--lf", "--last-failed")
FAILING = ("failed", "error", "xpassed")
WORKERS = min(6, 2 * (os.cpu_count() or 1))  # trials with processes wait more than they work
SECOND_TRIES_MAX = 10  # more than that is not bad luck


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
    conformance: dict[str, int] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)  # failed beside others, passed at a second try
    output: str = ""

    @property
    def passed(self) -> int:
        return _passed(self.counts)

    @property
    def failed(self) -> int:
        """Failed tests; at least 1 when pytest itself ended badly."""
        return max(_failed(self.counts), 0 if self.exit in (0, NO_TESTS) else 1)

    @property
    def skipped(self) -> int:
        return self.counts.get("skipped", 0)

    @property
    def cell(self) -> tuple[str, str]:
        return self.database, servers.ALIASES.get(self.redis, self.redis)

    @property
    def names(self) -> tuple[str, str]:
        """What database and Redis server called themselves; "-" for one that did not come up."""
        found = {True: "-", False: "-"}
        for name in self.servers:
            found[name.startswith(tuple(DATABASES.values()))] = name
        return found[True], found[False]

    @property
    def conforms(self) -> bool:
        """Whether the conformance tests passed here, none left out, on the servers this cell is about."""
        wanted = DATABASES[self.database], servers.REDIS_KINDS[self.cell[1]].name
        right = all(name.startswith(start) for name, start in zip(self.names, wanted, strict=True))
        clean = not _failed(self.conformance) and not self.conformance.get("skipped", 0)
        return right and clean and _passed(self.conformance) > 0 and bool(self.counts)

    def run(self, *, quiet: bool = False) -> None:
        """Run pytest; what failed is tried once more by itself, one after the other, and named if it passes then."""
        self._run(self.arguments, quiet=quiet)
        if not 0 < self.failed == len(self.failing) <= SECOND_TRIES_MAX:
            return
        again = Leg(self.database, self.redis, ["-n", "0", *self.failing])
        again._run(again.arguments, quiet=quiet)
        if again.exit == 0 and again.passed == len(self.failing):
            self.unsteady, self.failing, self.exit = self.failing, [], 0
            for counts, now in ((self.counts, again.counts), (self.conformance, again.conformance)):
                counts["passed"] = counts.get("passed", 0) + now.get("passed", 0)
                counts.update(dict.fromkeys(FAILING, 0))

    def _run(self, arguments: Sequence[str], *, quiet: bool) -> None:
        """Run pytest with its output going straight to ours, or kept in `output`."""
        with tempfile.TemporaryDirectory() as folder:
            report, output = Path(folder, "report.json"), Path(folder, "output")
            command = [sys.executable, "-m", "pytest", f"--db={self.database}", f"--redis={self.redis}"]
            command += [f"--matrix-report={report}", *arguments]
            if not quiet:
                print(f"\n=== {self.database}, {self.redis}: pytest {' '.join(arguments)}", flush=True)
            started = time.monotonic()
            with output.open("wb") as kept:
                sink = kept if quiet else None
                self.exit = subprocess.run(command, cwd=ROOT, stdout=sink, stderr=sink, check=False).returncode
            self.seconds += time.monotonic() - started
            self.output += output.read_text(encoding="utf-8", errors="replace")
            if report.exists():
                facts = json.loads(report.read_text(encoding="utf-8"))
                self.servers, self.counts = facts["servers"], facts["counts"]
                self.conformance, self.failing = facts["conformance"], facts["failing"]


def _passed(counts: dict[str, int]) -> int:
    return counts.get("passed", 0) + counts.get("xfailed", 0)


def _failed(counts: dict[str, int]) -> int:
    return sum(counts.get(kind, 0) for kind in FAILING)


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
    parts = [part for part in ON_DATABASES if part.startswith("-") or (ROOT / part).exists()]
    legs = [Leg("sqlite", "valkey9", everything)]
    if parts:
        legs.append(Leg("postgres", "valkey9", [*parallel, *parts]))
    if parts and "mariadb" not in missing:
        redis = "valkey9" if "redis7" in missing else "redis7"
        legs.append(Leg("mariadb", redis, [*parallel, *parts]))
    return legs


def pairs_of(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the pairs of a database and a Redis kind that are asked for, by default all."""
    redises = dict.fromkeys(servers.ALIASES.get(kind, kind) for kind in options.redis or servers.REDIS_KINDS)
    return [(database, redis) for redis in redises for database in dict.fromkeys(options.db or DATABASES)]


def conformance_cells(
    pairs: Iterable[tuple[str, str]], missing: dict[str, str], rest: list[str], but: Iterable[Leg] = ()
) -> list[Leg]:
    """Return a leg for each pair whose servers are here, without those that other legs bring."""
    arguments = ["-q", "-p", "no:cacheprovider", "-m", "conformance", *rest, *conformance.PARTS]
    brought = {leg.cell for leg in but}
    here = [pair for pair in pairs if pair not in brought and not missing.keys() & set(pair)]
    return [Leg(database, redis, arguments) for database, redis in here]


def run_side_by_side(cells: Sequence[Leg], workers: int) -> None:
    """Run cells, as many at a time as there are workers. What a cell wrote is shown when it failed."""
    if not cells:
        return
    said = " ".join(cells[0].arguments)
    print(f"\n=== conformance: {len(cells)} cells, {workers} at a time: pytest {said}", flush=True)

    def run(cell: Leg) -> None:
        cell.run(quiet=True)
        said = cell.output if cell.failed or not cell.conforms else ""
        result = f"{cell.passed} passed, {cell.failed} failed in {cell.seconds:.0f} s"
        print(f"{said}{cell.database}, {cell.redis}: {result}", flush=True)

    started = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, cells))
    print(f"{len(cells)} cells in {time.monotonic() - started:.0f} s", flush=True)


def chosen_legs(options: argparse.Namespace, rest: list[str]) -> list[Leg]:
    """Return one leg for each chosen database with the caller's own arguments."""
    arguments = ["-n", options.workers, *rest] if options.workers else rest
    pairs = [(database, redis) for database in options.db or ["sqlite"] for redis in options.redis or ["valkey9"]]
    return [Leg(database, redis, arguments) for database, redis in pairs]


def print_summary(legs: list[Leg], missing: dict[str, str]) -> None:
    if legs:
        print("\n=== summary")
        print(f"{'database':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}  servers that ran")
    for leg in legs:
        counts = f"{leg.passed:>8}{leg.failed:>8}{leg.skipped:>9}{leg.seconds:>9.1f}"
        print(f"{leg.database:<10}{counts}  {', '.join(leg.servers) or '-'}")
    for kind, how in missing.items():
        print(f"not found: {kind}, so its tests did not run ({how})")


def print_conformance(legs: Sequence[Leg], wanted: int) -> bool:
    """Say of every cell which servers it had, by their own word, and how it ended. Returns whether all conform."""
    print("\n=== conformance")
    print(f"{'database':<20}{'Redis server':<15}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}  result")
    for leg in legs:
        database, redis = leg.names
        counts = f"{_passed(leg.conformance):>8}{_failed(leg.conformance):>8}{leg.conformance.get('skipped', 0):>9}"
        result = "conforms" if leg.conforms else f"FAILED ({leg.database}, {leg.redis})"
        print(f"{database:<20}{redis:<15}{counts}{leg.seconds:>9.1f}  {result}")
    conforming = sum(leg.conforms for leg in legs)
    print(f"{conforming} of {wanted} cells conform")
    return conforming == len(legs)


def planned(options: argparse.Namespace, rest: list[str], missing: dict[str, str]) -> tuple[list[Leg], list[Leg]]:
    """Return the legs to run one after the other, and the conformance cells to run side by side."""
    if options.conformance:
        return [], conformance_cells(pairs_of(options), missing, rest)
    workers = str(WORKERS)
    if is_choice(options, rest):
        options.workers = options.workers or ("" if selects(rest) else workers)
        return chosen_legs(options, rest), []
    legs = whole_matrix(missing, options.workers or workers, rest)
    return legs, conformance_cells(pairs_of(options), missing, rest, but=legs)


def is_choice(options: argparse.Namespace, rest: list[str]) -> bool:
    """Whether the caller said what to run where, so that nothing else is missed."""
    return not options.conformance and bool(selects(rest) or options.db or options.redis)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./run test", description=__doc__)
    parser.add_argument("--db", action="append", choices=[*DATABASES], help="may be repeated")
    redises = [*servers.REDIS_KINDS, *servers.ALIASES]
    parser.add_argument("--redis", action="append", choices=redises, help="may be repeated")
    parser.add_argument("--conformance", action="store_true", help="the conformance tests alone, on every pair")
    parser.add_argument("-n", dest="workers", default="", help="processes (default: two a core, at most 6)")
    options, rest = parser.parse_known_args(arguments)
    missing = {} if is_choice(options, rest) else servers.missing()
    if options.conformance:
        missing.pop("chromium", None)
    legs, cells = planned(options, rest, missing)
    for leg in legs:
        leg.run()
    run_side_by_side(cells, int(options.workers or WORKERS))
    print_summary(legs, missing)
    conforms = is_choice(options, rest) or print_conformance([*legs, *cells], len(pairs_of(options)))
    insists = os.environ.get("CI", "").lower() in {"1", "true"}
    if missing and insists:
        print("CI=true: every server has to be here, so this counts as a failure.")
    every = [*legs, *cells]
    passed, failed, skipped = (sum(getattr(leg, kind) for leg in every) for kind in ("passed", "failed", "skipped"))
    # With nothing at all run, "0 failed" would be a lie of omission.
    empty = passed + failed + skipped == 0
    for leg in every:
        for kind, names in (("failed", leg.failing), ("passed only at a second try", leg.unsteady)):
            for name in names:
                print(f"{kind} ({leg.database}, {leg.redis}): {name}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or empty or not conforms or (missing and insists) else 0


if __name__ == "__main__":
    sys.exit(main())
