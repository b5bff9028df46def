"""Submit: one transaction, and every refusal is a rollback (protocol 4)."""

import datetime as dt

import pytest
from django.db import transaction
from django.utils import timezone

from quotas.errors import QuotaExceeded, TooManyInFlight, UnknownPrice
from quotas.models import Account, Hold
from quotas.prices import set_price
from runs import errors, keys, ready, selectors
from runs.models import Run
from runs.services import submit_run
from tests import builders, working
from tests.working import registered, submit

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_backlog():
    selectors._backlog.clear()


def refused(error, account, **fields):
    """Submit and insist on the refusal, and that no table has a row more or less. Returns the facts."""
    before, figures = working.rows(), Account.objects.filter(pk=account.pk).values().get()
    with pytest.raises(error) as raised:
        submit(account, **fields)
    assert working.new_rows(before) == {}
    assert Account.objects.filter(pk=account.pk).values().get() == figures
    return raised.value.facts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", {"x": {1}}),
        ("metadata", ["x"]),
        ("metadata", {"x": float("nan")}),
        ("metadata", {"x": "\0"}),
        ("tags", "x"),
        ("tags", [1]),
        ("input", {"value": {1}}),
    ],
)
def test_what_is_not_json_is_refused_by_its_field(account, field, value):
    assert refused(errors.InvalidRequest, account, **{field: value})["field"] == field


def test_an_accepted_run_has_a_row_a_transition_and_a_hold(account):
    before = working.rows()

    run = submit(account, input={"value": "ä"}, metadata={"m": 1}, tags=["t"], request_id="r" * 99)

    assert working.new_rows(before) == {"Run": 1, "Transition": 1, "Hold": 1}
    run.refresh_from_db()
    assert (run.state, run.fence, run.attempt, run.queue, run.priority) == ("queued", 1, 1, "default", "normal")
    assert (run.input, run.metadata, run.tags, run.submitted_by) == ({"value": "ä"}, {"m": 1}, ["t"], "tester")
    assert len(run.request_id) == 64
    hold = Hold.objects.get(run_id=run.pk)
    waits = run.queue_wait_seconds + run.time_limit_seconds + 300
    assert abs((hold.expires_at - run.queued_at).total_seconds() - waits) < 2
    account.refresh_from_db()
    assert (account.held, account.in_flight) == (hold.amount, 1) == (1000, 1)


# -- refusals before the lock ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (errors.UnknownAgent, {"agent": "no.such"}),
        (errors.UnknownAgent, {"agent": "x" * 5000}),
        (errors.InvalidInputRefused, {"input": {"bytes": -1}}),
        (errors.InvalidInputRefused, {"input": None}),
        (errors.InvalidInputRefused, {"input": []}),
        (errors.Unsupported, {"on_busy": "steal"}),
        (errors.InvalidRequest, {"priority": "urgent"}),
        (errors.PriorityTooHigh, {"priority": "critical"}),
        (errors.InvalidRequest, {"time_limit": 0}),
        (errors.InvalidRequest, {"time_limit": -1}),
        (errors.InvalidRequest, {"time_limit": float("nan")}),
        (errors.InvalidRequest, {"time_limit": float("inf")}),
        (errors.InvalidRequest, {"time_limit": 24 * 3600 + 1}),
        (errors.InvalidRequest, {"agent": "probe.spend", "input": {"estimate": 2**62}}),
    ],
)
def test_what_cannot_be_asked_is_refused_and_leaves_nothing_behind(account, error, fields):
    refused(error, account, **fields)


def test_a_refused_input_names_each_problem(account):
    facts = refused(errors.InvalidInputRefused, account, input={"bytes": "many", "odd": "none"})

    assert [problem["path"] for problem in facts["errors"]] == ["bytes", "odd"]


def test_a_time_limit_is_taken_where_the_agent_allows_it(account):
    assert submit(account, time_limit=5).time_limit_seconds == 5.0
    with registered("test.fixed", time_limit_seconds=9.0):
        assert submit(account, agent="test.fixed").time_limit_seconds == 9.0
        refused(errors.InvalidRequest, account, agent="test.fixed", time_limit=5)


