"""Retention: what is old goes, what somebody may still need stays, and a crash in between leaks nothing (10, 14)."""

import itertools

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, storages
from django.db import DatabaseError, connection
from django.utils import timezone

from quotas.models import Hold, LedgerEntry
from runs.errors import NoSuchFile, NoSuchRun, PayloadPruned
from runs.models import Artifact, Attempt, EventArchive, FileUse, Run, StoredFile, Transition
from runs.reader import read_events
from runs.services import check_input, pruning, requeue_run
from runs.services.files import store_upload
from tests import aged, builders, invariants, working
from tests.aged import old_run
from tests.api import RUNS, Api, problem
from workers import retention
from workers.dead_letters import discard
from workers.models import DeadLetter
from workers.retention import Retention, Walk, rules

pytestmark = pytest.mark.django_db(transaction=True)
ENDED = ("succeeded", "failed", "cancelled", "interrupted")
FILE_SCHEMA = {"type": "object", "properties": {"file": {"type": "string", "format": "file"}}}


def pass_once():
    Retention().run_once()


def there(*runs):
    """Return which of the runs still have a row."""
    return [Run.objects.filter(pk=run.pk).exists() for run in runs]


def pruned(*runs):
    return [Run.objects.get(pk=run.pk).payload_pruned for run in runs]


def upload(account, name="notes.md"):
    return store_upload(account=account, name=name, content_type="text/markdown", chunks=[b"# notes"])


# -- runs ------------------------------------------------------------------------------------------------------------
def test_old_runs_go_with_everything_but_the_ledger(account):
    old = [old_run(state, 100, account=account, cost=7) for state in ENDED]
    young = [old_run(state, 80, account=account, cost=7) for state in ENDED]
    aged.make_artifact(old[0])
    ledger = list(LedgerEntry.objects.order_by("pk").values())

    pass_once()

    assert there(*old, *young) == [False] * 4 + [True] * 4
    for model in (Transition, Attempt, EventArchive, Artifact):
        assert set(model.objects.values_list("run_id", flat=True)) <= {run.pk for run in young}
    assert set(Hold.objects.values_list("run_id", flat=True)) == {run.pk for run in young}
    assert list(LedgerEntry.objects.order_by("pk").values()) == ledger
    assert aged.files_under(f"runs/{old[0].pk}") == []
    invariants.check_money([account])


def test_nothing_that_is_not_over_goes_however_old(account):
    waiting = [old_run(state, 400, account=account) for state in ("queued", "running")]
    delayed = old_run("queued", 400, account=account)
    Run.objects.filter(pk=delayed.pk).update(state="scheduled")
    Run.objects.update(lease_expires_at=None)

    pass_once()

    assert there(*waiting, delayed) == [True] * 3
    assert Run.objects.filter(payload_pruned_at=None).count() == 3


def test_a_run_with_an_open_dead_letter_stays_as_it_is(account):
    kept = old_run("failed", 400, account=account, input={"a": 1})
    letter = builders.make_dead_letter(kept)
    requeued = old_run("failed", 400, account=account)
    builders.make_dead_letter(requeued)
    done = builders.make_run("succeeded", account=account, retry_of=requeued)
    Run.objects.filter(pk=requeued.pk).update(retried_by=done.pk)

    pass_once()

    assert there(kept, requeued) == [True, False]
    assert Run.objects.get(pk=kept.pk).input == {"a": 1}
    assert Run.objects.get(pk=done.pk).retry_of_id is None

    discard(dead_letter_id=letter.pk, actor="tester", reason="seen")
    pass_once()
    assert there(kept) == [True]  # it may be restored
    DeadLetter.objects.filter(pk=letter.pk).update(resolved_at=aged.ago(8))
    pass_once()
    assert there(kept) == [False]
    assert DeadLetter.objects.count() == 0


def test_dead_letters_of_no_run_never_expire(db):
    DeadLetter.objects.create(reason="undecodable", entry_key="s|1-1", buried_at=aged.ago(1000))

    pass_once()

    assert DeadLetter.objects.count() == 1


