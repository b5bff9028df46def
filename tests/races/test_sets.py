"""Set operations in which one run cannot be decided on: the others are, one by one (protocol 6.5)."""

import asyncio

import pytest

from quotas.models import Account, Hold
from runs import broker, keys
from runs.models import Attempt, Run
from runs.outcomes import Succeeded
from tests import invariants, working
from tests.racing import held_open
from workers.delivery import Deliveries
from workers.finaliser import Finaliser
from workers.models import DeadLetter
from workers.units import Units

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]
NOT_STORABLE = Succeeded('"\ud83d"')  # half a surrogate pair: no driver encodes it


def handled(**fields):
    """Take and handle what is queued, as one batch; returns the ids of the runs that start."""
    config = working.config(**fields)
    entries = working.consumer(config).take(range(8))
    return [one.claimed.run.pk for one in Deliveries(config, broker.client()).handle(entries).started]


def pks(runs):
    return sorted(run.pk for run in runs)


def states(runs):
    return [Run.objects.get(pk=run.pk).state for run in runs]


def locked(*runs):
    """Hold the rows of runs on another connection until the block ends."""
    ids = [run.pk for run in runs]
    return held_open(lambda: list(Run.objects.select_for_update().filter(pk__in=ids).order_by("pk")))


# -- claims ----------------------------------------------------------------------------------------------------------
def test_a_run_whose_data_breaks_the_claim_holds_back_no_other(account):
    first, broken, last = (working.submit(account) for _ in range(3))
    # A row that is there already: its unique key breaks the set's INSERT.
    Attempt.objects.create(run=broken, fence=2, number=1, worker="w0", started_at=broken.queued_at)

    assert sorted(handled()) == pks([first, last])

    assert states([first, broken, last]) == ["running", "queued", "running"]
    assert working.log_of(first) == working.log_of(last) == ["1-1", "2-1"]
    invariants.check_money([account])


@pytest.mark.row_locks
def test_runs_that_somebody_has_locked_hold_back_no_other(account):
    """Each locked row costs its claim three waits of a second, which may not use up the time of the others."""
    runs = [working.submit(account) for _ in range(4)]

    with locked(runs[0], runs[1]):
        started = handled(lease=9.0)

    assert sorted(started) == pks(runs[2:])
    assert states(runs) == ["queued", "queued", "running", "running"]
    invariants.check_money([account])


@pytest.mark.row_locks
def test_a_lapsed_hold_whose_account_is_locked_costs_the_others_nothing(account, other_account):
    lapsed = [working.submit(other_account) for _ in range(2)]
    Hold.objects.filter(run_id__in=pks(lapsed)).update(state=Hold.State.EXPIRED)
    Account.objects.filter(pk=other_account.pk).update(held=0)
    healthy = [working.submit(account) for _ in range(2)]

    with held_open(lambda: Account.objects.select_for_update().get(pk=other_account.pk)):
        started = handled(lease=9.0)

    assert sorted(started) == pks(healthy)
    assert states([*lapsed, *healthy]) == ["queued", "queued", "running", "running"]


# -- endings ---------------------------------------------------------------------------------------------------------
def ended(*endings):
    """End attempts that come to the finaliser at the same moment, and wait for all."""

    async def work():
        finaliser = Finaliser(broker.client(), Units(2), asyncio.Queue())
        waiting = [asyncio.create_task(finaliser.finish(entry, finish)) for entry, finish in endings]
        await asyncio.sleep(0)  # all are in its queue before it begins
        committing = asyncio.create_task(finaliser.run())
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)
        committing.cancel()

    asyncio.run(work())


def owned(*runs):
    """Claim runs; returns (entry, claim) of each, in the order given."""
    return list(zip(map(working.entry_of, runs), working.claim(*runs), strict=True))


def test_an_ending_that_cannot_be_stored_fails_alone(account, redis):
    runs = [working.submit(account) for _ in range(3)]
    outcomes = [Succeeded('"first"'), NOT_STORABLE, Succeeded('"last"')]

    ended(*((e, working.finish_of(c, o, cost=7)) for (e, c), o in zip(owned(*runs), outcomes, strict=True)))

    first, odd, last = (Run.objects.get(pk=run.pk) for run in runs)
    assert [(run.state, run.result) for run in (first, last)] == [("succeeded", "first"), ("succeeded", "last")]
    assert (odd.state, odd.error_class, odd.cost) == ("failed", "result_not_storable", 7)
    odd.error["message"].encode("utf-8")
    assert DeadLetter.objects.get().run_id == odd.pk
    assert redis.xlen(keys.ready("default", "normal")) == 0
    invariants.check_money([account])


def test_endings_of_several_accounts_are_settled_each_on_its_own(account, other_account):
    runs = [working.submit(owner) for owner in (account, other_account, account, other_account)]

    ended(*((e, working.finish_of(c, cost=n)) for n, (e, c) in enumerate(owned(*runs), start=1)))

    assert states(runs) == ["succeeded"] * 4
    for owner, spent in ((account, 1 + 3), (other_account, 2 + 4)):
        owner.refresh_from_db()
        assert (owner.spent, owner.held, owner.in_flight) == (spent, 0, 0)
    invariants.check_money([account, other_account])


@pytest.mark.row_locks
def test_an_account_that_is_locked_holds_back_no_other_accounts_endings(account, other_account):
    stuck, free = working.submit(account), working.submit(other_account)
    (_, stuck_claim), (entry, claim) = owned(stuck, free)
    stuck_entry = working.entry_of(stuck)

    with held_open(lambda: Account.objects.select_for_update().get(pk=account.pk)) as let_go:

        async def work():
            finaliser = Finaliser(broker.client(), Units(2), asyncio.Queue())
            held_up = asyncio.create_task(finaliser.finish(stuck_entry, working.finish_of(stuck_claim)))
            through = asyncio.create_task(finaliser.finish(entry, working.finish_of(claim)))
            await asyncio.sleep(0)
            committing = asyncio.create_task(finaliser.run())
            async with asyncio.timeout(20):
                await through
                assert not held_up.done()
                await asyncio.to_thread(let_go)
                await held_up
            committing.cancel()

        asyncio.run(work())

    assert states([stuck, free]) == ["succeeded", "succeeded"]
