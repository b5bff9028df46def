"""Money under any sequence of what may happen to it: submit, claim, settle, crash, expire, extend, requeue, grant.

Hypothesis makes the sequences and shortens one that breaks a property. Every step goes through the services on the
database of the tests, and is judged by the rows alone. Time is the database's; a period turns because the account's
time zone changes to one where it is another day, or at a moment that is passed in.
"""

import datetime as dt
from collections import Counter

import pytest
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from agentops import invariants
from quotas import services as money
from quotas.database import database_time
from quotas.errors import QuotaExceeded, Refusal, TooManyInFlight, WriteOffTooLarge
from quotas.models import Account, Hold, LedgerEntry
from quotas.services.accounts import store, turn_period
from runs.models import Attempt, Run
from runs.outcomes import ErrorClass, Failed, HandedBack, Succeeded
from runs.services import cancel_run, claims, leaks, requeue_run, take_over_dead
from runs.services.budget import Verdict, extend_budget
from runs.services.schedule import promote_due
from runs.states import TERMINAL
from tests import builders, working

pytestmark = pytest.mark.django_db
LIMIT = 10_000
EAST, WEST = "Pacific/Kiritimati", "Pacific/Pago_Pago"  # 25 hours apart: never the same day
AMOUNTS = st.integers(0, 12_000)
PICK = st.integers(0, 30)
ENDS = {
    "succeeded": Succeeded("1"),
    "failed": Failed(ErrorClass.AGENT_BUG, "E", "e"),
    "retried": Failed(ErrorClass.PROVIDER_TRANSIENT, "E", "e", retry_in=0.0),
    "handed back": HandedBack("drain"),
}