def test_an_account_may_use_priorities_up_to_its_own(account):
    assert submit(account, priority="high").priority == "high"
    Account.objects.filter(pk=account.pk).update(max_priority="critical")
    account.refresh_from_db()
    assert submit(account, priority="critical").priority == "critical"


def test_a_model_without_a_price_is_refused_at_the_door(account, django_capture_on_commit_callbacks):
    with registered("test.model", models=lambda run_input: [run_input["model"]]):
        assert refused(UnknownPrice, account, agent="test.model", input={"model": "m"})["model"] == "m"

        with django_capture_on_commit_callbacks(execute=True):
            set_price(model="m", prices={"input": 1}, actor="tester")

        assert submit(account, agent="test.model", input={"model": "m"}).state == "queued"


@pytest.mark.parametrize("file", ["no uuid", "00000000-0000-0000-0000-000000000000", 7, None])
def test_a_file_that_is_not_the_accounts_is_refused(account, file):
    schema = {"type": "object", "properties": {"file": {"format": "file"}}}
    with registered("test.file", input_schema=schema):
        refused(errors.NoSuchFile, account, agent="test.file", input={"file": file})


# -- refusals under the lock -----------------------------------------------------------------------------------------
def test_a_run_beyond_the_money_is_refused(account):
    Account.objects.filter(pk=account.pk).update(limit=1500)
    submit(account)

    facts = refused(QuotaExceeded, account)

    assert (facts["available"], facts["needed"], facts["held"]) == (500, 1000, 1000)


def test_a_run_beyond_the_places_is_refused(account):
    Account.objects.filter(pk=account.pk).update(max_in_flight=2)
    submit(account)
    submit(account)

    assert refused(TooManyInFlight, account)["limit"] == 2


def test_a_run_beyond_the_backlog_is_refused(account, settings):
    settings.BACKLOG_LIMIT = 2
    for _ in range(2):
        builders.make_run("queued", account=account)

    assert refused(errors.BacklogFull, account) == {"queue": "default", "backlog": 2, "limit": 2}


def test_the_backlog_of_one_queue_does_not_close_another(account, settings):
    settings.BACKLOG_LIMIT = 1
    builders.make_run("queued", account=account)

    with registered("test.other", queue="other"):
        assert submit(account, agent="test.other").queue == "other"


# -- idempotency -----------------------------------------------------------------------------------------------------
def test_the_same_key_and_body_give_the_first_run(account):
    first = submit_run(account=account, agent="probe.ret", input={}, actor="tester", idempotency_key="k")
    before = working.rows()

    second = submit_run(account=account, agent="probe.ret", input={}, actor="tester", idempotency_key="k")

    assert (first.replayed, second.replayed) == (False, True)
    assert second.run.pk == first.run.pk
    assert working.new_rows(before) == {}


def test_the_same_key_gives_the_first_run_also_after_its_end_and_without_money(account):
    run = submit(account, idempotency_key="k")
    working.finish(working.finish_of(*working.claim(run)))
    Account.objects.filter(pk=account.pk).update(limit=0, max_in_flight=0)

    assert submit(account, idempotency_key="k").pk == run.pk


@pytest.mark.parametrize("other", [{"input": {"value": 2}}, {"agent": "probe.sleep"}, {"session": "s"}])
def test_the_same_key_with_another_body_is_refused(account, other):
    run = submit(account, idempotency_key="k")

    assert refused(errors.IdempotencyMismatch, account, idempotency_key="k", **other) == {"run": str(run.pk)}


def test_the_callers_own_digest_decides_where_one_is_given(account):
    run = submit(account, idempotency_key="k", idempotency_digest="d1")

    assert submit(account, idempotency_key="k", idempotency_digest="d1", input={"value": 2}).pk == run.pk
    refused(errors.IdempotencyMismatch, account, idempotency_key="k", idempotency_digest="d2")


def test_a_key_is_an_accounts_own(account, other_account):
    assert submit(account, idempotency_key="k").pk != submit(other_account, idempotency_key="k").pk


