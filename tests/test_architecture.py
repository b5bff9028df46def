"""Rules about the source itself, read as syntax trees. Each names the page it comes from."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agentops", "workers", "runs", "quotas")
MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 400
STATE_WRITER = Path("runs/transitions.py")
ON_PAGES = {"admin", "console", "admin_forms"}
WRITES = {"update", "create", "bulk_update", "get_or_create", "update_or_create"}


def sources() -> list[Path]:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted(path.relative_to(ROOT) for path in files if "migrations" not in path.parts)


def test_files() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


test_files.__test__ = False  # type: ignore[attr-defined]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def nodes(paths: list[Path], *kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, kinds):
                yield path, node


def place(path: Path, node: ast.AST) -> str:
    return f"{path}:{getattr(node, 'lineno', 0)}"


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` of a chain of names, calls looked through: `Run.objects.filter(…).update` in one piece."""
    match node:
        case ast.Attribute():
            return f"{dotted(node.value)}.{node.attr}"
        case ast.Call():
            return dotted(node.func)
        case ast.Name():
            return node.id
        case _:
            return "?"


def runs_state_is_written(call: ast.Call) -> bool:
    """Whether a call like `Run.objects.filter(…).update(state=…)` or `Run(state=…)` writes the state of a run."""
    chain = dotted(call.func).split(".")
    writes = chain == ["Run"] or (chain[0] == "Run" and chain[-1] in WRITES)
    return writes and any(keyword.arg == "state" for keyword in call.keywords)


def test_a_runs_state_is_written_in_one_module():
    found = []
    for path, node in nodes(sources(), ast.Call, ast.Assign, ast.AugAssign):
        if path == STATE_WRITER:
            continue
        if isinstance(node, ast.Call) and runs_state_is_written(node):
            found.append(place(path, node))
        targets = node.targets if isinstance(node, ast.Assign) else []
        found += [place(path, node) for target in targets if dotted(target) in {"run.state", "row.state"}]
    assert found == []


def test_services_save_named_fields_only():
    """A bare save() writes back every column as it was read: a lost update waiting to happen."""
    found = []
    # The admin saves forms and storages save files: neither is a service's write to a row.
    domain = [path for path in sources() if not ON_PAGES & {*path.parts, path.stem}]
    for path, node in nodes(domain, ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "save":
            continue
        if len(node.args) > 1:  # a storage's save(name, content)
            continue
        if {keyword.arg for keyword in node.keywords} & {"update_fields", "force_insert"}:
            continue
        found.append(place(path, node))
    assert found == []


def test_no_signal_carries_a_business_step():
    found = []
    for path, node in nodes(sources(), ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef):
        if isinstance(node, ast.ImportFrom):
            if (node.module or "").endswith("signals") or (node.module or "") == "django.dispatch":
                found.append(place(path, node))
        elif any(dotted(decorator).split(".")[-1] == "receiver" for decorator in node.decorator_list):
            found.append(place(path, node))
    assert found == []


def test_no_function_is_longer_than_a_screen():
    functions = nodes(sources() + test_files(), ast.FunctionDef, ast.AsyncFunctionDef)
    found = [place(p, node) for p, node in functions if node.end_lineno - node.lineno >= MAX_FUNCTION_LINES]
    assert found == []


def test_no_module_is_longer_than_400_lines():
    sizes = {str(p): len((ROOT / p).read_text("utf-8").splitlines()) for p in sources() + test_files()}
    assert {path: size for path, size in sizes.items() if size > MAX_MODULE_LINES} == {}


def scripts() -> list[Path]:
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.lua"))


@pytest.mark.parametrize("path", scripts(), ids=str)
def test_a_script_says_what_it_takes_and_returns(path):
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    code = (number for number, line in enumerate(lines) if line.strip() and not line.startswith("--"))
    header = "\n".join(lines[: next(code, len(lines))])
    for word in ("KEYS", "ARGV", "Returns"):
        assert re.search(rf"^--\s*{word}\b", header, re.MULTILINE), f"the header of {path} has no {word}"


def test_no_test_sleeps():
    """Poll a condition (tests/probes.py: eventually) or wait on an event."""
    found = []
    for path, node in nodes(test_files(), ast.Call):
        gives_way = bool(node.args) and getattr(node.args[0], "value", None) == 0  # sleep(0) lets others run
        if dotted(node.func) in {"time.sleep", "asyncio.sleep", "sleep"} and not gives_way:
            found.append(place(path, node))
    assert found == []


def _names_ours(node):
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return any(name.partition(".")[0] in PACKAGES for name in names)


def test_no_import_of_ours_is_for_the_type_checker_alone():
    """A TYPE_CHECKING block hides an import cycle from the contracts; of a library it saves the time to import it."""
    found = [
        place(path, below)
        for path, node in nodes(sources(), ast.If)
        if dotted(node.test).endswith("TYPE_CHECKING")
        for below in ast.walk(node)
        if isinstance(below, ast.Import | ast.ImportFrom) and _names_ours(below)
    ]
    assert found == []
