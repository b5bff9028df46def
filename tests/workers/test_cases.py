"""Cases: what failed alike is one, its numbers are kept as letters come and go, and it comes back when it must."""

import datetime as dt

import pytest
from django.utils import timezone

from quotas.database import in_transaction
from quotas.models import AuditEntry
from runs.models import Run
from runs.outcomes import ErrorClass, Failed
from runs.services import requeue_run
from tests import builders, invariants, working
from tests.aged import old_run
from workers import case_filing, cases, dead_letters
from workers.errors import CaseUnchanged, NoSuchCase, NotOpen
from workers.forgetting import forget_account
from workers.models import Case, CaseAccount, CaseHour, DeadLetter
from workers.retention import Retention
from workers.stream import Entry

pytestmark = pytest.mark.django_db(transaction=True)


def failed(account, message="Order 7 is gone", **fields):
    """Return a run that failed, not buried yet."""
    error = {"class": "agent_bug", "type": "KeyError", "message": message, "traceback": "", "cause": "fatal"}
    return builders.make_run(
        "failed", account=account, **{"cost": 10, "error": error, "error_class": "agent_bug"} | fields
    )


def bury(*runs):
    in_transaction(lambda: dead_letters.bury(runs))
    return list(DeadLetter.objects.filter(run__in=runs).order_by("pk"))


def only_case():
    return Case.objects.get()


# -- numbers ---------------------------------------------------------------------------------------------------------
def test_what_failed_alike_is_one_case_with_its_numbers(account):
    other = builders.make_account("other")
    letters = [*bury(failed(account), failed(account, "Order 8 is gone")), *bury(failed(other, "Order 9 is gone"))]
    bury(failed(account, "It is full"))

    case, full = Case.objects.order_by("-count")
    assert {letter.case_id for letter in letters} == {case.pk}
    assert (case.count, case.open_count, case.account_count, case.cost) == (3, 3, 2, 30)
    assert (case.agent, case.error_class, case.error_type, case.reason) == (
        "probe.ret",
        "agent_bug",
        "KeyError",
        "fatal",
    )
    assert (case.pattern, full.pattern) == ("Order # is gone", "It is full")
    assert (case.first_seen_at, case.last_seen_at) == (letters[0].buried_at, letters[2].buried_at)
    assert sum(cases.hourly([case])[case.pk]) == 3
    shares = [(row.account_id, row.count, row.open_count, row.cost) for row in cases.accounts_of(case)]
    assert shares == [(account.pk, 2, 2, 20), (other.pk, 1, 1, 10)]
    assert cases.newest_letter(case) == letters[2]
    invariants.check_cases()


def test_a_run_that_its_worker_ends_for_good_is_filed_at_its_whole_cost(account, redis):
    (claimed,) = working.claim(working.submit(account))
    wrong = Failed(ErrorClass.AGENT_BUG, "KeyError", "Order 7 is gone")
    bury(*working.finish(working.finish_of(claimed, wrong, cost=70)).failed)

    assert (only_case().count, only_case().cost, only_case().pattern) == (1, 70, "Order # is gone")


def test_entries_without_a_run_have_a_case_too_and_one_entry_counts_once():
    for number in ("1-1", "1-2", "1-2"):
        entry = Entry("default", "stream", number, {b"a": b"b"}, deliveries=1)
        dead_letters.bury_entry(entry, DeadLetter.Reason.UNKNOWN_RUN, f"There is no run {number}.")

    assert (only_case().count, only_case().open_count, only_case().account_count) == (2, 2, 0)
    assert DeadLetter.objects.filter(case=only_case()).count() == 2
    invariants.check_cases()