@pytest.mark.parametrize(("first", "second"), [("key", "KEY"), ("key", "key "), ("ä", "a"), ("ss", "ß")])
def test_keys_and_sessions_that_only_look_alike_are_different(account, first, second):
    runs = [submit(account, idempotency_key=key, session=key) for key in (first, second)]

    assert runs[0].pk != runs[1].pk
    assert [run.session_number for run in runs] == [1, 1]


def test_a_key_is_free_again_after_a_day(account):
    old = submit(account, idempotency_key="k")
    yesterday = timezone.now() - dt.timedelta(hours=25)
    Run.objects.filter(pk=old.pk).update(submitted_at=yesterday)

    new = submit(account, idempotency_key="k", input={"value": 2})

    assert new.pk != old.pk
    assert Run.objects.get(pk=old.pk).idempotency_key is None


# -- dedupe ----------------------------------------------------------------------------------------------------------
def test_the_same_input_within_the_window_is_refused(account, other_account):
    with registered("test.once", dedupe_seconds=60.0):
        first = submit(account, agent="test.once", input={"a": 1, "b": 2})

        facts = refused(errors.DuplicateRun, account, agent="test.once", input={"b": 2, "a": 1})

        assert facts == {"run": str(first.pk)}
        assert submit(account, agent="test.once", input={"a": 2}).pk != first.pk
        assert submit(other_account, agent="test.once", input={"a": 1, "b": 2}).pk != first.pk


def test_the_same_input_after_the_window_is_a_new_run(account):
    with registered("test.once", dedupe_seconds=60.0):
        first = submit(account, agent="test.once")
        Run.objects.filter(pk=first.pk).update(dedupe_until=timezone.now() - dt.timedelta(seconds=1))

        second = submit(account, agent="test.once")

    assert Run.objects.get(pk=first.pk).fingerprint is None
    assert Run.objects.get(pk=second.pk).fingerprint is not None


def test_an_agent_without_a_window_takes_the_same_input_again(account):
    assert submit(account).pk != submit(account).pk


# -- sessions --------------------------------------------------------------------------------------------------------
def test_a_session_has_one_run_at_a_time(account, other_account):
    first = submit(account, session="s")

    facts = refused(errors.SessionBusy, account, session="s")

    assert facts == {"session": "s", "run": str(first.pk)}
    assert submit(account, session="t").session_number == 1
    assert submit(other_account, session="s").session_number == 1


def test_a_session_is_free_after_the_end_and_counts_its_runs(account):
    for number in (1, 2, 3):
        run = submit(account, session="s")
        assert run.session_number == number
        working.finish(working.finish_of(*working.claim(run)))


# -- inside the caller's transaction ---------------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_a_run_of_a_callers_transaction_is_dispatched_at_its_commit(account, redis):
    with transaction.atomic():
        run = submit(account)
        assert ready.named_entry(redis, run) is None
        assert working.log_of(run) == []

    assert ready.named_entry(redis, run) is not None
    assert working.log_of(run) == ["1-1"]


@pytest.mark.django_db(transaction=True)
def test_a_run_of_a_callers_rollback_was_never_there(account, redis):
    before = working.rows()
    with transaction.atomic():
        submit(account)
        transaction.set_rollback(True)  # the caller thinks better of it

    assert working.new_rows(before) == {}
    assert redis.xlen(keys.ready("default", "normal")) == 0


@pytest.mark.django_db(transaction=True)
def test_a_refusal_that_the_caller_catches_leaves_nothing_in_the_callers_transaction(account, redis):
    Account.objects.filter(pk=account.pk).update(limit=10)
    before = working.rows()
    with transaction.atomic():
        with pytest.raises(QuotaExceeded):
            submit(account)
        other = builders.make_account("made after the refusal")

    assert working.new_rows(before) == {"Account": 1}
    assert other.pk
    assert redis.xlen(keys.ready("default", "normal")) == 0


@pytest.mark.django_db(transaction=True)
def test_a_submit_without_redis_is_accepted(account, own_redis):
    own_redis.kill()

    run = submit(account)

    assert Run.objects.get(pk=run.pk).state == "queued"
