"""Closing logs and reading them, wherever they are: archive, stream, archive again, else the rows (protocol 3.4)."""

import threading

import pytest
from django.db import connections
from django.utils import timezone

from runs import archive, broker, events, keys, lifecycle, reader
from runs.errors import InvalidCursor, NoSuchRun
from runs.events import Append, Line
from runs.ids import new_run_id
from runs.models import EventArchive, Run
from tests import builders, invariants, working
from workers.finaliser import Ending, end_set

pytestmark = pytest.mark.django_db


@pytest.fixture
def ended(account):
    """An ended run whose log is complete and open: 1-1, 2-1, 2-2, 2-3, 3-1."""
    run = builders.make_run("succeeded", account=account, archived=False)
    run.transitions.filter(fence=3).update(prev="2-3")
    write(run, *lifecycle_lines(run, 1), *lifecycle_lines(run, 2), *ticks(2, 3), *lifecycle_lines(run, 3))
    return run


def lifecycle_lines(run, *fences):
    return [lifecycle.line_of(run.transitions.get(fence=fence)) for fence in fences]


def ticks(fence, last, first=2):
    body = events.encode("probe.tick", {"text": "ä"}, timezone.now())
    return [Line(f"{fence}-{seq}", body) for seq in range(first, last + 1)]


def write(run, *lines):
    events.append_all(broker.client(), [Append(run.pk, run.fence, lines, opening=True)])


def close(*runs):
    return archive.close_logs(broker.client(), [(run.pk, run.fence) for run in runs])


def ids(page):
    return [event["id"] or "gap" for event in page.events]


def everything(run, **fields):
    return ids(reader.read_events(run.pk, **fields))


def closed_at(run):
    return Run.objects.get(pk=run.pk).log_closed_at


def test_a_closed_log_is_in_the_archive_and_leaves_redis_soon(ended, redis, settings):
    assert close(ended) == [ended.pk]

    row = EventArchive.objects.get(run=ended)
    assert (row.event_count, row.last_id) == (5, "3-1")
    assert [stored.event["id"] for stored in archive.unpack(row)] == ["1-1", "2-1", "2-2", "2-3", "3-1"]
    assert closed_at(ended) is not None
    assert 0 < redis.ttl(keys.log(ended.pk)) <= settings.EVENT_CLOSED_TTL_SECONDS


def test_closing_again_changes_nothing(ended):
    close(ended)
    first, at = EventArchive.objects.values().get(), closed_at(ended)

    assert close(ended) == [ended.pk]
    assert EventArchive.objects.values().get() == first
    assert closed_at(ended) == at


def test_a_log_without_its_terminal_event_gets_it_before_it_is_closed(account):
    run = builders.make_run("failed", account=account, archived=False)
    write(run, *lifecycle_lines(run, 1, 2))

    assert close(run) == [run.pk]
    assert everything(run) == ["1-1", "2-1", "3-1"]


def test_a_log_that_was_lost_is_closed_with_its_lifecycle(account):
    run = builders.make_run("succeeded", account=account, archived=False)

    assert close(run) == [run.pk]
    assert everything(run) == ["1-1", "2-1", "3-1"]


def test_one_log_that_cannot_be_read_holds_back_no_other(ended, account, redis):
    spoiled = builders.make_run("succeeded", account=account, archived=False)
    redis.set(keys.log(spoiled.pk), "not a stream")

    assert close(spoiled, ended) == [ended.pk]
    assert (closed_at(spoiled), closed_at(ended) is not None) == (None, True)


def test_a_run_that_has_not_ended_is_not_closed(account):
    run = builders.make_run("running", account=account)
    write(run, *lifecycle_lines(run, 1, 2))

    close(run)

    assert closed_at(run) is None


def test_nothing_to_close_is_nothing():
    assert archive.close_logs(broker.client(), []) == []


# -- reading ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("closed", [False, True])
def test_a_reader_gets_every_event_once_from_stream_and_archive(ended, closed, redis):
    if closed:
        close(ended)
        redis.delete(keys.log(ended.pk))

    assert everything(ended) == ["1-1", "2-1", "2-2", "2-3", "3-1"]
    assert everything(ended, after="2-2") == ["2-3", "3-1"]
    page = reader.read_events(ended.pk, limit=2)
    assert (ids(page), page.next, page.ended) == (["1-1", "2-1"], "2-1", False)
    last = reader.read_events(ended.pk, after=page.next)
    assert (last.next, last.ended) == ("3-1", True)
    beyond = reader.read_events(ended.pk, after="3-1")
    assert (beyond.events, beyond.next, beyond.ended) == ([], "3-1", True)
    invariants.check_sequence(invariants.all_events(ended.pk))


