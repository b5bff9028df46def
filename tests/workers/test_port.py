"""A worker's own port: red when one of its three ages is too old, and figures as old as the scrape, not as the loop."""

import threading

import httpx
import pytest
from prometheus_client import REGISTRY

from tests import working
from tests.at_work import at_work
from tests.probes import eventually
from workers.port import DEAF_SECONDS, LAG_SECONDS, Port
from workers.shutdown import Shutdown
from workers.worker import Worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker():
    """One that is there and does nothing: nobody but the test sets its clocks."""
    made = Worker(working.config(), Shutdown())
    yield made
    made.units.close()
    made.attempts.close()


@pytest.fixture
def port(worker):
    made = Port("127.0.0.1", 0)
    made.start(worker)
    yield f"http://127.0.0.1:{made.number}"
    made.stop()


def make_old(worker, what, seconds):
    if what == "beat_age":
        worker.keeper.last_beat -= seconds
    elif what == "read_age":
        worker.last_read -= seconds
    else:
        worker.last_tick -= seconds


@pytest.mark.parametrize("path", ["healthz", "readyz"])
def test_a_worker_with_fresh_ages_is_green(port, path):
    answer = httpx.get(f"{port}/{path}")

    assert answer.status_code == 200
    assert answer.json() | {"ok": True, "running": 0, "draining": False} == answer.json()


@pytest.mark.parametrize("path", ["healthz", "readyz"])
@pytest.mark.parametrize(
    ("what", "most"), [("read_age", DEAF_SECONDS), ("beat_age", LAG_SECONDS), ("loop_age", DEAF_SECONDS)]
)
def test_one_age_that_is_too_old_is_red_and_told(worker, port, path, what, most):
    make_old(worker, what, max(most, worker.config.lease * 2) + 1)

    answer = httpx.get(f"{port}/{path}")

    assert answer.status_code == 503
    told = answer.json()
    assert told["ok"] is False
    assert told[what] > most
    assert all(told[age] < most for age in {"read_age", "beat_age", "loop_age"} - {what})


def test_a_full_worker_has_no_reason_to_read_and_is_green(worker, port):
    for place in worker.places.free():
        worker.places.take(place)
    make_old(worker, "read_age", DEAF_SECONDS + 1)

    assert httpx.get(f"{port}/healthz").status_code == 200


def test_any_other_path_is_not_there(port):
    assert httpx.get(f"{port}/admin").status_code == 404


def test_a_blocked_loop_shows_while_it_is_blocked(account):
    begun, release = threading.Event(), threading.Event()

    async def blocking(ctx, run_input):
        begun.set()
        release.wait(120)

    with working.registered("test.blocking", blocking, estimate=1000), at_work("test.blocking"):
        working.submit(account, agent="test.blocking")
        try:
            assert begun.wait(60)
            eventually(lambda: REGISTRY.get_sample_value("agentops_loop_lag_seconds") > 1, timeout=60)
        finally:
            release.set()
