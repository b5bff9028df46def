"""What the streams hold, and the database against Redis: each kind of difference is found, and nothing else."""

import datetime as dt

import pytest
from django.utils import timezone
from redis.exceptions import RedisError

from quotas.models import AuditEntry
from runs import keys, ready
from runs.ids import new_run_id
from runs.models import Run
from tests import builders, working
from workers.differences import find_differences
from workers.errors import RepairRunning
from workers.streams import list_streams, list_waiting_sets, repair_streams, server_facts

pytestmark = pytest.mark.django_db(transaction=True)
STREAM = "normal"


def stream():
    return keys.ready("default", STREAM)


def aged(*runs, seconds=60):
    """Have the rows' last change lie a while back: what is on its way is no difference."""
    then = timezone.now() - dt.timedelta(seconds=seconds)
    for run in runs:
        changes = {"queued_at": then} | ({"finished_at": then} if run.is_terminal else {})
        changes |= {"started_at": then} if run.started_at else {}
        Run.objects.filter(pk=run.pk).update(**changes)


def found():
    """Return {kind: ids} of the differences."""
    return {row.kind: set(row.samples) for row in find_differences()}


def entry(redis, run, fence=None):
    return redis.xadd(stream(), {"run_id": str(run.pk), "fence": str(fence or run.fence), "v": "1"})


# -- figures ---------------------------------------------------------------------------------------------------------
def test_a_stream_says_what_waits_what_is_pending_and_for_how_long(account, redis):
    runs = [working.submit(account) for _ in range(3)]
    config = working.config()
    assert len(working.consumer(config).take([0])) == 1

    (facts,) = [row for row in list_streams() if (row.queue, row.priority) == ("default", STREAM)]

    assert (facts.queue, facts.length, facts.pending, facts.consumers) == ("default", len(runs), 1, 1)
    assert facts.named[0][:2] == (config.consumer, 1)
    assert facts.oldest_idle is not None
    assert 0 <= facts.oldest_wait < 60
    assert facts.lag in ({2} if "lag" in redis.xinfo_groups(stream())[0] else {None})


def test_streams_that_are_not_there_yet_are_empty(account, redis):
    rows = [row for row in list_streams() if row.queue == "default"]  # agents of other tests have theirs

    assert {(row.length, row.pending, row.lag, row.oldest_wait) for row in rows} == {(0, 0, 0, None)}
    assert [row.priority for row in rows] == list(keys.PRIORITIES)
    assert (list_waiting_sets(), find_differences()) == ([], [])


def test_an_extra_stream_is_one_of_them(account, redis, settings):
    settings.EXTRA_STREAMS = ["from-elsewhere"]
    redis.xadd("from-elsewhere", {"run_id": "x"})

    facts = list_streams()[-1]

    assert (facts.queue, facts.name, facts.length, facts.pending) == ("", "from-elsewhere", 1, 0)


def test_the_server_says_what_it_is(redis):
    facts = server_facts()

    assert facts.kind in {"Valkey", "Redis"}
    assert facts.version[0].isdigit()
    assert facts.persistence.startswith("append-only file o")
    assert facts.memory > 0


# -- differences -----------------------------------------------------------------------------------------------------
def test_runs_on_their_ordinary_way_are_no_difference(account, redis):
    waiting, running, ended = (working.submit(account) for _ in range(3))
    entries = working.consumer(working.config()).take(range(3))
    claimed = working.claim(running, ended)
    working.finish(working.finish_of(claimed[1]))
    assert len(entries) == 3
    aged(waiting, running)

    assert found() == {}


def test_a_queued_run_without_an_entry_is_found(account, redis):
    bare, lost, deleted, fine = (working.submit(account) for _ in range(4))
    redis.hdel(keys.index("default"), str(bare.pk))
    redis.xdel(stream(), ready.named_entry(redis, deleted)[1])
    working.consumer(working.config()).take(range(2))
    redis.xack(stream(), keys.GROUP, ready.named_entry(redis, lost)[1])
    aged(bare, lost, deleted, fine)

    assert found()["missing"] == {str(run.pk) for run in (bare, lost, deleted)}