def test_a_run_with_an_open_hold_or_an_open_successor_stays(account):
    held = old_run("succeeded", 400, account=account)
    Hold.objects.filter(run_id=held.pk).update(state=Hold.State.EXPIRED)
    old = old_run("failed", 400, account=account)
    new = builders.make_run("queued", account=account, retry_of=old)

    pass_once()

    assert there(held, old) == [True, True]
    assert pruned(held, old) == [False, False]
    assert Run.objects.get(pk=new.pk).retry_of_id == old.pk


def test_a_run_whose_log_is_open_waits_for_its_close(account):
    fresh = old_run("succeeded", 1, account=account, archived=False)
    closed = old_run("succeeded", 1, account=account)

    for rule in rules(runs_days=0.5, payloads_days=0.5):
        Walk(rule, lag=0).work()

    assert there(fresh, closed) == [True, False]


def test_zero_days_keep_for_ever(account, settings):
    settings.RETAIN_RUNS_DAYS = settings.RETAIN_PAYLOADS_DAYS = 0
    run = old_run("succeeded", 4000, account=account)

    pass_once()

    assert (there(run), pruned(run)) == ([True], [False])


# -- payloads --------------------------------------------------------------------------------------------------------
def failed_with_much(account):
    run = old_run("failed", 40, account=account, input={"secret": "x"}, cost=7, tags=["t"], metadata={"m": 1})
    error = {"class": "bad_output", "type": "BadOutput", "message": "no", "traceback": "line 1", "cause": "exhausted"}
    Run.objects.filter(pk=run.pk).update(result_json='"partial"', error=error, usage={"m": {"input": 3}})
    Attempt.objects.filter(run=run).update(result_json='"kept"', error=error, progress={"done": 1, "message": "x"})
    return run


def test_an_old_payload_goes_and_the_facts_stay(account):
    run = failed_with_much(account)

    pass_once()

    row, attempt = Run.objects.get(pk=run.pk), Attempt.objects.get(run=run)
    assert row.payload_pruned
    assert (row.input, row.result, attempt.result_json, attempt.progress) == (None, None, None, {})
    kept = {"class": "bad_output", "type": "BadOutput", "message": "no", "cause": "exhausted"}
    assert row.error == attempt.error == kept
    assert (row.cost, row.usage, row.tags, row.metadata) == (7, {"m": {"input": 3}}, ["t"], {"m": 1})
    assert (row.state, row.fence, row.transitions.count()) == ("failed", 3, 3)
    invariants.check_money([account])


def test_readers_are_told_that_the_agents_own_events_are_gone(account):
    run = old_run("succeeded", 40, account=account)
    Transition.objects.filter(run=run, fence=3).update(prev="2-9")

    pass_once()

    page = read_events(run.pk)
    assert [event["kind"] for event in page.events] == ["run.queued", "run.started", "gap", "run.succeeded"]
    assert page.ended
    assert [event["kind"] for event in read_events(run.pk, after="2-5").events] == ["gap", "run.succeeded"]
    archive = EventArchive.objects.get(run=run)
    assert (archive.event_count, archive.last_id) == (3, "3-1")


def test_the_api_says_so_and_a_requeue_is_refused(account, api_key):
    run = failed_with_much(account)
    young = old_run("failed", 20, account=account, agent="probe.ret")
    pass_once()
    api = Api(api_key)

    body = api.get(f"{RUNS}/{run.pk}").json()
    assert (body["payload_pruned"], body["input"], body["result"]) == (True, None, None)
    assert api.get(f"{RUNS}/{young.pk}").json()["payload_pruned"] is False
    assert problem(api.post(f"{RUNS}/{run.pk}/retry", {}), 409, "payload_pruned")["run"] == str(run.pk)
    with pytest.raises(PayloadPruned):
        requeue_run(run_id=run.pk, actor="tester")
    assert requeue_run(run_id=young.pk, actor="tester").run.retry_of_id == young.pk


