"""What tests of bulk operations begin with: letters, an operation that is started, and one that is worked on."""

import uuid

from django.contrib.auth import get_user_model

from tests import builders
from workers.bulk import operations
from workers.bulk.options import Options
from workers.bulk.runner import BulkRunner


def make_purse():
    return builders.make_account("purse", limit=10**9, max_in_flight=1000)


def letters_of(account, count, **fields):
    return [builders.make_dead_letter(builders.make_run("failed", account=account, **fields)) for _ in range(count)]


def _with_leave(username):
    return get_user_model().objects.filter(username=username).first() or builders.make_operator(username)


def started(kind="requeue", source="letters", query=None, reason="repaired", **options):
    _with_leave("ann")
    return operations.start(
        kind=kind,
        source=source,
        query=query or {},
        options=Options(**options),
        actor="ann",
        reason=reason,
        form_id=uuid.uuid4(),
    )


def worked(operation, rounds=50):
    runner = BulkRunner("test")
    for _ in range(rounds):
        runner.run_once()
        operation.refresh_from_db()
        if operation.state not in operations.LIVE:
            break
    return operation
