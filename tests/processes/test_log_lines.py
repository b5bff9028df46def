"""Every line that is logged while an attempt is at work names it: also an agent's own, from a thread or a process."""

import json
import textwrap

import httpx
import pytest

from runs.models import Run
from tests import builders
from tests.processes.trials import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

AGENTS = """
    import logging
    from runs.agents import agent

    def say(ctx):
        logging.getLogger("library").warning("said in %s", ctx.agent)

    @agent("saying.async", max_attempts=1)
    async def in_loop(ctx, run_input):
        say(ctx)

    @agent("saying.sync", max_attempts=1)
    def in_thread(ctx, run_input):
        say(ctx)

    @agent("saying.isolated", isolation="process", max_attempts=1)
    def isolated(ctx, run_input):
        say(ctx)
"""


def test_a_line_of_an_agent_names_run_attempt_fence_and_request(stack, tmp_path):
    account = builders.make_account()
    headers = {"Authorization": f"Bearer {builders.make_api_key(account)[1]}", "X-Request-ID": "asked-1"}
    agents = tmp_path / "saying_agents.py"
    agents.write_text(textwrap.dedent(AGENTS))
    env = {"AGENTOPS_APPS": str(agents), "AGENTOPS_LOG_FORMAT": "json"}
    web, worker = stack.web(**env), stack.worker(**env)

    names = ("saying.async", "saying.sync", "saying.isolated")
    bodies = [{"agent": name, "input": {}} for name in names]
    replies = [httpx.post(f"{web.url}/api/v1/runs", json=body, headers=headers) for body in bodies]
    assert [reply.status_code for reply in replies] == [202] * len(names), replies[0].text
    runs = [Run.objects.get(pk=reply.json()["id"]) for reply in replies]
    until("succeeded", *runs, timeout=60)

    lines = [json.loads(line) for line in worker.output().splitlines() if line.startswith("{")]
    # What an isolated handler writes is a line of the worker's, which has the handler's own in it.
    lines += [json.loads(line["line"]) for line in lines if line["event"] == "handler.output"]
    for run in runs:
        (said,) = (line for line in lines if line.get("event") == f"said in {run.agent}")
        named = {name: said.get(name) for name in ("run_id", "agent", "attempt", "fence", "request_id", "level")}
        assert named == {
            "run_id": str(run.pk),
            "agent": run.agent,
            "attempt": 1,
            "fence": 2,
            "request_id": "asked-1",
            "level": "warning",
        }
