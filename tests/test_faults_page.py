"""docs/faults.md names tests that are there, and a row once."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "faults.md"
ROW = re.compile(r"^\| (F\d\d) \| .+ \| .+ \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w/]+\.py)((?:::\w+)+)`")
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def _has(scope: ast.Module | ast.ClassDef, names: list[str]) -> bool:
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and node.name == names[0] and names[1:]:
            return _has(node, names[1:])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and [node.name] == names:
            return True
    return False


def test_every_row_is_there_once_in_order() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| F")]
    ids = [row for row, _ in ROWS]

    assert len(ids) == len(lines) > 50
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(("row", "tests"), ROWS, ids=[row for row, _ in ROWS])
def test_the_tests_of_a_row_are_there(row: str, tests: str) -> None:
    named = NAMED.findall(tests)

    assert named, row
    assert len(named) == tests.count("`") // 2, "each test is named as `path.py::name`"
    for path, names in named:
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        assert _has(tree, names.split("::")[1:]), f"{path}{names}"
