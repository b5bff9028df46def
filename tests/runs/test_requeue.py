"""Requeue: a new run of an ended one, at most once, linked both ways (protocol 2.2)."""

import pytest

from quotas.drift import figures_of
from quotas.errors import QuotaExceeded, TooManyInFlight
from quotas.models import Account, AuditEntry, Hold, LedgerEntry
from runs import errors, selectors
from runs.models import Run
from runs.services import Changes, requeue_run
from runs.services.sessions import slot_of
from runs.states import OPEN, TERMINAL
from tests import builders, working
from tests.working import registered

pytestmark = pytest.mark.django_db
BUILDABLE_OPEN = sorted(OPEN & {"queued", "running"})


def requeue(run, **fields):
    return requeue_run(**({"run_id": run.pk, "actor": "tester"} | fields))


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_an_ended_run_gets_a_new_run_of_the_same_input(account, state):
    old = builders.make_run(
        state, account=account, input={"value": "ä"}, metadata={"m": 1}, tags=["t"], priority="high", session="s",
        time_limit_seconds=9.0, queue_wait_seconds=8.0,
    )  # fmt: skip
    before = working.rows()

    new = requeue(old, reason="again", request_id="r1").run

    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1, "AuditEntry": 1}
    old.refresh_from_db()
    new.refresh_from_db()
    assert (old.retried_by, new.retry_of, old.state) == (new.pk, old, state)
    for name in ("agent", "input_json", "metadata", "tags", "priority", "session", "queue"):
        assert getattr(new, name) == getattr(old, name)
    assert (new.time_limit_seconds, new.queue_wait_seconds) == (9.0, 8.0)
    assert (new.state, new.fence, new.attempt, new.cost, new.submitted_by) == ("queued", 1, 1, 0, "tester")
    entry = AuditEntry.objects.get(action="run.requeue")
    assert (entry.target_id, entry.before, entry.reason) == (str(old.pk), {"cost": old.cost}, "again")
    assert entry.after == {"retried_by": str(new.pk), "paid_by": account.name, "reserved": 1000}
    assert Hold.objects.get(run_id=new.pk).state == "active"


def test_of_a_waived_requeue_nobody_pays_and_its_own_requeue_is_paid(account):
    new = requeue(builders.make_run("failed", account=account), changes=Changes(waived=True)).run

    working.finish(working.finish_of(working.claim(new)[0], cost=70))

    new.refresh_from_db()
    account.refresh_from_db()
    assert (new.cost, new.waived_by, account.spent, account.held) == (70, "tester", 0, 0)
    assert list(LedgerEntry.objects.filter(run_id=new.pk).values_list("kind", "amount", "actor")) == [
        ("settle", 70, ""),
        ("write_off", -70, "tester"),
    ]
    told = AuditEntry.objects.get(action="run.requeue").after
    assert (told["paid_by"], told["waived"]) == ("nobody", True)
    assert [found.drift for found in figures_of(Account.objects.all())] == [{}]
    assert requeue(new).run.waived_by == ""


@pytest.mark.parametrize("state", BUILDABLE_OPEN)
def test_a_run_that_has_not_ended_is_not_requeued(account, state):
    run = builders.make_run(state, account=account)
    before = working.rows()

    with pytest.raises(errors.NotEnded) as refused:
        requeue(run)

    assert refused.value.facts["state"] == state
    assert working.new_rows(before) == {}


def test_a_run_is_requeued_once(account):
    old = builders.make_run("failed", account=account)
    new = requeue(old).run
    before = working.rows()

    with pytest.raises(errors.AlreadyRequeued) as refused:
        requeue(old)

    assert refused.value.facts == {"run": str(old.pk), "retried_by": str(new.pk)}
    assert working.new_rows(before) == {}


def test_a_requeued_run_may_be_requeued_in_its_turn(account):
    first = builders.make_run("failed", account=account)
    second = requeue(first).run
    working.finish(working.finish_of(*working.claim(second)))

    third = requeue(second).run

    assert Run.objects.get(pk=third.pk).retry_of_id == second.pk