def test_requeue_and_discard_lower_the_open_count_whoever_does_it(account):
    first, second, third, last = bury(*(failed(account) for _ in range(4)))

    dead_letters.requeue(dead_letter_id=first.pk, actor="ann", reason="r")
    dead_letters.discard(dead_letter_id=second.pk, actor="ann", reason="r")
    requeue_run(run_id=third.run_id, actor="bob", reason="by the run")

    third.refresh_from_db()
    assert (third.state, third.resolved_by, third.resolved_reason) == ("requeued", "bob", "by the run")
    assert (only_case().count, only_case().open_count) == (4, 1)
    assert CaseAccount.objects.get().open_count == 1
    for letter in (first, second, third):
        with pytest.raises(NotOpen):
            dead_letters.discard(dead_letter_id=letter.pk, actor="ann", reason="r")
    invariants.check_cases()
    dead_letters.discard(dead_letter_id=last.pk, actor="ann", reason="r")
    assert only_case().open_count == 0
    invariants.check_cases()


def test_a_requeue_that_is_undone_leaves_the_letter_open(account):
    (letter,) = bury(failed(account))

    def work():
        requeue_run(run_id=letter.run_id, actor="bob")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        in_transaction(work)

    letter.refresh_from_db()
    assert (letter.state, only_case().open_count, Run.objects.count()) == ("open", 1, 1)
    invariants.check_cases()


def test_a_count_that_is_wrong_stops_no_requeue(account):
    (letter,) = bury(failed(account))
    Case.objects.update(open_count=0)

    dead_letters.requeue(dead_letter_id=letter.pk, actor="ann", reason="r")

    assert only_case().open_count == 0


def test_letters_of_a_worker_before_cases_are_filed_in_bounded_batches(account):
    runs = [failed(account, f"Order {n} is gone") for n in range(5)]
    now = timezone.now()
    old = now - dt.timedelta(days=3)
    for run in runs:
        DeadLetter.objects.create(run=run, reason="fatal", error_class="agent_bug", buried_at=old)
    requeue_run(run_id=runs[0].pk, actor="bob")
    DeadLetter.objects.filter(run=runs[0]).update(state="open")  # a web process before cases closes no letter
    DeadLetter.objects.filter(run=runs[1]).update(state="discarded")
    bury(failed(account))

    filed = [case_filing.backfill(2) for _ in range(4)]

    assert filed == [2, 2, 1, 0]
    assert (only_case().count, only_case().open_count) == (6, 4)
    assert (only_case().first_seen_at, only_case().last_seen_at > now) == (old, True)
    assert CaseHour.objects.count() == 1  # three days ago is in no sparkline
    assert DeadLetter.objects.get(run=runs[0]).state == "requeued"
    invariants.check_cases()


def test_the_hours_of_a_sparkline_end_now(account):
    bury(failed(account))
    case, now = only_case(), timezone.now()
    case_hours = [cases.hourly([case], now + dt.timedelta(hours=hours))[case.pk] for hours in (0, 23, 24)]

    assert case_hours == [[0] * 23 + [1], [1] + [0] * 23, [0] * 24]


# -- deletion --------------------------------------------------------------------------------------------------------
def test_a_case_stays_when_retention_takes_its_letters_and_goes_when_it_is_old_itself(account, settings):
    run = old_run("failed", 100, account=account)
    (letter,) = bury(run)
    dead_letters.discard(dead_letter_id=letter.pk, actor="ann", reason="r")
    DeadLetter.objects.update(resolved_at=timezone.now() - dt.timedelta(days=8))  # too late to restore it
    CaseHour.objects.update(hour=timezone.now() - dt.timedelta(days=3))

    Retention().run_once()

    assert (DeadLetter.objects.count(), CaseHour.objects.count()) == (0, 0)
    assert (only_case().count, only_case().open_count, cases.newest_letter(only_case())) == (1, 0, None)

    Case.objects.update(last_seen_at=timezone.now() - dt.timedelta(days=91))
    settings.RETAIN_RUNS_DAYS = 0
    Retention().run_once()
    assert Case.objects.count() == 1
    settings.RETAIN_RUNS_DAYS = 90
    Retention().run_once()
    assert Case.objects.count() == 0