def test_a_run_that_goes_while_it_is_requeued_is_gone(account):
    run = old_run("failed", 100, account=account)
    gone = []

    def execute(act, sql, params, many, context):
        if "quotas_account" in sql and connection.in_atomic_block and not gone:
            gone.append(run.pk)
            Run.objects.filter(pk=run.pk).delete()
        return act(sql, params, many, context)

    with connection.execute_wrapper(execute), pytest.raises(NoSuchRun):
        requeue_run(run_id=run.pk, actor="tester")

    assert gone == [run.pk]


def test_artifacts_go_with_the_payload_and_so_does_what_no_row_names(account):
    run, other = old_run("succeeded", 40, account=account), old_run("succeeded", 3, account=account)
    for one in (run, other):
        aged.make_artifact(one)
    storages["artifacts"].save(f"runs/{run.pk}/1/half.md", ContentFile(b"of a killed attempt"))

    pass_once()

    assert aged.files_under(f"runs/{run.pk}") == []
    assert str(run.pk) not in storages["artifacts"].listdir("runs")[0]
    assert Artifact.objects.get().run_id == other.pk
    assert storages["artifacts"].exists(f"runs/{other.pk}/2/report.md")


def test_a_crash_after_the_mark_leaves_no_file_for_ever(account):
    run = old_run("succeeded", 40, account=account)
    aged.make_artifact(run)
    Run.objects.filter(pk=run.pk).update(payload_pruned_at=timezone.now())  # and it died

    pass_once()

    assert aged.files_under(f"runs/{run.pk}") == []
    assert Artifact.objects.count() == 0


class Stubborn(FileSystemStorage):
    """A storage that deletes nothing."""

    def delete(self, name):
        raise PermissionError(name)


def test_files_that_cannot_be_deleted_keep_their_rows_and_hold_up_nobody(account, settings):
    old = [old_run("succeeded", 100, account=account) for _ in range(3)]
    stuck = old_run("succeeded", 100, account=account)
    aged.make_artifact(stuck)
    alias = {"BACKEND": "tests.workers.test_retention.Stubborn", "OPTIONS": {"location": settings.MEDIA_ROOT}}
    settings.STORAGES = {**settings.STORAGES, "artifacts": alias}

    pass_once()

    assert there(*old, stuck) == [False, False, False, True]
    settings.STORAGES = {
        **settings.STORAGES,
        "artifacts": {**alias, "BACKEND": "django.core.files.storage.FileSystemStorage"},
    }
    pass_once()
    assert there(stuck) == [False]
    assert aged.files_under(f"runs/{stuck.pk}") == []


def test_one_run_that_cannot_be_deleted_holds_up_no_other(account):
    runs = [old_run("succeeded", 100, account=account) for _ in range(4)]
    bad = runs[1].pk

    def execute(act, sql, params, many, context):
        given = {str(value).replace("-", "") for value in params or ()}
        if sql.startswith("DELETE") and 'runs_run"' in sql.replace("`", '"')[:30] and bad.hex in given:
            raise DatabaseError("no")
        return act(sql, params, many, context)

    with connection.execute_wrapper(execute):
        pass_once()

    assert there(*runs) == [False, True, False, False]


# -- uploads ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def reader():
    with working.registered("test.reads", input_schema=FILE_SCHEMA) as name:
        yield name


def test_a_file_stays_while_a_run_names_it_and_a_week_longer(account, reader):
    file = upload(account)
    run = working.submit(account, agent=reader, input={"file": str(file.pk)})
    StoredFile.objects.filter(pk=file.pk).update(uploaded_at=aged.ago(100))
    assert FileUse.objects.get().run_id == run.pk
    working.finish(working.finish_of(*working.claim(run)))

    pass_once()
    assert StoredFile.objects.count() == 1

    Run.objects.filter(pk=run.pk).update(log_closed_at=timezone.now())
    pruning.prune_payloads([run.pk])
    pass_once()
    assert (FileUse.objects.count(), StoredFile.objects.count()) == (0, 1)

    StoredFile.objects.update(unused_since=aged.ago(8))
    pass_once()
    assert StoredFile.objects.count() == 0
    assert not storages["artifacts"].exists(file.path)


