"""A short trial with a fixed seed: what can be broken in three quarters of a minute is, and every invariant holds."""

import json

import pytest

from tests.probes import manage

pytestmark = pytest.mark.process


@pytest.mark.timeout(400)
def test_the_invariants_hold_under_a_minute_of_faults():
    done = manage("chaos", "--runs", "40", "--minutes", "0.8", "--seed", "7", "--workers", "2", "--json", timeout=390)

    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert report["runs"] == 40
    assert sum(report["outcomes"].values()) == 40
    assert sum(fault["injected"] for fault in report["faults"].values()) >= 3