def test_an_old_case_with_letters_is_not_pruned(account):
    (letter,) = bury(failed(account))
    Case.objects.update(last_seen_at=timezone.now() - dt.timedelta(days=91), open_count=0)

    assert case_filing.prune(90) == 0

    letter.refresh_from_db()
    assert letter.case_id == only_case().pk


def test_a_forgotten_account_leaves_its_cases(account, redis):
    other = builders.make_account("other")
    bury(failed(account), failed(account, "Secret words of it"))
    bury(failed(other))
    cases.note(case_id=Case.objects.get(pattern="Secret words of it").pk, text="quoted", actor="ann")

    forget_account(redis, account, actor="ann", reason="asked", told=lambda gone: None)

    shared, own = Case.objects.order_by("-count")
    assert (shared.count, shared.open_count, shared.account_count, shared.pattern) == (2, 1, 1, "Order # is gone")
    assert (own.count, own.open_count, own.account_count, own.pattern, own.error_type) == (1, 0, 0, "", "")
    assert not AuditEntry.objects.filter(target_type="case").exclude(reason="").exists()
    invariants.check_cases()
    bury(failed(other, "Secret words of it"))
    own.refresh_from_db()
    assert (own.count, own.pattern) == (2, "Secret words of it")


# -- decisions -------------------------------------------------------------------------------------------------------
def history(case):
    return [(entry.actor, entry.action, entry.reason) for entry in reversed(cases.history_of(case))]


def test_every_decision_is_made_once_and_audited(account):
    builders.make_operator("ann")
    bury(failed(account))
    case_id = only_case().pk
    acts = [
        lambda: cases.assign(case_id=case_id, owner="ann", actor="bob", reason="hers", request_id="r1"),
        lambda: cases.ignore(case_id=case_id, hours=1, actor="bob"),
        lambda: cases.resolve(case_id=case_id, version="2.0", actor="bob"),
        lambda: cases.reopen(case_id=case_id, actor="bob"),
        lambda: cases.note(case_id=case_id, text="seen before", actor="bob"),
    ]

    states = []
    for act in acts:
        states.append(act().state)
        with pytest.raises(CaseUnchanged):
            act()

    assert states == ["assigned", "ignored", "resolved", "assigned", "assigned"]
    assert history(only_case()) == [
        ("bob", "case.assign", "hers"),
        ("bob", "case.ignore", ""),
        ("bob", "case.resolve", ""),
        ("bob", "case.reopen", ""),
        ("bob", "case.note", "seen before"),
    ]
    entry = AuditEntry.objects.get(action="case.assign")
    assert (entry.before["state"], entry.after["state"], entry.after["owner"]) == ("open", "assigned", "ann")
    assert entry.request_id == "r1"
    assert cases.assign(case_id=case_id, owner="", actor="bob").state == "open"


@pytest.mark.parametrize(
    "act",
    [
        lambda pk: cases.assign(case_id=pk, owner="nobody-here", actor="bob"),
        lambda pk: cases.assign(case_id=pk, owner="", actor="bob"),
        lambda pk: cases.ignore(case_id=pk, actor="bob"),
        lambda pk: cases.note(case_id=pk, text=" ", actor="bob"),
        lambda pk: cases.reopen(case_id=pk, actor="bob"),
    ],
)
def test_a_decision_without_sense_is_refused_and_not_audited(account, act):
    bury(failed(account))

    with pytest.raises(CaseUnchanged):
        act(only_case().pk)
    with pytest.raises((NoSuchCase, CaseUnchanged)):
        act(2**63)
    assert AuditEntry.objects.count() == 0


# -- coming back -----------------------------------------------------------------------------------------------------
def state_after(run):
    bury(run)
    return only_case().state


def test_a_resolved_case_opens_when_it_comes_back(account):
    bury(failed(account))
    cases.resolve(case_id=only_case().pk, actor="ann")

    assert state_after(failed(account)) == "open"
    assert (only_case().resolved_at, only_case().resolved_in_version) == (None, "")
    assert history(only_case())[-1][:2] == ("system", "case.comes_back")


