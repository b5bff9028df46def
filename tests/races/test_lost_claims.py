"""A worker's COMMIT whose answer was lost: claimed once, ended once (protocol 1.8). On PostgreSQL."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
from django.db import OperationalError, connections

from quotas.models import Hold, LedgerEntry
from runs import broker, keys
from runs.outcomes import ErrorClass, Failed, Succeeded
from tests import invariants, working
from tests.desk import Desk, end, endings, in_stream
from tests.lying import Fate
from tests.probes import eventually
from workers import metrics
from workers.finaliser import Finaliser, end_set
from workers.models import DeadLetter
from workers.units import Units, _unit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def started(redis, *runs):
    """Assert that the runs run, started once and known to the log, each with the entry that is its owner's."""
    for run in runs:
        run.refresh_from_db()
        assert (run.state, run.fence, run.attempts.count()) == ("running", 2, 1)
        assert working.log_of(run) == ["1-1", "2-1"]
    assert (in_stream(redis), redis.hlen(keys.index("default"))) == (len(runs), len(runs))


# -- claim -----------------------------------------------------------------------------------------------------------
def test_a_claim_whose_answer_is_lost_starts_its_runs_once(proxy, account, redis):
    runs = [working.submit(account) for _ in range(3)]
    desk = Desk()
    proxy.lose_next_commit()

    with pytest.raises(OperationalError):
        desk.handle()
    handled = desk.handle()

    assert [one.claimed.run.pk for one in handled.started] == [run.pk for run in runs]
    assert {one.claimed.token for one in handled.started} == {desk.batch.token}
    assert (handled.free, proxy.lost) == ([], 1)
    started(redis, *runs)
    end(handled, account)


def test_a_claim_is_found_when_the_database_comes_back(proxy, account, redis):
    run = working.submit(account)
    desk = Desk()
    proxy.lose_next_commit(Fate.LOST_AND_DOWN)

    for _ in range(3):
        with pytest.raises(OperationalError):
            desk.handle()
    proxy.accept()
    handled = desk.handle()

    assert [one.claimed.run.pk for one in handled.started] == [run.pk]
    started(redis, run)
    end(handled, account)


def test_a_claim_that_never_reached_the_database_is_sent_again(proxy, account, redis):
    run = working.submit(account)
    desk = Desk()
    proxy.refuse()

    with pytest.raises(OperationalError):
        desk.handle()
    proxy.accept()
    handled = desk.handle()

    started(redis, run)
    end(handled, account)


def test_a_claim_that_was_found_after_half_a_lease_is_handed_back(proxy, account, redis):
    run = working.submit(account)
    desk = Desk()
    proxy.lose_next_commit()

    with pytest.raises(OperationalError):
        desk.handle()
    desk.batch.first_at -= desk.config.lease
    handled = desk.handle()

    run.refresh_from_db()
    assert (handled.started, run.state, run.fence) == ([], "queued", 3)
    assert in_stream(redis) == 1
    end(Desk().handle(), account)


def test_a_claim_whose_commit_is_late_is_still_its_own(proxy, account, redis):
    runs = [working.submit(account) for _ in range(2)]
    desk = Desk()
    proxy.lose_next_commit(Fate.LATE)

    with pytest.raises(OperationalError):
        desk.handle()
    with delivered_under_a_waiting_lock(proxy):
        handled = desk.handle()

    assert {one.claimed.run.pk for one in handled.started} == {run.pk for run in runs}
    started(redis, *runs)
    end(handled, account)


@contextmanager
def delivered_under_a_waiting_lock(proxy):
    """Deliver the late COMMIT once another transaction waits for its locks."""

    def watch():
        try:
            with connections["default"].cursor() as cursor:

                def waits():
                    cursor.execute(WAITING)
                    return cursor.fetchone()[0] > 0

                eventually(waits)
        finally:
            proxy.deliver()
            connections.close_all()

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    thread.join(30)


def test_a_claim_that_rearmed_a_lapsed_hold_is_found_by_its_own_token(proxy, account, redis):
    run = working.submit(account)
    Hold.objects.update(state=Hold.State.EXPIRED)
    type(account).objects.filter(pk=account.pk).update(held=0)
    desk = Desk()
    proxy.lose_next_commit(honest=1)  # the set's own, which finds the hold lapsed

    handled = desk.handle()

    assert ([one.claimed.run.pk for one in handled.started], proxy.lost) == ([run.pk], 1)
    started(redis, run)
    end(handled, account)


# -- finalise --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fate", [Fate.LOST, Fate.LOST_AND_DOWN])
def test_an_end_whose_answer_is_lost_counts_once_and_is_announced(proxy, account, fate):
    runs = [working.submit(account) for _ in range(2)]
    said = endings(Desk().handle(), Succeeded('"r"'))
    proxy.lose_next_commit(fate)

    with pytest.raises(OperationalError):
        _unit(end_set, (broker.client(), said))
    proxy.accept()
    finished = _unit(end_set, (broker.client(), said))

    assert {one.run.pk for one in finished.moved} == {run.pk for run in runs}
    assert (finished.lost, proxy.lost) == ([], 1)
    assert [line.amount for line in LedgerEntry.objects.all()] == [3, 3]
    for run in runs:
        assert working.log_of(run)[-1] == "3-1"
    invariants.check(account)


def test_a_failure_whose_answer_is_lost_is_one_dead_letter(proxy, account):
    working.submit(account)
    said = endings(Desk().handle(), Failed(ErrorClass.AGENT_BUG, "Boom", "boom"))
    proxy.lose_next_commit()

    with pytest.raises(OperationalError):
        _unit(end_set, (broker.client(), said))
    assert len(_unit(end_set, (broker.client(), said)).moved) == 1

    assert DeadLetter.objects.count() == 1
    invariants.check(account)


def test_the_finaliser_ends_each_run_once_whatever_is_lost(proxy, account):
    runs = [working.submit(account) for _ in range(3)]
    said = endings(Desk().handle())
    fenced = metrics.fenced_writes._value.get()
    proxy.lose_next_commit()

    closed = asyncio.run(finalised(said))

    assert (proxy.lost, metrics.fenced_writes._value.get()) == (1, fenced)
    assert sorted(closed) == sorted((run.pk, 3) for run in runs)
    invariants.check(account)


async def finalised(said):
    """Give endings to a running finaliser and return what it leaves for the closer."""
    closer, units = asyncio.Queue(), Units(2)
    finaliser = Finaliser(broker.client(), units, closer)
    work = asyncio.create_task(finaliser.run())
    await asyncio.wait_for(asyncio.gather(*[finaliser.finish(one.entry, one.finish) for one in said]), 30)
    work.cancel()
    await asyncio.gather(*[units.run(connections.close_all) for _ in range(8)])
    units.close()
    return [closer.get_nowait() for _ in range(closer.qsize())]
