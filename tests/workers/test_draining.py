"""A drain and its recall: of the worker's last word and the operator's only one is believed (protocol 12.2.1)."""

import pytest

from quotas.models import AuditEntry
from runs import broker
from tests import working
from tests.racing import in_parallel
from workers.drains import recall_drain, request_drain
from workers.errors import NotRecallable
from workers.heartbeat import Heartbeat
from workers.models import WorkerProcess

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def worker(transactional_db):
    """The heartbeat of a worker that is registered, and its name."""
    config = working.config()
    made = Heartbeat(config, broker.client())
    made.register(port=0)
    made.name = config.consumer
    return made


def row():
    return WorkerProcess.objects.get()


def test_a_drain_that_is_asked_for_ends_with_the_workers_last_word(worker):
    request_drain(name=worker.name, actor="olga")
    worker.draining(False)

    assert worker.leave()

    with pytest.raises(NotRecallable, match="its drain is over"):
        recall_drain(name=worker.name, actor="ivan")
    assert row().drain_requested_at is not None


def test_a_drain_that_was_recalled_is_left_by_nobody(worker):
    request_drain(name=worker.name, actor="olga")
    worker.draining(False)
    recall_drain(name=worker.name, actor="ivan", reason="the wrong one")

    assert not worker.is_asked_to_drain()
    assert not worker.leave()

    assert (row().leaving_at, row().draining_since, row().drain_requested_by) == (None, None, "")
    line = AuditEntry.objects.get(action="worker.undrain")
    assert (line.actor, line.reason, line.before) == ("ivan", "the wrong one", {"drain": "requested", "by": "olga"})


def test_what_a_signal_asked_for_is_not_recalled(worker):
    request_drain(name=worker.name, actor="olga")
    worker.draining(True)

    with pytest.raises(NotRecallable):
        recall_drain(name=worker.name, actor="ivan")
    assert not AuditEntry.objects.filter(action="worker.undrain").exists()


def test_a_drain_that_only_a_signal_asked_for_says_so(worker):
    worker.draining(True)

    with pytest.raises(NotRecallable, match="a signal asked it to stop"):
        recall_drain(name=worker.name, actor="ivan")


@pytest.mark.race
def test_of_the_last_word_and_the_recall_one_wins(worker, rounds):
    for _ in range(rounds):
        WorkerProcess.objects.update(leaving_at=None)
        request_drain(name=worker.name, actor="olga")

        left, recalled = in_parallel(worker.leave, lambda: recall_drain(name=worker.name, actor="ivan"))

        assert left is not isinstance(recalled, list), (left, recalled)
        assert (row().leaving_at is not None) is left
        assert (row().drain_requested_at is None) is not left