def test_the_same_key_gives_the_same_new_run(account):
    old = builders.make_run("failed", account=account)
    new = requeue(old, idempotency_key="k")
    before = working.rows()

    again = requeue(old, idempotency_key="k")

    assert (new.replayed, again.replayed, again.run.pk) == (False, True, new.run.pk)
    assert working.new_rows(before) == {}
    with pytest.raises(errors.AlreadyRequeued):
        requeue(old, idempotency_key="other")


def test_one_key_for_two_runs_is_refused_and_links_nothing(account):
    first, second = (builders.make_run("failed", account=account, input={"value": 1}) for _ in range(2))
    new = requeue(first, idempotency_key="k").run
    before = working.rows()

    with pytest.raises(errors.IdempotencyMismatch) as refused:
        requeue(second, idempotency_key="k")

    assert refused.value.facts == {"run": str(new.pk)}
    assert working.new_rows(before) == {}
    assert Run.objects.get(pk=second.pk).retried_by is None


def test_a_key_of_a_submit_is_not_a_key_of_a_requeue(account):
    old = builders.make_run("failed", account=account)
    submitted = working.submit(account, idempotency_key="k")

    assert requeue(old, idempotency_key="k").run.pk != submitted.pk


def test_a_requeue_is_exempt_from_the_dedupe_window(account):
    with registered("test.once", dedupe_seconds=60.0):
        old = working.submit(account, agent="test.once")
        working.finish(working.finish_of(*working.claim(old)))

        new = requeue(old).run

    assert new.fingerprint is None


def test_a_requeue_needs_money_and_a_place(account):
    old = builders.make_run("failed", account=account, session="s")
    before = working.rows()

    Account.objects.filter(pk=account.pk).update(limit=0)
    with pytest.raises(QuotaExceeded):
        requeue(old)
    Account.objects.filter(pk=account.pk).update(limit=10_000, max_in_flight=0)
    with pytest.raises(TooManyInFlight):
        requeue(old)
    assert working.new_rows(before) == {}

    Account.objects.filter(pk=account.pk).update(max_in_flight=9)
    assert requeue(old).run.session_slot == slot_of("s")


def test_a_requeue_into_a_busy_session_waits_for_its_turn(account):
    old = builders.make_run("failed", account=account, session="s")
    busy = working.submit(account, session="s")

    new = requeue(old).run

    assert (new.state, new.session_slot, new.blocked_by_session) == ("scheduled", None, slot_of("s"))
    working.finish(working.finish_of(*working.claim(busy)))
    new.refresh_from_db()
    assert (new.state, new.session_slot, new.blocked_by_session) == ("queued", slot_of("s"), None)


def test_a_requeue_of_another_accounts_run_finds_none(account, other_account):
    old = builders.make_run("failed", account=account)

    with pytest.raises(errors.NoSuchRun):
        requeue(old, account=other_account)


def test_a_requeue_of_an_agent_that_is_gone_is_refused(account):
    old = builders.make_run("failed", account=account, agent="no.longer")

    with pytest.raises(errors.UnknownAgent):
        requeue(old)


def test_a_requeue_of_an_input_that_fits_no_more_is_refused(account):
    old = builders.make_run("failed", account=account, input={"bytes": "many"})

    with pytest.raises(errors.InvalidInputRefused):
        requeue(old)


@pytest.mark.django_db(transaction=True)
def test_viewers_of_the_old_run_are_told_of_the_new_one(account, redis):
    from runs import keys, ready
    from tests.probes import eventually

    old = builders.make_run("failed", account=account)
    with redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.run_wake(old.pk))
        eventually(lambda: redis.pubsub_numsub(keys.run_wake(old.pk))[0][1] == 1)
        new = requeue(old).run
        got = []
        eventually(lambda: got.append(heard.get_message()) or any(got))

    assert [message["data"] for message in got if message] == [f'{{"retried_by": "{new.pk}"}}'.encode()]
    assert ready.named_entry(redis, new) is not None


def test_a_requeue_waits_for_a_queue_that_is_full(account, settings):
    old = builders.make_run("failed", account=account)
    settings.BACKLOG_LIMIT = 1
    builders.make_run("queued", account=account)
    selectors._backlog.clear()
    before = working.rows()

    with pytest.raises(errors.BacklogFull):
        requeue(old)

    assert working.new_rows(before) == {}
