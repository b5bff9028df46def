"""Account rows are locked before run rows, whoever moves a run (protocol 1.4)."""

import datetime as dt

import pytest
from django.db import connection
from django.utils import timezone

from agentops.counting import count
from quotas.database import in_transaction
from quotas.models import Hold
from runs.models import Run
from runs.outcomes import ErrorClass, Failed
from runs.services import cancel_run, claims, end_overdue, hand_back, requeue_run, schedule, take_over, take_over_dead
from runs.services.budget import extend_budget
from runs.services.leaving import Lost
from runs.services.sessions import slot_of
from tests import builders, working

pytestmark = pytest.mark.django_db
POISON = Failed(ErrorClass.POISON, "Poison", "poison", cause="poison")
LONG_AGO = dt.timedelta(hours=1)


def cancelled(account):
    run = working.submit(account)
    return lambda: cancel_run(run_id=run.pk, actor="tester")


def requeued(account):
    run = builders.make_run("failed", account=account)
    return lambda: requeue_run(run_id=run.pk, actor="tester")


def refused(account):
    run = working.submit(account)
    return lambda: claims.refuse(run.pk, run.fence, POISON, actor="tester")


def rearmed(account):
    run = working.submit(account)
    Hold.objects.filter(run_id=run.pk).update(expires_at=timezone.now() - LONG_AGO)
    working.submit(account)  # moves the lapsed hold to expired
    return lambda: claims.start_attempt_rearmed(run.pk, run.fence, working.owner())


def finished(account):
    (claimed,) = working.claim(working.submit(account))
    return lambda: working.finish(working.finish_of(claimed))


def handed_back(account):
    (claimed,) = working.claim(working.submit(account))
    return lambda: hand_back(claimed, actor="w1", reason="late")


def taken_over(account):
    (claimed,) = working.claim(working.submit(account))
    Run.objects.filter(pk=claimed.run.pk).update(lease_expires_at=timezone.now() - LONG_AGO)
    row = Run.objects.get(pk=claimed.run.pk)
    return lambda: take_over(Lost(row.pk, row.fence, row.lease_expires_at), actor="sweeper")


def taken_over_from_the_dead(account):
    (claimed,) = working.claim(working.submit(account), worker="w1")
    return lambda: take_over_dead(claimed.run.pk, worker="w1", actor="supervisor")


def ended_when_overdue(account):
    (claimed,) = working.claim(working.submit(account))
    Run.objects.filter(pk=claimed.run.pk).update(
        stop_requested="time_limit", stop_requested_at=timezone.now() - LONG_AGO
    )
    return lambda: end_overdue(claimed.run.pk, claimed.fence, grace_seconds=1.0, actor="sweeper")


def started_from_its_line(account):
    holder = working.submit(account, session="s")
    working.submit(account, session="s", on_busy="enqueue")
    Run.objects.filter(pk=holder.pk).update(session_slot=None)
    return lambda: schedule.start_blocked(account.pk, slot_of("s"), actor="sweeper")


def extended(account):
    (claimed,) = working.claim(working.submit(account))
    run, spent = claimed.run, 5000
    return lambda: extend_budget(
        run_id=run.pk, account_id=account.pk, fence=claimed.fence, claim_token=claimed.token, spent=spent
    )


ACTS = (
    cancelled,
    requeued,
    refused,
    rearmed,
    finished,
    handed_back,
    taken_over,
    taken_over_from_the_dead,
    ended_when_overdue,
    started_from_its_line,
    extended,
)


def locked_tables(statements):
    """Return the tables of the reads that lock, in order. SQLite has no such clause: there by the time they read."""
    mark = "db_now" if connection.vendor == "sqlite" else "FOR UPDATE"
    tables = [sql.partition(" FROM ")[2].split()[0].strip('"`') for sql in statements if mark in sql]
    return [table for table in tables if table in {"quotas_account", "runs_run"}]


@pytest.mark.parametrize("prepared", ACTS, ids=lambda act: act.__name__)
def test_the_account_is_locked_first_and_nothing_is_written_before_the_run_is(account, prepared):
    act = prepared(account)

    with count() as counted:
        assert in_transaction(act)

    assert locked_tables(counted.sql)[:2] == ["quotas_account", "runs_run"], counted.sql
    writes = [number for number, sql in enumerate(counted.sql) if sql.startswith(("UPDATE", "INSERT", "DELETE"))]
    locks = [number for number, sql in enumerate(counted.sql) if locked_tables([sql])]
    assert locks[1] < writes[0]
