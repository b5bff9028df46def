"""From a taken entry to an owned run, in the unit's thread: nothing of it may wait for the event loop."""

import pytest

from tests import working
from workers.claimer import Batch
from workers.shutdown import Shutdown
from workers.worker import Worker

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_claimed_run_is_owned_before_the_loop_hears_of_it(account):
    """Another run's handler may block the loop for longer than a lease: the beat must know the run by then."""
    run = working.submit(account)
    worker = Worker(working.config(), Shutdown())

    free, begun = worker._begin(worker._take([0]), Batch())

    assert free == []
    assert [owned.run_id for owned in begun] == [run.pk]
    assert worker.owned.all() == begun


def test_a_row_that_cannot_be_begun_holds_up_no_other(account):
    broken, sound = working.submit(account), working.submit(account)
    type(broken).objects.filter(pk=broken.pk).update(input_json="not json")
    worker = Worker(working.config(), Shutdown())

    free, begun = worker._begin(worker._take([0, 1]), Batch())

    assert [entry.fields[b"run_id"].decode() for entry in free] == [str(broken.pk)]
    assert [owned.run_id for owned in begun] == [sound.pk]
