"""Five sessions, twenty connections: submits of every kind, ends and cancels, all at once (protocol 4.3, P6)."""

import random

import pytest

from quotas.database import in_transaction
from quotas.errors import Refusal
from quotas.models import Account
from runs.models import Run
from runs.services import cancel_run, schedule, submit_run
from runs.states import TERMINAL, RunState
from tests import invariants, working
from tests.racing import in_parallel

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.race]

CONNECTIONS, ROUNDS = 20, 10
SESSIONS = ["a", "b", "c", "d", "e"]
ON_BUSY = ["reject", "enqueue", "replace"]


@pytest.fixture
def roomy(account):
    Account.objects.filter(pk=account.pk).update(limit=10**12, max_in_flight=10**6)
    account.refresh_from_db()
    return account


def storm(account, seed):
    """One client: a submit, an end or a cancel a round. Returns what its calls answered."""
    dice = random.Random(seed)
    answers = []
    for _ in range(ROUNDS):
        act = dice.choice([submit_one, submit_one, end_one, cancel_one])
        try:
            answers.append(act(account, dice))
        except Refusal as refusal:
            answers.append(refusal)
    return answers


def submit_one(account, dice):
    return submit_run(
        account=account,
        agent="probe.ret",
        input={},
        actor="storm",
        session=dice.choice(SESSIONS),
        on_busy=dice.choice(ON_BUSY),
        delay=dice.choice([None, None, 0.05]),
    ).run


def end_one(account, dice):
    waiting = list(Run.objects.filter(account=account, state=RunState.QUEUED)[:20])
    if not waiting:
        return None
    won = working.try_claim(dice.choice(waiting), worker=f"w{dice.random()}").won
    return [working.finish(working.finish_of(claimed)) for claimed in won]


def cancel_one(account, dice):
    alive = list(Run.objects.filter(account=account).exclude(state__in=TERMINAL).values_list("pk", flat=True))
    return cancel_run(run_id=dice.choice(alive), actor="storm") if alive else None


def run_dry(account):
    """End everything that is left, one after the other, as workers and the sweeper would."""
    for _ in range(CONNECTIONS * ROUNDS * 3):
        open_runs = Run.objects.filter(account=account).exclude(state__in=TERMINAL)
        if not open_runs.exists():
            return
        in_transaction(lambda: schedule.promote_due(actor="sweeper"))
        for claimed in working.try_claim(*open_runs.filter(state=RunState.QUEUED)[:16]).won:
            working.finish(working.finish_of(claimed))
        for row in open_runs.filter(state=RunState.RUNNING, claim_token__isnull=False):
            cancel_run(run_id=row.pk, actor="storm")
    raise AssertionError(f"never ended: {list(open_runs.values('state', 'blocked_by_session', 'session_slot'))}")


def test_no_client_meets_a_deadlock_and_every_blocked_run_starts(roomy, redis):
    results = in_parallel(*[lambda seed=seed: storm(roomy, seed) for seed in range(CONNECTIONS)])

    assert [result for result in results if not isinstance(result, list)] == []
    assert schedule.stalled_sessions() == []
    holders = Run.objects.filter(account=roomy).exclude(session_slot=None).exclude(state__in=TERMINAL)
    assert Run.objects.filter(account=roomy).exclude(session_slot=None).count() == holders.count() <= len(SESSIONS)
    run_dry(roomy)
    invariants.check_ended(list(Run.objects.filter(account=roomy)))
    invariants.check_money([roomy])
