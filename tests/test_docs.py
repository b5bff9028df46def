"""The documents say what the code does: state machine, settings, commands, links."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs import state_page
from tests.browser import pages

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
APPS = ("agentops", "quotas", "runs", "workers")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
ENV_READ = re.compile(r"\benv\.(?:text|boolean|choice|integer|seconds|words)\(\s*\"([A-Z0-9_]+)\"")
REFUSAL_CODE = re.compile(r"^    code = \"(\w+)\"", re.MULTILINE)
PROBLEM_CODE = re.compile(r"(?:\b\d{3}, |Exception\w*, |exceptions\.\w+, )\"(\w+)\"")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def _names_in_first_column(page: Path) -> set[str]:
    rows = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `"))
    return {row.split("`")[1].split()[0] for row in rows}


def test_the_state_machine_page_is_what_the_edges_say() -> None:
    page = (DOCS / "state_machine.md").read_text(encoding="utf-8")

    assert page == state_page.render(), "python -m runs.state_page > docs/state_machine.md"


def test_the_settings_page_lists_every_variable_once_and_no_other() -> None:
    source = (ROOT / "agentops" / "settings.py").read_text(encoding="utf-8")
    rows = [line for line in (DOCS / "settings.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]

    assert _names_in_first_column(DOCS / "settings.md") == set(ENV_READ.findall(source))
    assert len(rows) == len(_names_in_first_column(DOCS / "settings.md"))


def test_a_variable_read_elsewhere_is_on_the_settings_page_too() -> None:
    """`up` asks what the environment itself says, before an instance's addresses fill the gaps."""
    read = {
        name
        for app in APPS
        for path in (ROOT / app).rglob("*.py")
        for name in ENV_READ.findall(path.read_text(encoding="utf-8"))
    }

    assert read == _names_in_first_column(DOCS / "settings.md")


def _commands() -> set[str]:
    return {
        path.stem
        for app in APPS
        for path in (ROOT / app / "management" / "commands").glob("*.py")
        if path.stem != "__init__"
    }


def _sections_of_commands_page() -> set[str]:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    return set(re.findall(r"^## `(\w+)", text, re.MULTILINE))


def test_the_commands_page_has_a_section_for_every_command_and_no_other() -> None:
    assert _sections_of_commands_page() == _commands()


def test_the_api_page_lists_every_error_code_and_no_other() -> None:
    sources = [path.read_text(encoding="utf-8") for app in APPS for path in (ROOT / app).rglob("*.py")]
    known = {code for source in sources for code in REFUSAL_CODE.findall(source)} - {"refused"}
    known |= set(PROBLEM_CODE.findall((ROOT / "agentops" / "api_errors.py").read_text(encoding="utf-8")))
    page = (DOCS / "api.md").read_text(encoding="utf-8").partition("## Errors")[2]

    assert set(re.findall(r"^\| \d+ \| `(\w+)`", page, re.MULTILINE)) == known


def _local_links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target and not target.startswith(("#", "mailto:")):
                yield page, target


@pytest.mark.parametrize(("page", "target"), [pytest.param(p, t, id=f"{p.name}:{t}") for p, t in _local_links()])
def test_a_link_leads_to_a_file(page: Path, target: str) -> None:
    assert (page.parent / target.partition("#")[0]).exists()


def test_every_page_is_on_the_map() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"README.md"}

    assert {page for page in pages if f"({page})" not in index} == set()


def test_each_page_of_the_console_has_its_section_and_pictures() -> None:
    text = (DOCS / "console.md").read_text(encoding="utf-8")
    sections = {part.split("\n", 1)[0]: part for part in re.split(r"(?m)^## ", text)[1:]}
    images = DOCS / "images" / "console"
    shown = {name for part in sections.values() for name in re.findall(r"\(images/console/([^)]+)\)", part)}

    for section in {section for section, _ in pages.catalogue().values()}:
        name = re.sub(r"\W+", "-", section.lower())
        pictures = set(re.findall(r"console/([^)]+)\)", sections[section]))
        assert {f"{name}-full-light.webp", f"{name}-full-dark.webp"} <= pictures
        assert len(re.sub(r"<!-- pictures -->.*", "", sections[section], flags=re.DOTALL)) > len(section) + 100, section
    sizes = {path.name: path.stat().st_size for path in images.iterdir()}
    assert shown == set(sizes)
    assert max(sizes.values()) <= 60 * 1024
    assert sum(sizes.values()) <= 6 * 1024 * 1024