def test_a_closed_run_is_read_from_the_archive_alone(ended, redis):
    close(ended)
    redis.delete(keys.log(ended.pk))
    redis.xadd(keys.log(ended.pk), {"e": b'{"kind":"forged","at":"","data":{}}', "p": ""}, id="1-1")

    assert everything(ended) == ["1-1", "2-1", "2-2", "2-3", "3-1"]


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_reader_of_an_open_run_without_a_log_gets_its_lifecycle(account, state):
    run = builders.make_run(state, account=account)

    page = reader.read_events(run.pk)

    assert (ids(page), page.ended) == (["1-1", "2-1"][: run.fence], False)


def test_a_reader_of_a_lost_log_is_told_what_is_missing(ended, redis):
    redis.delete(keys.log(ended.pk))

    page = reader.read_events(ended.pk)

    assert (ids(page), page.ended) == (["1-1", "2-1", "gap", "3-1"], True)
    gap = page.events[2]["data"]
    assert (gap["after"], gap["before"], gap["state"], gap["fence"]) == ("2-1", "3-1", "succeeded", 3)
    assert everything(ended, after="2-2") == ["gap", "3-1"]
    assert everything(ended, after="2-3") == ["3-1"]


def test_a_reader_of_a_log_beyond_its_cap_is_told_of_the_missing_beginning(account):
    run = builders.make_run("running", account=account)
    lines = [*lifecycle_lines(run, 1, 2), *ticks(2, 300)]
    events.append_all(broker.client(), [Append(run.pk, 2, lines, opening=True, cap=100)])

    assert everything(run)[:2] == ["gap", "2-201"]
    assert everything(run, after="2-100")[:2] == ["gap", "2-201"]
    assert everything(run, after="2-200")[:2] == ["2-201", "2-202"]


def test_a_reader_without_redis_still_reads(ended, own_redis):
    own_redis.kill()

    assert everything(ended) == ["1-1", "2-1", "gap", "3-1"]


def test_a_run_that_is_not_there_has_no_events():
    with pytest.raises(NoSuchRun):
        reader.read_events(new_run_id())
    with pytest.raises(NoSuchRun):
        reader.read_events(new_run_id(), after="9-9")


@pytest.mark.parametrize("cursor", ["x", "1", "$", f"{2**64}-1"])
def test_a_cursor_that_nobody_gave_out_is_refused(ended, cursor):
    with pytest.raises(InvalidCursor):
        reader.read_events(ended.pk, after=cursor)


def test_a_cursor_beyond_the_end_is_at_the_end(ended):
    page = reader.read_events(ended.pk, after=f"{2**63}-1")

    assert (page.events, page.ended) == ([], True)


@pytest.mark.django_db(transaction=True)
def test_readers_see_every_event_while_the_log_is_closed_and_dropped(ended, redis):
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            seen = everything(ended)
            if seen != ["1-1", "2-1", "2-2", "2-3", "3-1"]:
                wrong.append(seen)
        connections.close_all()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    close(ended)
    redis.delete(keys.log(ended.pk))
    everything(ended)
    stop.set()
    for thread in readers:
        thread.join(30)

    assert wrong == []


def test_the_runs_a_worker_ended_are_read_whole(account, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        run = working.submit(account)
    (claimed,) = working.claim(run)
    events.append_all(broker.client(), [Append(run.pk, 2, lifecycle_lines(claimed.run, 2))])
    done = end_set(broker.client(), [Ending(working.entry_of(run), working.finish_of(claimed))])
    close(done.moved[0].run)

    invariants.check(account)


@pytest.fixture
def taken_over(account):
    """A run whose owner was lost: nobody knows the number of its last event, so its end has no `prev`."""
    run = builders.make_run("interrupted", account=account, archived=False)
    run.transitions.filter(fence=3).update(prev="")
    return run


def test_the_end_of_a_lost_owner_in_a_log_that_is_gone_does_not_pass_for_the_whole(taken_over, redis):
    assert everything(taken_over) == ["1-1", "2-1", "gap", "3-1"]
    assert close(taken_over) == [taken_over.pk]
    assert everything(taken_over) == ["1-1", "2-1", "gap", "3-1"]


def test_the_end_of_a_lost_owner_follows_what_its_log_still_holds(taken_over, redis):
    write(taken_over, *lifecycle_lines(taken_over, 1), *lifecycle_lines(taken_over, 2), *ticks(2, 3))

    assert close(taken_over) == [taken_over.pk]

    assert everything(taken_over) == ["1-1", "2-1", "2-2", "2-3", "3-1"]
