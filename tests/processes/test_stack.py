"""Real processes on the test's own database and Redis: they start, work, restart and end as the tests need it."""

import httpx
import pytest

from runs.models import Run
from runs.services import submit_run
from tests import builders, invariants
from tests.probes import eventually, probe_log

pytestmark = pytest.mark.process


def test_a_worker_is_ready_when_its_row_is_there_and_ends_clean(stack):
    worker = stack.worker()

    assert worker.row.pid == worker.pid
    assert worker.term() == 0
    assert worker.row.stopped_at is not None


def test_a_web_process_keeps_its_port_over_a_restart(stack):
    web = stack.web()
    url = web.url

    web.restart()

    assert web.url == url
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_runs_end_with_every_invariant_kept(live_stack):
    account = builders.make_account()
    inputs = [("probe.ret", {"value": 7}), ("probe.spend", {"amount": 40, "times": 2}), ("probe.raise", {"text": "x"})]
    runs = [submit_run(account=account, agent=agent, input=data, actor="test").run for agent, data in inputs]

    def ended():
        states = dict(Run.objects.values_list("agent", "state"))
        assert states == {"probe.ret": "succeeded", "probe.spend": "succeeded", "probe.raise": "failed"}

    eventually(ended, timeout=20)
    eventually(lambda: invariants.check(account))
    assert [line["phase"] for line in probe_log(runs[0].id)] == ["start", "end"]
    assert Run.objects.get(pk=runs[1].pk).cost == 80
