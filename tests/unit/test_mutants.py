"""The mutants fit the sources, their tests are there, and every rule marked † has one; `make mutants` runs them."""

import ast
import re
from pathlib import Path

import pytest

from tests import mutants
from tests.mutant_table import MUTANTS, Edit, Mutant
from tests.mutants import ROOT, Ran, Stale, problem_of

NAMED = "tests/a.py::test_named"
RULE = re.compile(r"^(\d+)\.\d+ †", re.MULTILINE)


def mutant(*edits: Edit) -> Mutant:
    return Mutant("m", "1.1", "what", edits, (NAMED,))


@pytest.mark.parametrize("given", MUTANTS, ids=lambda given: given.name)
def test_a_mutant_fits_the_sources(given: Mutant) -> None:
    texts = mutants.mutated(given, ROOT)

    assert all(text != path.read_text(encoding="utf-8") for path, text in texts.items())
    for path, text in texts.items():
        if path.suffix == ".py":
            ast.parse(text)


def test_names_are_unique_and_the_named_tests_are_there() -> None:
    defined = {
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert len({given.name for given in MUTANTS}) == len(MUTANTS)
    assert {test.partition("[")[0] for given in MUTANTS for test in given.tests} <= defined


def test_every_rule_with_a_dagger_has_a_mutant() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    daggers = {found[0].removesuffix(" †") for found in RULE.finditer(page) if found[1] != "11"}

    assert len(daggers) > 15
    assert daggers <= {given.rule for given in MUTANTS}


def test_a_text_that_is_not_there_once_is_stale(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one two two", encoding="utf-8")

    for text in ("two", "three"):
        with pytest.raises(Stale):
            mutants.mutated(mutant(Edit("a.py", text, "")), tmp_path)
    both = mutant(Edit("a.py", "one two", "one"), Edit("a.py", "one two", "done"))
    assert mutants.mutated(both, tmp_path) == {tmp_path / "a.py": "done"}


@pytest.mark.parametrize(
    ("ran", "problem"),
    [
        (Ran(1, {NAMED: ["AssertionError"]}), ""),
        (Ran(1, {f"{NAMED}[a]": [], f"{NAMED}[b]": ["AssertionError"]}), ""),
        (Ran(1, {NAMED: [], "tests/a.py::test_other": ["AssertionError"]}), "SURVIVED"),
        (Ran(0, {NAMED: []}), "pytest ended with 0"),
        (Ran(2, {NAMED: ["AssertionError"]}), "pytest ended with 2"),
        (Ran(1, {f"{NAMED}_too": ["AssertionError"]}), "did not run"),
        (Ran(1, {NAMED: ["Failed: Timeout (>60.0s) from pytest-timeout."]}), "timed out"),
        (Ran(None), "too long"),
    ],
)
def test_a_mutant_is_caught_by_a_failure_of_its_test_alone(ran: Ran, problem: str) -> None:
    said = problem_of(mutant(), ran)

    assert problem in said
    assert bool(said) == bool(problem)


def test_a_mutant_that_nobody_knows_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        mutants.chosen(["no such thing"])
    assert mutants.chosen([]) == list(MUTANTS)
    assert mutants.chosen([MUTANTS[3].name]) == [MUTANTS[3]]