class Money(RuleBasedStateMachine):
    """Three accounts: overdraft forgiven each day, carried into the next day, and no period at all."""

    def __init__(self):
        super().__init__()
        self.scope = transaction.atomic()
        self.scope.__enter__()
        self.steps = 0  # what is rare in life is rare here, too
        self.owned = {}  # claims by run id
        self.adjusted = Counter()  # the sum of manual lines of an account

    @initialize()
    def accounts(self):
        made = {"limit": LIMIT, "max_in_flight": 4, "timezone": WEST}
        self.purses = [
            builders.make_account("forgiving", period="day", **made),
            builders.make_account("carrying", period="day", overdraft_rule="carry", **made),
            builders.make_account("endless", period="none", **made),
        ]
        self.before = self.figures()
        self.seen = set()  # the states that some run is in
        self.may_grow = False

    def teardown(self):
        try:
            if hasattr(self, "purses"):
                for purse in self.purses:
                    assert leaks.reconcile(purse.pk, fix=False, actor="tester").leaks == []
                assert invariants.money_drift(self.purses) == []
        finally:
            transaction.set_rollback(True)
            self.scope.__exit__(None, None, None)

    # -- what may happen ---------------------------------------------------------------------------------------------
    @rule(purse=PICK, estimate=AMOUNTS, attempts=st.integers(1, 3), begins=st.booleans())
    def submit(self, purse, estimate, attempts, begins):
        run = self.tried(
            lambda: working.submit(
                self.purse(purse), agent="probe.spend", input={"estimate": estimate}, max_attempts=attempts
            ),
            QuotaExceeded,
            TooManyInFlight,
        )
        if run is not None and begins:
            self.begin(run)

    @precondition(lambda self: self.has("queued"))
    @rule(pick=PICK)
    def claim(self, pick):
        self.begin(self.one(pick, "queued"))

    @precondition(lambda self: self.has("running"))
    @rule(pick=PICK, cost=AMOUNTS, how=st.sampled_from(sorted(ENDS)))
    def finish(self, pick, cost, how):
        finish = working.finish_of(self.owned.pop(self.one(pick, "running").pk), ENDS[how], cost=cost)
        assert working.finish(finish).lost == []
        assert working.finish(finish).moved == []  # sent again after a lost answer

    @precondition(lambda self: self.has("running"))
    @rule(pick=PICK, cost=AMOUNTS)
    def crash(self, pick, cost):
        """The worker dies after its last beat had stored what the attempt cost, and the run is taken over."""
        run = self.one(pick, "running")
        Attempt.objects.filter(run=run, fence=run.fence).update(cost=cost)
        assert take_over_dead(run.pk, worker=run.worker, actor="sweeper") is not None
        del self.owned[run.pk]

    @precondition(lambda self: self.has("queued", "scheduled", "running"))
    @rule(pick=PICK)
    def cancel(self, pick):
        cancel_run(run_id=self.one(pick, "queued", "scheduled", "running").pk, actor="tester")

    @precondition(lambda self: self.has("scheduled"))
    @rule()
    def promote(self):
        Run.objects.filter(state="scheduled").update(not_before=timezone.now() - dt.timedelta(seconds=5))
        promote_due(actor="sweeper")

    @precondition(lambda self: self.has("queued", "scheduled"))
    @rule(pick=PICK)
    def expire(self, pick):
        """Nobody looked after a waiting run in time: its hold lapses, and the sweeper sees it."""
        run = self.one(pick, "queued", "scheduled")
        Hold.objects.filter(run_id=run.pk).update(expires_at=timezone.now() - dt.timedelta(seconds=5))
        money.expire_holds_of(run.account_id)

    @precondition(lambda self: self.has("running"))
    @rule(pick=PICK, spent=AMOUNTS)
    def extend(self, pick, spent):
        claimed = self.owned[self.one(pick, "running").pk]
        owner = {"run_id": claimed.run.pk, "account_id": claimed.run.account_id, "fence": claimed.fence}
        told = extend_budget(**owner, claim_token=claimed.token, spent=spent)
        hold = Hold.objects.get(run_id=claimed.run.pk)
        assert hold.amount == told.budget == Run.objects.get(pk=claimed.run.pk).budget
        assert told.verdict is not Verdict.EXTENDED or hold.amount >= spent

    @precondition(lambda self: self.has(*TERMINAL))
    @rule(pick=PICK)
    def requeue(self, pick):
        run = self.one(pick, *TERMINAL)
        self.tried(lambda: requeue_run(run_id=run.pk, actor="tester"), Refusal)

    @precondition(lambda self: self.steps % 4 == 0)
    @rule(purse=PICK, write=st.sampled_from([money.grant, money.adjust, money.write_off]), amount=st.integers(1, 6_000))
    def manual(self, purse, write, amount):
        self.write(self.purse(purse), write, amount, None)

    @precondition(lambda self: self.steps % 3 == 0 and self.has(*TERMINAL))
    @rule(pick=PICK, write=st.sampled_from([money.adjust, money.write_off]), amount=st.integers(1, 6_000))
    def manual_for_a_run(self, pick, write, amount):
        run = self.one(pick, *TERMINAL)
        self.write(run.account, write, -amount if write is money.adjust else amount, run.pk)

    @precondition(lambda self: self.steps % 5 == 0)
    @rule(purse=PICK, days=st.integers(0, 3), is_seen=st.booleans())
    def another_day(self, purse, days, is_seen):
        """It is another day in the account's new time zone, or somebody locks it days later and a clock goes back.

        Unless that `is_seen`, the next one who locks the account is the first to find its period old.
        """
        account = self.purse(purse)
        if days:
            self.turn(account, days=days)
        else:
            Account.objects.filter(pk=account.pk).update(timezone=EAST if account.timezone == WEST else WEST)
        if days or is_seen:
            self.turn(account, days=0)

    # -- what has to hold --------------------------------------------------------------------------------------------
    @invariant()
    def counters_are_what_the_rows_say(self):
        open_holds = Hold.objects.filter(state__in=("active", "expired"))
        held, number = Counter(), Counter()
        for account_id, amount, state in open_holds.values_list("account_id", "amount", "state"):
            held[account_id] += amount if state == "active" else 0
            number[account_id] += 1
        booked = {
            (account_id, period): total
            for account_id, period, total in LedgerEntry.objects.order_by()
            .values_list("account_id", "period")
            .annotate(total=Sum("amount"))
        }
        for row in Account.objects.filter(pk__in=[purse.pk for purse in self.purses]):
            told = (row.spent, row.held, row.in_flight)
            assert told == (booked.get((row.pk, row.spent_period), 0), held[row.pk], number[row.pk]), row.name

    @invariant()
    def every_cost_is_booked_once_and_no_hold_outlives_its_run(self):
        holds = dict(Hold.objects.values_list("run_id", "state"))
        lines = Counter(dict(LedgerEntry.objects.exclude(settle_key=None).values_list("settle_key", "amount")))
        total = Counter(self.adjusted)
        self.seen = set()
        for run in Run.objects.defer("input_json", "result_json"):
            self.seen.add(run.state)
            if run.is_terminal:
                settled = holds[run.pk] == "settled"
                assert settled or holds[run.pk] == "released", (run.state, holds[run.pk])
                assert (run.pk in lines) == settled
                assert lines[run.pk] == run.cost
                total[run.account_id] += run.cost
            else:
                assert holds[run.pk] == "active" or (holds[run.pk] == "expired" and run.state != "running")
                assert run.pk not in lines
        for purse in self.purses:
            booked = LedgerEntry.objects.filter(account=purse).aggregate(total=Sum("amount"))["total"] or 0
            assert booked == total[purse.pk], purse.name

    @invariant()
    def the_limit_is_kept_unless_the_ledger_says_overdraft(self):
        after = self.figures()
        for key, (spent, held, period, _) in after.items():
            spent_before, held_before, period_before, line_before = self.before[key]
            over, over_before = (max(0, sum(pair) - LIMIT) for pair in ((spent, held), (spent_before, held_before)))
            if over > over_before and period == period_before:
                new = LedgerEntry.objects.filter(account_id=key, pk__gt=line_before)
                assert self.may_grow or any(line.overdraft for line in new), (over_before, over)
                assert held <= held_before, "a reservation went beyond the limit"
        self.before, self.may_grow = after, False
        self.steps += 1

    # -- helpers -----------------------------------------------------------------------------------------------------
    def begin(self, run):
        """Claim a run as a worker does: in a set, else alone with its hold armed again, which may fail it."""
        found = working.try_claim(run)
        if found.won:
            self.owned[run.pk] = found.won[0]
        elif found.unheld:
            alone = claims.start_attempt_rearmed(run.pk, run.fence, working.owner())
            if isinstance(alone, claims.Claimed):
                self.owned[run.pk] = alone

    def purse(self, pick):
        return Account.objects.get(pk=self.purses[pick % len(self.purses)].pk)

    def one(self, pick, *states):
        """Return a run in one of the states: the same of the same sequence, though ids are random."""
        ids = list(Hold.objects.order_by("pk").values_list("run_id", flat=True))
        runs = Run.objects.in_bulk(ids)
        found = [runs[run_id] for run_id in ids if runs[run_id].state in states]
        return found[pick % len(found)]

    def has(self, *states):
        return not self.seen.isdisjoint(map(str, states))

    def figures(self):
        """Return {account: (spent, held, period, its last ledger line)}."""
        rows = Account.objects.filter(pk__in=[purse.pk for purse in self.purses])
        last = dict(LedgerEntry.objects.order_by("pk").values_list("account_id", "pk"))
        return {row.pk: (row.spent, row.held, row.spent_period, last.get(row.pk, 0)) for row in rows}

    def write(self, account, write, amount, run_id):
        line = self.tried(
            lambda: write(account, amount=amount, reason="r", actor="tester", run_id=run_id), WriteOffTooLarge
        )
        if line is not None:
            self.adjusted[account.pk] += line.amount
            assert write is not money.write_off or Account.objects.get(pk=account.pk).spent >= 0

    def turn(self, account, *, days):
        row = money.lock_account(account.pk)
        turn_period(row, database_time(row) + dt.timedelta(days=days))
        store(row)
        self.may_grow = True  # a grant ends with its period, and what was booked before counts again in an earlier one

    def tried(self, work, *refusals):
        """Do it, as a transaction of its own; None where it is refused."""
        try:
            with transaction.atomic():
                return work()
        except refusals:
            return None


def test_any_sequence_of_events_keeps_the_money_exact():
    run_state_machine_as_test(
        Money,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],  # shrinking on a database takes longer than reading 25 steps
        ),
    )