def test_a_file_nobody_ever_named_goes_after_a_week(account):
    old, young = upload(account), upload(account)
    StoredFile.objects.filter(pk=old.pk).update(unused_since=aged.ago(8))

    pass_once()

    assert StoredFile.objects.get().pk == young.pk


def test_a_file_whose_removal_began_cannot_be_named_any_more(account, reader):
    file = upload(account)
    StoredFile.objects.update(removed_at=timezone.now())  # and it died

    with pytest.raises(NoSuchFile):
        check_input(reader, {"file": str(file.pk)}, account=account)

    pass_once()
    assert StoredFile.objects.count() == 0
    assert not storages["artifacts"].exists(file.path)


def test_a_file_that_is_named_meanwhile_is_not_removed(account, reader):
    file = upload(account)
    StoredFile.objects.update(unused_since=aged.ago(8))
    (found,) = pruning.unused_uploads(10)
    working.submit(account, agent=reader, input={"file": str(file.pk)})

    assert pruning.remove_uploads([found]) == 0
    assert StoredFile.objects.get().removed_at is None


def test_a_requeued_run_keeps_the_file_too(account, reader):
    file = upload(account)
    old = working.submit(account, agent=reader, input={"file": str(file.pk)})
    working.finish(working.finish_of(*working.claim(old)))
    new = requeue_run(run_id=old.pk, actor="tester").run
    working.finish(working.finish_of(*working.claim(new)))

    pruning.prune_payloads([old.pk])
    assert StoredFile.objects.get().unused_since is None
    assert FileUse.objects.get().run_id == new.pk
    pruning.prune_payloads([new.pk])
    assert StoredFile.objects.get().unused_since is not None


# -- keys ------------------------------------------------------------------------------------------------------------
def test_idempotency_keys_and_fingerprints_are_emptied_after_their_windows(account):
    columns = {"idempotency_key": "submit:k", "fingerprint": "f", "dedupe_until": aged.ago(1)}
    old = old_run("succeeded", 2, account=account, **columns)
    columns = {"idempotency_key": "submit:l", "fingerprint": "g", "dedupe_until": aged.ago(-9)}
    longer = old_run("succeeded", 2, account=account, **columns)
    young = old_run("succeeded", 0.5, account=account, idempotency_key="submit:m")

    pass_once()

    found = {run.pk: (run.idempotency_key, run.fingerprint) for run in Run.objects.all()}
    assert found == {old.pk: (None, None), longer.pk: (None, "g"), young.pk: ("submit:m", None)}


# -- bounds ----------------------------------------------------------------------------------------------------------
def test_a_pass_is_bounded_and_the_next_goes_on(account, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 5)
    monkeypatch.setattr(retention, "CHUNK", 2)
    runs = [old_run("succeeded", 100, account=account) for _ in range(13)]
    duty = Retention()

    left = [13]
    while left[-1]:  # a slow machine's pass ends by its time
        duty.run_once()
        left.append(sum(there(*runs)))

    assert all(0 <= before - after <= 6 for before, after in itertools.pairwise(left))


def test_where_nothing_is_due_a_pass_asks_nothing_for_a_minute(account, django_assert_num_queries):
    old_run("succeeded", 1, account=account)
    duty = Retention()
    duty.run_once()

    with django_assert_num_queries(0):
        duty.run_once()


def test_a_walk_reads_pages_and_not_the_table(account, monkeypatch):
    monkeypatch.setattr(retention, "PAGE", 3)
    young = [old_run("succeeded", 5, account=account) for _ in range(5)]
    kept = [old_run("queued", 100, account=account) for _ in range(5)]
    old = [old_run("succeeded", 100, account=account) for _ in range(5)]
    (rule,) = [rule for rule in rules(runs_days=90, payloads_days=0) if rule.name == "runs"]
    walk = Walk(rule)

    assert walk.work(most=2)
    assert not walk.work()

    assert there(*young, *kept, *old) == [True] * 10 + [False] * 5
    assert walk.found == 5
