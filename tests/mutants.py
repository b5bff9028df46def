"""`make mutants`: take out one rule of the protocol at a time, and see that the test named for it fails.

Works on copies of the sources in a temporary folder. First the named tests run once without a change and must pass;
then each mutant runs its own tests, which must fail as tests: an error, a time-out, a text that is not there any more
or a test that still passes is a failure of this command. Exit code 0 when every mutant was caught, else 1.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 300.0
TEST_SECONDS = 60
TESTS_FAILED = 1  # pytest's exit code
# What starting costs is what all of this costs: tables straight from the models, and no plugin that is not needed.
UNNEEDED = ("cacheprovider", "xdist", "hypothesispytest", "anyio")
OPTIONS = (
    "-q",
    "--nomigrations",
    f"--timeout={TEST_SECONDS}",
    *(part for name in UNNEEDED for part in ("-p", f"no:{name}")),
)


class Stale(Exception):
    """The mutant does not fit the sources any more."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What an invocation of pytest said: its exit code (None: it took too long), and the messages of each test."""

    exit: int | None
    failures: dict[str, list[str]] = field(default_factory=dict)  # of every test that ran; empty: it passed
    output: str = ""

    def cases(self, test: str) -> list[list[str]]:
        """Return the failures of a named test's cases: one, or one a parameter."""
        return [said for name, said in self.failures.items() if name == test or name.startswith(f"{test}[")]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant. `problem` is empty when it was caught."""

    mutant: Mutant
    problem: str
    seconds: float
    output: str = ""


def mutated(mutant: Mutant, root: Path) -> dict[Path, str]:
    """Return the changed texts by file. Raises Stale when a text to replace is not there exactly once."""
    texts: dict[Path, str] = {}
    for edit in mutant.edits:
        path = root / edit.file
        text = texts.get(path) or path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise Stale(f"{edit.file} has {text.count(edit.old)} times: {edit.old!r}")
        texts[path] = text.replace(edit.old, edit.new)
    return texts


def copy_sources(target: Path) -> None:
    """Copy what git knows and what is new, without what it ignores."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(folder: Path, tests: Iterable[str], database: str) -> Ran:
    """Run the tests on the sources in the folder."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", *OPTIONS, f"--db={database}", f"--junitxml={report}", *tests]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        return Ran(None, output=str(late.stdout or ""))
    failures = _failures(report) if report.exists() else {}
    return Ran(done.returncode, failures, done.stdout + done.stderr)


def _failures(report: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("classname", "").replace(".", "/") + ".py::" + case.get("name", "")
        messages = found.setdefault(name, [])
        messages += [failure.get("message") or "failed" for failure in case.iter("failure")]
    return found


def problem_of(mutant: Mutant, ran: Ran) -> str:
    """Return why the mutant does not count as caught; "" if every test named for it failed."""
    if ran.exit != TESTS_FAILED:
        return "its tests took too long" if ran.exit is None else f"pytest ended with {ran.exit}, not {TESTS_FAILED}"
    for test in mutant.tests:
        cases = ran.cases(test)
        if not cases:
            return f"did not run: {test}"
        said = [message for failures in cases for message in failures]
        if not said:
            return f"SURVIVED: {test}"
        if all(re.match(r"Failed: Timeout", message) for message in said):
            return f"timed out: {test}"
    return ""


def try_mutant(mutant: Mutant, clean: Path, root: Path) -> Verdict:
    """Run the mutant's tests in a copy of the clean sources with its change."""
    started = time.monotonic()
    folder = root / re.sub(r"\W+", "-", mutant.name)
    try:
        texts = mutated(mutant, clean)
    except Stale as stale:
        return Verdict(mutant, f"stale: {stale}", 0.0)
    shutil.copytree(clean, folder)  # with what Python has compiled; only the changed files are newer
    for path, text in texts.items():
        (folder / path.relative_to(clean)).write_text(text, encoding="utf-8")
    ran = run_tests(folder, mutant.tests, mutant.database)
    problem = problem_of(mutant, ran)
    shutil.rmtree(folder, ignore_errors=True)
    return Verdict(mutant, problem, time.monotonic() - started, ran.output if problem else "")


def unmutated(mutants: Sequence[Mutant], clean: Path) -> list[str]:
    """Run every named test once without a change. Returns what is wrong with them."""
    wrong = []
    for database in sorted({mutant.database for mutant in mutants}):
        tests = dict.fromkeys(test for mutant in mutants if mutant.database == database for test in mutant.tests)
        ran = run_tests(clean, tests, database)
        (clean / "report.xml").unlink(missing_ok=True)
        failed = [test for test in tests if not ran.cases(test) or any(ran.cases(test))]
        wrong += [f"without a mutant, on {database}: {test}" for test in failed]
        if ran.exit != 0:
            wrong.append(f"pytest ended with {ran.exit} on {database}:\n{ran.output[-6000:]}")
    return wrong


def tell(verdict: Verdict) -> None:
    """Print a mutant's line, and the end of its output where it was not caught."""
    mutant = verdict.mutant
    print(f"{verdict.problem or 'caught':<8} {verdict.seconds:5.1f} s  {mutant.rule:<5} {mutant.name}", flush=True)
    if verdict.output:
        print(verdict.output[-3000:], file=sys.stderr, flush=True)


def chosen(names: Sequence[str]) -> list[Mutant]:
    """Return the mutants of these names, all without names. Raises SystemExit for a name that is none."""
    known = {mutant.name: mutant for mutant in MUTANTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"No such mutant: {', '.join(unknown)}; --list names them.")
    return [known[name] for name in names] or list(MUTANTS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant (may be repeated)")
    parser.add_argument("--list", action="store_true", help="name the mutants, with the rule each takes out")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    options = parser.parse_args(arguments)
    mutants = chosen(options.only)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.rule:<5} {mutant.name:<34} {mutant.what}")
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        clean = Path(folder, "clean")
        clean.mkdir()
        copy_sources(clean)
        wrong = unmutated(mutants, clean)
        if wrong:
            print("\n".join(wrong), file=sys.stderr)
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            pending = [pool.submit(try_mutant, mutant, clean, Path(folder)) for mutant in mutants]
            verdicts = []
            for future in pending:
                verdicts.append(future.result())
                tell(verdicts[-1])
    caught = sum(not verdict.problem for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants caught in {time.monotonic() - started:.0f} s")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
