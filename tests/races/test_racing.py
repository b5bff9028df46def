"""The racing helpers themselves: real second connections, on every database."""

import threading

import pytest
from django.db import connection

from quotas.models import Account
from tests import builders
from tests.racing import held_open, in_parallel

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]


def test_of_many_conditional_updates_one_hits_the_row():
    account = builders.make_account(limit=1)

    hits = in_parallel(*[lambda: Account.objects.filter(pk=account.pk, limit=1).update(limit=2)] * 8)

    assert sorted(hits) == [0] * 7 + [1]


def test_calls_run_on_connections_of_their_own():
    seen = in_parallel(*[lambda: (threading.get_ident(), id(connection.connection))] * 4)

    assert len(set(seen)) == 4


def test_an_error_is_a_result():
    results = in_parallel(lambda: 1, lambda: 1 // 0)

    assert results[0] == 1
    assert isinstance(results[1], ZeroDivisionError)


def test_a_writer_waits_for_the_transaction_that_is_held_open():
    account = builders.make_account(limit=1)

    with held_open(lambda: Account.objects.filter(pk=account.pk).update(limit=5)) as let_go:
        assert Account.objects.get(pk=account.pk).limit == 1  # not committed yet
        let_go()
        assert Account.objects.get(pk=account.pk).limit == 5


def test_a_failure_of_the_other_connection_is_raised_here():
    with pytest.raises(ZeroDivisionError), held_open(lambda: 1 // 0):
        pass
