"""The alert rules are sound, each fires in its trouble and says where to read on; the dashboard is one."""

import json
import re
import subprocess

import pytest

from tests.monitoring.conftest import DEPLOY
from tests.probes import ROOT

RULES = (DEPLOY / "agentops.rules.yml").read_text(encoding="utf-8")
ALERTS = re.findall(r"- alert: (\w+)", RULES)
PAGES = re.findall(r"runbook_url: (\S+)", RULES)


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "agentops.rules.yml"), ("check", "config", "prometheus.yml")],
    ids=["rules", "sample"],
)
def test_promtool_finds_nothing_wrong(promtool, arguments):
    said = subprocess.run([promtool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_fires_in_its_trouble_and_none_where_all_is_well(promtool):
    command = [promtool, "test", "rules", "agentops.rules.test.yml"]

    said = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stdout + said.stderr


def test_no_alert_is_without_a_trial():
    tried = re.findall(r'alertname="(\w+)"', (DEPLOY / "agentops.rules.test.yml").read_text(encoding="utf-8"))

    assert sorted(tried) == sorted(set(ALERTS))


def test_every_alert_has_a_page_and_every_page_an_alert():
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "runbooks").glob("*.md")}

    assert len(PAGES) == len(ALERTS)
    assert set(PAGES) == pages
    for alert, page in zip(ALERTS, PAGES, strict=True):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"`{alert}`" in text, page
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["What it means", "How to look", "What to do"]


def test_the_page_of_metrics_lists_every_alert():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| `(AgentOps\w+)` \|", page, re.MULTILINE) == ALERTS


def test_commands_and_settings_on_the_pages_exist():
    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in set(PAGES))
    commands = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

    assert {name for name in re.findall(r"\./run (\w+)", pages) if f"## `{name}`" not in commands} == set()
    assert {name for name in re.findall(r"AGENTOPS_[A-Z_]+", pages) if f"`{name}`" not in settings} == set()


def test_the_dashboard_shows_something_in_every_panel_and_overlaps_nowhere():
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "agentops.json").read_text(encoding="utf-8"))
    panels = dashboard["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if panel["type"] != "row" and not panel["targets"]] == []
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
