"""A bulk operation of 200 dead letters whose worker is killed in the middle, and one that is aborted there."""

import pytest

from quotas.models import Hold
from runs.models import Run
from tests import builders, invariants
from tests.bulk_work import started
from tests.probes import eventually
from workers.bulk import operations
from workers.models import BulkOperation, DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
COUNT = 200
SECONDS = 90.0


def letters(account):
    return [builders.make_dead_letter(builders.make_run("failed", account=account)) for _ in range(COUNT)]


def reached(operation, done):
    eventually(lambda: BulkOperation.objects.filter(pk=operation.pk, done_count__gte=done).exists(), timeout=SECONDS)


def test_a_worker_killed_in_the_middle_leaves_every_item_acted_on_once(stack):
    account = builders.make_account(limit=10**9, max_in_flight=COUNT * 2)
    letters(account)
    first = stack.worker()
    operation = started(query={"state_is": "open"}, pace=1200)
    reached(operation, 20)

    first.kill()

    operation.refresh_from_db()
    assert operation.done_count < COUNT
    stack.worker()
    eventually(lambda: BulkOperation.objects.filter(pk=operation.pk, state="done").exists(), timeout=SECONDS)
    operation.refresh_from_db()
    assert (operation.done_count, operation.refused_count, operation.failed_count) == (COUNT, 0, 0)
    new = Run.objects.filter(retry_of__isnull=False)
    assert new.count() == operation.items.filter(new_run__in=new.values("pk")).count() == COUNT
    assert Hold.objects.filter(run_id__in=new.values("pk")).count() == COUNT
    assert not DeadLetter.objects.exclude(state="requeued").filter(run__retry_of=None).exists()
    eventually(lambda: not new.exclude(state__in=["succeeded", "interrupted", "failed"]).exists(), timeout=SECONDS)
    eventually(lambda: invariants.check(account), timeout=20)


def test_an_abort_in_the_middle_ends_within_an_item(stack):
    account = builders.make_account(limit=10**9, max_in_flight=COUNT * 2)
    letters(account)
    stack.worker()
    operation = started(query={"state_is": "open"}, pace=1200)
    reached(operation, 10)

    done = operations.abort(operation.pk, actor="bob", reason="wrong ones").done_count

    after = builders.make_run("queued", account=account)  # the worker goes on with everything else
    eventually(lambda: Run.objects.filter(pk=after.pk, state="succeeded").exists(), timeout=SECONDS)
    operation.refresh_from_db()
    assert (operation.state, operation.done_count) == ("aborted", done)
    assert 10 <= done < COUNT
    assert Run.objects.filter(retry_of__isnull=False).count() == done
    assert DeadLetter.objects.filter(state="open").count() == COUNT - done
