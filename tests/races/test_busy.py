"""A held lock makes others wait a moment, and is never a 500; locks are taken in one order (protocol 1.4)."""

import pytest
from django.db import OperationalError

from agentops.counting import count
from quotas.database import in_transaction, later
from quotas.errors import Busy
from quotas.models import Account
from runs.models import Run
from runs.services import cancel_run, hand_back, take_over
from runs.services.leaving import Lost
from tests import working
from tests.api import Api, problem
from tests.racing import held_open

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]


class Work:
    """Fails as often as it is told to, then returns `done`."""

    def __init__(self, fails, message="database is locked"):
        self.fails, self.message, self.calls = fails, message, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.fails:
            raise OperationalError(self.message)
        return "done"


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_busy_work_is_repeated_until_it_is_through(fails):
    work = Work(fails)

    assert in_transaction(work) == "done"
    assert work.calls == fails + 1


def test_after_three_tries_it_is_said_to_be_busy():
    work = Work(9)

    with pytest.raises(Busy):
        in_transaction(work)
    assert work.calls == 3


def test_what_is_not_busy_is_not_repeated():
    work = Work(9, "no such table")

    with pytest.raises(OperationalError, match="no such table"):
        in_transaction(work)
    assert work.calls == 1


@pytest.mark.row_locks
def test_a_locked_account_is_a_503_that_says_when_to_come_again(account, api_key):
    api, before = Api(api_key), working.rows()
    api.get("/api/v1/runs")  # writes the key's last use

    with held_open(lambda: Account.objects.select_for_update().get(pk=account.pk)):
        response = api.submit()

    problem(response, 503, "busy")
    assert int(response["Retry-After"]) >= 1
    assert working.new_rows(before) == {}


# -- the order of locks ----------------------------------------------------------------------------------------------
def lost(claimed):
    Run.objects.filter(pk=claimed.run.pk).update(lease_expires_at=later(-5))
    row = Run.objects.get(pk=claimed.run.pk)
    return Lost(row.pk, row.fence, row.lease_expires_at)


ACTS = {
    "cancel": lambda claimed: lambda: cancel_run(run_id=claimed.run.pk, actor="tester"),
    "finalise": lambda claimed: lambda: working.finish(working.finish_of(claimed)),
    "takeover": lambda claimed: (lambda seen: lambda: in_transaction(lambda: take_over(seen, actor="s")))(
        lost(claimed)
    ),
    "hand back": lambda claimed: lambda: in_transaction(lambda: hand_back(claimed, actor="w1", reason="late")),
}


@pytest.mark.row_locks
@pytest.mark.parametrize("name", ACTS)
def test_the_account_is_locked_before_the_run(account, name):
    act = ACTS[name](*working.claim(working.submit(account)))

    with count() as counted:
        act()

    locks = [sql for sql in counted.sql if "FOR UPDATE" in sql]
    tables = ["account" if "quotas_account" in sql.partition("FROM")[2] else "run" for sql in locks]
    assert tables[:2] == ["account", "run"], locks
    writes = [sql for sql in counted.sql if sql.startswith(("UPDATE", "INSERT"))]
    if writes:
        assert counted.sql.index(locks[1]) < counted.sql.index(writes[0])