def test_what_was_queued_a_moment_ago_is_on_its_way(account, redis):
    working.submit(account)
    redis.delete(stream(), keys.index("default"))

    assert found() == {}


def test_entries_that_no_row_stands_for_are_found_by_what_is_wrong_with_them(account, redis):
    ended, retried = (builders.make_run(state, account=account) for state in ("succeeded", "queued"))
    doubled = working.submit(account)
    Run.objects.filter(pk=retried.pk).update(fence=3)
    aged(ended, retried, doubled)
    entry(redis, ended)
    entry(redis, retried, fence=1)
    entry(redis, doubled)
    unknown = new_run_id()
    redis.xadd(stream(), {"run_id": str(unknown), "fence": "1", "v": "1"})
    odd = redis.xadd(stream(), {"nonsense": "1"}).decode()

    said = found()

    assert said["ended"] == {str(ended.pk)}
    assert said["outdated"] == {str(retried.pk)}
    assert said["twice"] == {str(doubled.pk)}
    assert said["unknown"] == {str(unknown)}
    assert said["unreadable"] == {f"{stream()} {odd}"}


def test_parked_both_ways(account, redis):
    """A member whose run does not wait there, and a run that the index calls parked where no set has it."""
    limit = "agent:probe.few"
    stranger, forgotten = builders.make_run("succeeded", account=account), working.submit(account)
    aged(stranger, forgotten)
    redis.hset(keys.limits("default"), limit, 2)
    redis.zadd(keys.parked("default", limit), {str(stranger.pk): 1})
    redis.xdel(stream(), ready.named_entry(redis, forgotten)[1])
    redis.hset(keys.index("default"), str(forgotten.pk), f"1|parked:{limit}")

    said = found()

    assert said["stranger"] == {str(stranger.pk)}
    assert said["missing"] == {str(forgotten.pk)}
    (waiting,) = list_waiting_sets()
    assert (waiting["limit"], waiting["parked"]) == (limit, 1)


def test_a_count_is_bounded_and_so_are_its_samples(account, redis):
    runs = [working.submit(account) for _ in range(8)]
    redis.delete(stream(), keys.index("default"))
    aged(*runs)

    (row,) = find_differences()

    assert (row.count, len(row.samples)) == (8, 5)


# -- repair ----------------------------------------------------------------------------------------------------------
def test_a_repair_adds_what_is_missing_drops_strangers_is_audited_and_changes_no_run(account, redis):
    limit = "agent:probe.few"
    bare, stranger = working.submit(account), builders.make_run("succeeded", account=account)
    redis.delete(stream(), keys.index("default"))
    redis.hset(keys.limits("default"), limit, 2)
    redis.zadd(keys.parked("default", limit), {str(stranger.pk): 1})
    aged(bare, stranger)
    before = list(Run.objects.order_by("pk").values())

    done = repair_streams(actor="olga", reason="after a failover", request_id="r-1")

    assert done.failed == {}
    assert found() == {}
    assert redis.xlen(stream()) == 1
    assert list(Run.objects.order_by("pk").values()) == before
    line = AuditEntry.objects.get()
    assert (line.action, line.actor, line.reason, line.request_id) == (
        "streams.repair", "olga", "after a failover", "r-1",
    )  # fmt: skip


def test_a_second_repair_waits_for_the_first(account, redis):
    redis.set(keys.repairing(), "ivan")

    with pytest.raises(RepairRunning):
        repair_streams(actor="olga", reason="x")

    assert not AuditEntry.objects.exists()


def test_without_redis_nothing_is_repaired_and_nothing_audited(account, own_redis):
    own_redis.kill()

    with pytest.raises(RedisError):
        repair_streams(actor="olga", reason="x")

    assert not AuditEntry.objects.exists()
