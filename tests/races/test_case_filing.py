"""Several who file into the same cases at once: no count is lost and nobody meets a deadlock, on every database.

Each transaction is tried once (`atomic`, not `in_transaction`): one that was undone by a deadlock fails the test.
"""

import pytest
from django.db import connection, transaction
from django.utils import timezone

from quotas import services as money
from runs.models import Run
from runs.services import requeue_run
from tests import builders, invariants
from tests.racing import held_open, in_parallel
from workers import case_filing, cases, dead_letters
from workers.models import Case, CaseAccount, CaseHour, DeadLetter
from workers.stream import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]
ROUNDS = 5
WORKERS = 4
CAUSES = ("It is full", "It is gone", "It is late")


def failed(account, message):
    error = {"class": "agent_bug", "type": "KeyError", "message": message, "traceback": "", "cause": "fatal"}
    return builders.make_run("failed", account=account, error=error, error_class="agent_bug", cost=1)


def burying(account, messages):
    """Return a call that buries runs which failed so, in one transaction, as a finaliser does: account first."""
    runs = [failed(account, message) for message in messages]

    def call():
        with transaction.atomic():
            money.lock_account(account.pk)
            dead_letters.bury(runs)
        return len(runs)

    return call


def check(letters):
    assert Case.objects.count() == len(CAUSES)
    assert sorted(Case.objects.values_list("pattern", flat=True)) == sorted(CAUSES)
    assert sum(Case.objects.values_list("count", flat=True)) == DeadLetter.objects.exclude(case=None).count() == letters
    assert sum(CaseHour.objects.values_list("count", flat=True)) == letters
    assert sum(CaseAccount.objects.values_list("count", flat=True)) == letters
    for case in Case.objects.all():
        assert (case.count, case.account_count) == (case.letters.count(), case.accounts.count())
    invariants.check_cases()


def test_workers_that_bury_into_the_same_cases_lose_no_letter():
    """The cases do not exist in the first round; each worker brings them in an order of its own."""
    accounts = [builders.make_account() for _ in range(WORKERS)]
    buried = 0
    for number in range(ROUNDS):
        calls = []
        for place, account in enumerate(accounts):
            turn = (place + number) % len(CAUSES)
            order = [*CAUSES[turn:], *CAUSES[:turn]]
            calls.append(burying(account, [*(order if place % 2 else reversed(order)), CAUSES[turn]]))
        results = in_parallel(*calls)
        assert results == [len(CAUSES) + 1] * WORKERS, results
        buried += sum(results)

    check(buried)
    assert sum(Case.objects.values_list("cost", flat=True)) == buried


def round_of(number, accounts):
    """Let all who write cases do so at once; returns what each returned or raised."""
    for account in accounts[:2]:
        burying(account, CAUSES)()
    there = list(DeadLetter.objects.filter(state="open").order_by("-pk")[: 2 * len(CAUSES)])
    columns = {"reason": "fatal", "error_class": "agent_bug", "buried_at": timezone.now()}
    runs = [failed(account, message) for account in accounts[:2] for message in CAUSES]
    unfiled = [DeadLetter.objects.create(run=run, **columns) for run in runs]
    return in_parallel(
        burying(accounts[0], CAUSES),
        burying(accounts[2], CAUSES[::-1]),
        case_filing.backfill,
        lambda: [requeue_run(run_id=letter.run_id, actor="ann").run.pk for letter in (there[0], unfiled[0])],
        lambda: [dead_letters.discard(dead_letter_id=one.pk, actor="ann", reason="r").pk for one in there[1:3]],
        lambda: dead_letters.requeue(dead_letter_id=unfiled[-1].pk, actor="ann", reason="r").pk,
        lambda: cases.note(case_id=there[0].case_id, text=f"round {number}", actor="ann").pk,
    )


def test_who_buries_files_requeues_and_discards_at_once_keeps_every_count():
    accounts = [builders.make_account() for _ in range(WORKERS)]
    for number in range(ROUNDS):
        results = round_of(number, accounts)

        assert [result for result in results if isinstance(result, Exception)] == []
        case_filing.backfill()
        check(DeadLetter.objects.count())


def test_an_entry_that_two_bury_at_once_counts_once():
    for number in range(ROUNDS):
        entry = Entry("default", "stream", f"1-{number}", {b"a": b"b"}, deliveries=1)
        results = in_parallel(
            *[lambda entry=entry: dead_letters.bury_entry(entry, DeadLetter.Reason.UNDECODABLE, "no run")] * 3
        )
        assert results == [None] * 3

    assert (Case.objects.get().count, DeadLetter.objects.count()) == (ROUNDS, ROUNDS)
    invariants.check_cases()


def test_two_who_decide_at_once_are_told_apart(account):
    builders.make_operator("ann")
    burying(account, CAUSES[:1])()
    case = Case.objects.get()

    results = in_parallel(*[lambda: cases.resolve(case_id=case.pk, actor="ann").state] * 3)

    assert sorted(getattr(result, "code", result) for result in results) == ["case_unchanged"] * 2 + ["resolved"]
    assert [entry.action for entry in cases.history_of(case)] == ["case.resolve"]


@pytest.mark.row_locks
def test_filing_what_is_left_does_not_wait_for_an_account(account):
    """Who has the account may want the case next: to wait for each other would be a deadlock."""
    DeadLetter.objects.create(run=failed(account, CAUSES[0]), reason="fatal", buried_at=timezone.now())
    impatient = {"mysql": "SET SESSION innodb_lock_wait_timeout = 1", "postgresql": "SET lock_timeout = '1s'"}
    with connection.cursor() as cursor:
        cursor.execute(impatient[connection.vendor])

    with held_open(lambda: (money.lock_account(account.pk), list(Run.objects.select_for_update().all()))):
        assert case_filing.backfill() == 1

    connection.close()  # with its impatience
