"""A claim takes no account lock, so that a long submit or settlement of its account does not hold it up (1.4)."""

import pytest
from django.db import connection

from quotas import services as money
from tests import working
from tests.racing import held_open

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race, pytest.mark.row_locks]


def test_a_claim_does_not_wait_for_its_account(account, redis):
    run = working.submit(account)
    impatient = {"mysql": "SET SESSION innodb_lock_wait_timeout = 1", "postgresql": "SET lock_timeout = '1s'"}
    with connection.cursor() as cursor:
        cursor.execute(impatient[connection.vendor])

    with held_open(lambda: money.lock_account(account.pk)):
        won = working.try_claim(run).won

    assert [claimed.run.pk for claimed in won] == [run.pk]
    connection.close()  # with its impatience
