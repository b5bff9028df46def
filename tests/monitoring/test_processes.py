"""Real processes, scraped: what they export is what is documented and drawn, and no restart loses a count."""

import re

import httpx
import pytest

from tests import builders
from tests.probes import ROOT, eventually
from tests.processes.trials import submit, until

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
NAME = re.compile(r"\bagentops_[a-z_]+")
TYPE = re.compile(r"^# TYPE (agentops_\w+) (\w+)$", re.MULTILINE)
SERIES = re.compile(r"^(agentops_\w+?)(?:_bucket|_sum|_count)?\{([^}]*)\} ", re.MULTILINE)
ROW = re.compile(r"^\| `(agentops_\w+)` \| (\w+) \| ([\w, ]*)\|", re.MULTILINE)
PATIENCE = 60.0
ENDED = "sum(increase(agentops_runs_ended_total[1h]))"


def page(url: str) -> str:
    return httpx.get(f"{url}/metrics", timeout=20).raise_for_status().text


def exported(text: str) -> dict[str, str]:
    """Return {name: type} of what is ours."""
    return {name: kind for name, kind in TYPE.findall(text) if not name.endswith("_created")}


def address(worker) -> str:
    return f"127.0.0.1:{worker.row.port}"


def family(name: str) -> str:
    """Return the name of a series as the table has it."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_what_is_documented_alerted_on_and_drawn_is_what_processes_export(stack):
    web, worker = stack.web(AGENTOPS_GLOBAL_SLOTS="4"), stack.worker(AGENTOPS_GLOBAL_SLOTS="4")
    until("succeeded", submit(builders.make_account(), "probe.ret", value=1))
    eventually(lambda: "agentops_hold_drift{" in page(f"http://{address(worker)}"), timeout=PATIENCE)
    texts = [page(web.url), page(f"http://{address(worker)}")]
    found = exported(texts[0]) | exported(texts[1])
    documented = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = {name: (kind, set(labels.replace(",", " ").split())) for name, kind, labels in ROW.findall(documented)}

    assert {name: kind for name, (kind, _) in table.items()} == found
    for name, labels in SERIES.findall("\n".join(texts)):
        if name in table:
            assert set(re.findall(r"(\w+)=", labels)) - {"le"} == table[name][1], name
    for path in ("deploy/prometheus/agentops.rules.yml", "deploy/grafana/agentops.json", "docs/metrics.md"):
        used = {family(name) for name in NAME.findall((ROOT / path).read_text(encoding="utf-8"))}
        assert used - set(found) == set(), path


def test_a_prometheus_sees_a_web_and_two_workers_and_no_count_falls_over_a_restart(stack, prometheus):
    account = builders.make_account(max_in_flight=100)
    web, first, second = stack.web(), stack.worker(), stack.worker()
    server = prometheus(web=web.url.removeprefix("http://"), workers=[address(first), address(second)])

    eventually(lambda: server.value("count(up == 1)") == 3, timeout=PATIENCE)
    assert {one["metric"]["job"] for one in server.ask("up")} == {"agentops-web", "agentops-worker"}
    eventually(lambda: server.value("max(agentops_workers_alive)") == 2, timeout=PATIENCE)
    eventually(lambda: server.value(ENDED) == 0, timeout=PATIENCE)

    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(10)], timeout=PATIENCE)
    eventually(lambda: server.value("sum(agentops_runs_ended_total)") == 10, timeout=PATIENCE)
    before = server.value(ENDED)
    assert before >= 10

    port = str(first.row.port)
    instance = f'agentops_places{{instance="{address(first)}"}}'
    assert first.term() == 0
    eventually(lambda: server.value('count(up{job="agentops-worker"} == 1)') == 1, timeout=PATIENCE)
    again = stack.worker("--port", port, concurrency=5)
    eventually(lambda: server.value(instance) == 5, timeout=PATIENCE)
    assert second.term() == 0  # what ends from here on is counted by the new process, which began at 0
    until("succeeded", *[submit(account, "probe.ret", value=number) for number in range(10)], timeout=PATIENCE)
    own = f'sum(agentops_runs_ended_total{{instance="{address(again)}"}})'
    eventually(lambda: server.value(own) == 10, timeout=PATIENCE)

    assert server.value(ENDED) >= 20
    assert server.ask('ALERTS{alertname="AgentOpsFiguresMissing"}') == []


def test_without_a_database_the_scrape_still_answers(stack):
    web = stack.web(DATABASE_URL="postgres://nobody@localhost/nothing?host=/nowhere")

    for _ in range(2):
        text = page(web.url)

    assert "agentops_in_flight{" in text
    assert "agentops_backlog" not in text
    errors = re.search(r'^agentops_scrape_errors_total\{source="database"\} (\S+)$', text, re.MULTILINE)
    assert errors is not None
    assert float(errors[1]) >= 1