@pytest.mark.parametrize(
    ("fixed", "version", "state"),
    [
        ("2.0", "1.9.9", "resolved"),  # still at work during the roll-out
        ("2.0", "2.0.0", "open"),
        ("2.0", "v2.1", "open"),
        ("2.0", "10.0", "open"),
        ("abc", "first", "resolved"),  # the one it failed in before
        ("abc", "abc", "open"),
        ("abc", "another", "open"),
        ("2.0", "", "open"),
    ],
)
def test_which_versions_open_a_case_that_is_resolved_in_one(account, settings, fixed, version, state):
    settings.AGENTOPS_RELEASE = "first"
    bury(failed(account))
    cases.resolve(case_id=only_case().pk, version=fixed, actor="ann")
    settings.AGENTOPS_RELEASE = version

    assert state_after(failed(account)) == state
    assert (only_case().count, only_case().last_version) == (2, version)
    assert DeadLetter.objects.order_by("pk").last().version == version


def test_an_assigned_case_that_comes_back_is_its_owners_again(account):
    builders.make_operator("ann")
    bury(failed(account))
    cases.assign(case_id=only_case().pk, owner="ann", actor="ann")
    cases.resolve(case_id=only_case().pk, actor="ann")

    assert state_after(failed(account)) == "assigned"


def test_an_ignored_case_opens_after_its_time(account):
    bury(failed(account))
    cases.ignore(case_id=only_case().pk, hours=1, actor="ann")

    assert state_after(failed(account)) == "ignored"
    Case.objects.update(ignored_until=timezone.now())
    assert state_after(failed(account)) == "open"
    assert only_case().ignored_until is None


def test_an_ignored_case_opens_when_it_came_more_often(account):
    bury(failed(account))
    cases.ignore(case_id=only_case().pk, times=2, actor="ann")

    states = [state_after(failed(account)) for _ in range(3)]

    assert states == ["ignored", "ignored", "open"]
    assert history(only_case())[-1] == ("system", "case.comes_back", "it came more than 3 times")


def test_the_sweeper_opens_cases_whose_time_is_over_and_whose_owner_is_gone(account):
    bury(failed(account), failed(account, "It is full"))
    late, owned = Case.objects.order_by("pk")
    ann = builders.make_operator("ann")
    cases.ignore(case_id=late.pk, hours=1, actor="ann")
    cases.assign(case_id=owned.pk, owner="ann", actor="ann")
    assert case_filing.wake() == 0

    Case.objects.filter(pk=late.pk).update(ignored_until=timezone.now())
    ann.delete()
    assert (case_filing.wake(), case_filing.wake()) == (2, 0)

    assert {case.state for case in Case.objects.all()} == {"open"}
    assert history(late)[-1] == ("system", "case.reopen", "the time until which it was ignored is over")
    assert history(owned)[-1] == ("system", "case.reopen", "its owner is gone")


def test_letters_found_later_open_nothing_that_was_decided_after_them(account):
    DeadLetter.objects.create(run=failed(account), reason="fatal", error_class="agent_bug", buried_at=timezone.now())
    bury(failed(account))
    cases.resolve(case_id=only_case().pk, actor="ann")

    case_filing.backfill()

    assert (only_case().state, only_case().count) == ("resolved", 2)


# -- looking ---------------------------------------------------------------------------------------------------------
def test_the_top_cases_are_those_with_most_open_letters(account):
    for count, message in ((1, "one"), (3, "three"), (2, "two"), (4, "four")):
        bury(*(failed(account, message) for _ in range(count)))
    builders.make_operator("ann")
    cases.assign(case_id=Case.objects.get(pattern="three").pk, owner="ann", actor="ann")
    cases.resolve(case_id=Case.objects.get(pattern="four").pk, actor="ann")

    assert [case.pattern for case in cases.top_cases(2)] == ["three", "two"]
    assert [case.pattern for case in cases.top_cases(9)] == ["three", "two", "one"]
