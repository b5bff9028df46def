"""transition(): every edge moves only what its guard says, and a refused set changes nothing (protocol 1.1, 3.1)."""

import pytest
from django.db import transaction

from runs import states
from runs.errors import TransitionRefused
from runs.models import Run, Transition
from runs.states import CONFIRM_CANCEL, EDGES, SUBMIT, TERMINAL, RunState
from runs.transitions import Move, begin, lock_runs, transition
from tests import builders, working

pytestmark = pytest.mark.django_db
MOVES = [edge for edge in EDGES if edge.sources]
BUILDABLE = [RunState.SCHEDULED, RunState.QUEUED, RunState.RUNNING, *sorted(TERMINAL)]


def move(run, edge, **fields):
    return Move(run, edge, actor="tester", at=run.queued_at, **fields)


def named(edge):
    return f"{edge.event}-from-{min(edge.sources)}"


def in_state(state, account, **fields):
    """Return a run in the state, also in those that no service of today leads to."""
    if state in BUILDABLE:
        return builders.make_run(state, account=account, **fields)
    run = builders.make_run("queued", account=account, **fields)
    Run.objects.filter(pk=run.pk).update(state=str(state))
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("edge", MOVES, ids=named)
@pytest.mark.parametrize("state", RunState)
def test_an_edge_moves_from_its_sources_and_from_nowhere_else(account, edge, state):
    run = in_state(state, account)
    before = run.fence, Transition.objects.count()

    if state in edge.sources:
        (row,) = transition([move(run, edge, data={"k": 1}, prev="7-7")])
        run.refresh_from_db()
        assert (run.state, run.fence) == (edge.target, before[0] + 1)
        assert (row.fence, row.kind, row.data, row.prev, row.actor) == (
            run.fence,
            edge.event,
            {"k": 1},
            "7-7",
            "tester",
        )
    else:
        with pytest.raises(TransitionRefused) as refused:
            transition([move(run, edge)])
        assert refused.value.run_ids == [run.pk]
        run.refresh_from_db()
        assert (run.state, run.fence, Transition.objects.count()) == (state, *before)


@pytest.mark.parametrize("edge", MOVES, ids=named)
def test_an_edge_does_not_move_a_row_of_another_fence(account, edge):
    run = in_state(min(edge.sources), account)
    Run.objects.filter(pk=run.pk).update(fence=run.fence + 1)

    with pytest.raises(TransitionRefused):
        transition([move(run, edge)])
    assert Run.objects.get(pk=run.pk).state == run.state


@pytest.mark.parametrize("edge", [edge for edge in MOVES if edge.by_owner], ids=named)
def test_what_leaves_running_repeats_the_owners_token(account, edge):
    run = builders.make_run("running", account=account)
    run.claim_token = "x" * 32

    with pytest.raises(TransitionRefused):
        transition([move(run, edge)])
    assert Run.objects.get(pk=run.pk).state == "running"


@pytest.mark.parametrize("edge", [edge for edge in MOVES if edge.by_owner], ids=named)
def test_a_cancel_mark_lets_nothing_pass_but_the_cancel(account, edge):
    run = builders.make_run("running", account=account)
    Run.objects.filter(pk=run.pk).update(cancel_requested_at=run.queued_at)

    if edge is CONFIRM_CANCEL:
        transition([move(run, edge)])
        assert Run.objects.get(pk=run.pk).state == "cancelled"
    else:
        with pytest.raises(TransitionRefused):
            transition([move(run, edge)])
        assert Run.objects.get(pk=run.pk).state == "running"


@pytest.mark.parametrize("edge", [edge for edge in MOVES if edge.target in TERMINAL], ids=named)
def test_an_end_gives_up_owner_lease_and_session(account, edge):
    run = in_state(min(edge.sources), account, session="s", session_slot="s")

    transition([move(run, edge)])

    run.refresh_from_db()
    assert (run.claim_token, run.lease_expires_at, run.session_slot) == (None, None, None)
    assert run.finished_at is not None
    assert run.session == "s"


def test_a_hand_back_gives_up_the_owner_and_keeps_the_session(account):
    run = builders.make_run("running", account=account, session="s", session_slot="s")

    transition([move(run, states.HAND_BACK)])

    run.refresh_from_db()
    assert (run.state, run.claim_token, run.session_slot, run.finished_at) == ("queued", None, "s", None)
    assert run.attempt == 1


def test_a_set_of_which_one_cannot_move_does_not_move_at_all(account):
    runs = [builders.make_run("queued", account=account) for _ in range(3)]
    Run.objects.filter(pk=runs[1].pk).update(state="cancelled", fence=2)
    before = working.rows()

    with pytest.raises(TransitionRefused) as refused, transaction.atomic():
        transition([move(run, states.CLAIM, changes={"claim_token": "t"}) for run in runs])

    assert sorted(refused.value.run_ids) == sorted(run.pk for run in runs)
    assert working.new_rows(before) == {}
    assert [Run.objects.get(pk=run.pk).state for run in runs] == ["queued", "cancelled", "queued"]


def test_a_set_moves_each_run_its_own_way(account):
    good, bad, gone = (builders.make_run("running", account=account) for _ in range(3))
    error = {"class": "input", "message": "ä"}

    transition(
        [
            move(good, states.SUCCEED, changes={"result_json": '"x"', "cost": 7}),
            move(bad, states.FAIL, changes={"error": error, "error_class": "input"}),
            move(gone, states.INTERRUPT),
        ]
    )

    for run in (good, bad, gone):
        run.refresh_from_db()
    assert [run.state for run in (good, bad, gone)] == ["succeeded", "failed", "interrupted"]
    assert (good.result, good.cost, good.error) == ("x", 7, None)
    assert (bad.result, bad.cost, bad.error, bad.error_class) == (None, 0, error, "input")
    assert (gone.result, gone.cost, gone.error) == (None, 0, None)


def test_no_moves_are_no_statement(django_assert_num_queries, db):
    with django_assert_num_queries(0):
        assert transition([]) == []


def test_rows_are_locked_in_the_order_of_their_ids_with_the_databases_time(account):
    runs = [builders.make_run("queued", account=account) for _ in range(3)]

    locked = lock_runs([run.pk for run in reversed(runs)])

    assert [row.pk for row in locked] == sorted(run.pk for run in runs)
    assert all(row.__dict__["db_now"].tzinfo is not None for row in locked)


def test_a_submitted_run_begins_at_fence_one(account):
    built = builders.make_run("queued", account=account)
    run = Run(account=account, agent="probe.ret", input_json="{}", time_limit_seconds=1, queue_wait_seconds=1)
    run.queued_at = built.queued_at

    row = begin(run, SUBMIT, actor="x" * 300, data={})

    assert (row.fence, row.kind, len(row.actor)) == (1, "run.queued", 150)
    assert (Run.objects.get(pk=run.pk).state, Run.objects.get(pk=run.pk).fence) == ("queued", 1)
