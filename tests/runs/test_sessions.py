"""Sessions: one run holds the slot; what a submit finds, and where it stands then (protocol 4.3, P6)."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.errors import QuotaExceeded, TooManyInFlight
from quotas.models import Account, Hold, LedgerEntry
from runs import errors, keys, ready
from runs.models import Run
from runs.outcomes import Succeeded
from runs.services import cancel_run
from tests import lines, working
from tests.lines import HOLDS, SLOT, WAITS, finalise, line, place, places
from tests.probes import eventually
from tests.working import submit


@pytest.fixture(autouse=True)
def one_holder(db):
    """P6 and the money, after every test."""
    yield
    lines.check(Account.objects.all())


def cancel(run):
    cancel_run(run_id=run.pk, actor="tester")


# -- submit ----------------------------------------------------------------------------------------------------------
@pytest.mark.django_db
def test_a_run_that_is_enqueued_stands_in_line_and_holds_its_money(account):
    first = submit(account, session="s")
    before = working.rows()

    second = submit(account, session="s", on_busy="enqueue")

    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1}
    assert places(first, second) == [HOLDS, WAITS]
    assert (second.session_number, second.blocked_by_session, second.not_before) == (2, SLOT, None)
    row = second.transitions.get()
    assert (row.kind, row.fence, row.data["blocked_by_session"]) == ("run.scheduled", 1, "s")
    assert abs((second.waits_until - second.submitted_at).total_seconds() - second.queue_wait_seconds) < 1
    assert Hold.objects.get(run_id=second.pk).state == "active"


@pytest.mark.django_db
@pytest.mark.parametrize("on_busy", ["reject", "enqueue", "replace"])
def test_a_free_session_is_taken_at_once_whatever_was_asked(account, on_busy):
    run = submit(account, session="s", on_busy=on_busy)

    assert place(run) == HOLDS


@pytest.mark.django_db
def test_a_run_without_a_session_stands_in_no_line(account):
    runs = [submit(account, on_busy=on_busy) for on_busy in ("enqueue", "replace", "reject")]

    assert places(*runs) == [("queued", False, False)] * 3


@pytest.mark.django_db
def test_a_reject_names_the_holder_also_behind_a_line(account):
    first, second = line(account, 2)
    before = working.rows()

    with pytest.raises(errors.SessionBusy) as refused:
        submit(account, session="s")

    assert refused.value.facts == {"session": "s", "run": str(first.pk)}
    assert working.new_rows(before) == {}
    assert places(first, second) == [HOLDS, WAITS]


@pytest.mark.django_db
def test_sessions_of_two_accounts_and_two_names_have_nothing_to_do_with_each_other(account, other_account):
    runs = [submit(account, session="s"), submit(other_account, session="s"), submit(account, session="S")]

    assert places(*runs) == [HOLDS] * 3


@pytest.mark.django_db
@pytest.mark.parametrize(("field", "error"), [("limit", QuotaExceeded), ("max_in_flight", TooManyInFlight)])
@pytest.mark.parametrize("on_busy", ["enqueue", "replace"])
def test_a_run_in_line_needs_money_and_a_place_and_its_refusal_changes_nobody(account, field, error, on_busy):
    first, second = line(account, 2)
    working.claim(first)
    Account.objects.filter(pk=account.pk).update(**{field: 0})
    before = working.rows()

    with pytest.raises(error):
        submit(account, session="s", on_busy=on_busy)

    assert working.new_rows(before) == {}
    assert places(first, second) == [("running", True, False), WAITS]
    assert first.cancel_requested_at is None


# -- replace ---------------------------------------------------------------------------------------------------------
@pytest.mark.django_db
def test_a_replace_cancels_the_holder_and_the_line_and_begins(account):
    old = line(account, 3)

    new = submit(account, session="s", on_busy="replace")

    assert places(*old) == [("cancelled", False, False)] * 3
    assert place(new) == HOLDS
    assert new.session_number == 4
    assert {hold.state for hold in Hold.objects.exclude(run_id=new.pk)} == {"released"}
    assert not LedgerEntry.objects.exists()
    assert str(new.pk) in old[0].transitions.get(fence=2).data["reason"]


@pytest.mark.django_db
def test_a_replace_marks_a_running_holder_and_waits_for_its_end(account):
    holder, waiting = line(account, 2)
    (claimed,) = working.claim(holder)

    new = submit(account, session="s", on_busy="replace")

    assert places(holder, waiting, new) == [("running", True, False), ("cancelled", False, False), WAITS]
    assert holder.cancel_requested_at is not None

    done = working.finish(working.finish_of(claimed, Succeeded('"late"'), cost=3, session="s"))

    assert place(holder)[0] == "cancelled"
    assert place(new) == HOLDS
    assert [one.run.pk for one in done.started] == [new.pk]


@pytest.mark.django_db
def test_the_last_of_several_replaces_is_the_one_that_begins(account):
    (holder,) = line(account, 1)
    (claimed,) = working.claim(holder)
    replaced = [submit(account, session="s", on_busy="replace") for _ in range(3)]

    working.finish(working.finish_of(claimed, session="s"))

    assert [place(run)[0] for run in replaced] == ["cancelled", "cancelled", "queued"]


@pytest.mark.django_db(transaction=True)
def test_a_replace_is_announced_to_the_runs_and_to_the_worker_of_the_holder(account, redis):
    first, second = line(account, 2)
    working.claim(first)
    with redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.control())
        eventually(lambda: redis.pubsub_numsub(keys.control())[0][1] == 1)

        new = submit(account, session="s", on_busy="replace")

        got = []
        eventually(lambda: got.append(heard.get_message()) or any(got))
    assert [message["data"] for message in got if message] == [f'{{"cancel":"{first.pk}"}}'.encode()]
    assert working.log_of(second) == ["1-1", "2-1"]
    assert working.log_of(new) == ["1-1"]
    assert ready.named_entry(redis, new) is None


# -- delay and place -------------------------------------------------------------------------------------------------
@pytest.mark.django_db
def test_a_delayed_run_takes_the_free_slot_and_the_next_one_waits_for_it(account):
    later = submit(account, session="s", delay=3600)
    behind = submit(account, session="s", on_busy="enqueue")

    assert places(later, behind) == [("scheduled", True, False), WAITS]
    with pytest.raises(errors.SessionBusy):
        submit(account, session="s")
    cancel(later)
    assert place(behind) == HOLDS


@pytest.mark.django_db
def test_a_delayed_run_in_line_takes_the_slot_when_it_is_its_turn_and_begins_when_it_is_due(account):
    first = submit(account, session="s")
    later = submit(account, session="s", on_busy="enqueue", delay=3600)
    behind = submit(account, session="s", on_busy="enqueue")
    assert later.waits_until >= later.not_before  # it cannot have waited for a worker before it may begin

    started = finalise(first)

    assert started == []
    assert places(later, behind) == [("scheduled", True, False), WAITS]
    assert (later.fence, later.waits_until) == (1, None)
    assert working.promote() == []
    Run.objects.filter(pk=later.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))
    assert [one.run.pk for one in working.promote()] == [later.pk]
    assert places(later, behind) == [HOLDS, WAITS]


@pytest.mark.django_db
def test_a_run_in_line_whose_time_has_come_begins_at_its_turn_and_not_before(account):
    first = submit(account, session="s")
    later = submit(account, session="s", on_busy="enqueue", delay=3600)
    Run.objects.filter(pk=later.pk).update(not_before=timezone.now() - dt.timedelta(seconds=1))

    assert working.promote() == []
    assert place(later) == WAITS
    finalise(first)
    assert place(later) == HOLDS
    assert later.not_before is None


@pytest.mark.django_db
def test_the_wait_in_line_counts_towards_the_queue_wait(account):
    first, second = line(account, 2)
    until = second.waits_until

    finalise(first)

    second.refresh_from_db()
    assert second.waits_until == until
