"""The append script and its four answers (protocol 3.2, 3.3), on a real server."""

import threading

import pytest

from runs import broker, events, keys, lifecycle, scripts
from runs.events import Answer, Append, Line
from runs.ids import new_run_id
from tests import builders
from tests.probes import eventually


@pytest.fixture
def run_id():
    return new_run_id()


def lines(*ids, prev=""):
    """Return lines by id; `id<prev` names the id before."""
    made = []
    for text in ids:
        event_id, _, before = text.partition("<")
        made.append(Line(event_id, b'{"kind":"k","at":"","data":{}}', before or prev))
    return made


def append(run_id, fence, *ids, opening=False, **fields):
    answer, last = events.append_all(broker.client(), [Append(run_id, fence, lines(*ids), opening, **fields)])[0]
    return str(answer), last


def stored(run_id):
    """Return [id<prev] of a log."""
    found = broker.client().xrange(keys.log(run_id))
    return [f"{entry.decode()}<{fields[b'p'].decode()}" for entry, fields in found]


def test_the_opening_makes_the_log_and_the_rest_follows(run_id):
    assert append(run_id, 1, "1-1", opening=True) == ("OK", "1-1")
    assert append(run_id, 2, "2-1") == ("OK", "2-1")
    assert append(run_id, 2, "2-2", "2-3") == ("OK", "2-3")
    assert append(run_id, 3, "3-1<2-3") == ("OK", "3-1")

    assert stored(run_id) == ["1-1<", "2-1<1-1", "2-2<", "2-3<", "3-1<2-3"]


def test_without_a_log_only_an_opening_is_taken(run_id):
    assert append(run_id, 2, "2-1") == ("NOKEY", "")
    assert not broker.client().exists(keys.log(run_id))

    assert append(run_id, 2, "1-1", "2-1", opening=True) == ("OK", "2-1")


def test_what_is_stored_is_skipped(run_id):
    append(run_id, 1, "1-1", opening=True)
    append(run_id, 2, "2-1", "2-2")

    assert append(run_id, 1, "1-1", opening=True) == ("FENCED", "2-2")
    assert append(run_id, 2, "2-1", "2-2", "2-3") == ("OK", "2-3")
    assert append(run_id, 2, "2-2") == ("OK", "2-3")
    assert stored(run_id) == ["1-1<", "2-1<1-1", "2-2<", "2-3<"]


@pytest.mark.parametrize(
    ("fence", "ids"),
    [(2, ["2-3"]), (2, ["2-2", "2-4"]), (3, ["3-2"]), (4, ["4-1"]), (3, ["3-1", "3-3"]), (4, ["3-1", "4-2"])],
)
def test_a_hole_is_refused_and_nothing_of_the_batch_is_stored(run_id, fence, ids):
    append(run_id, 1, "1-1", opening=True)
    append(run_id, 2, "2-1")

    assert append(run_id, fence, *ids) == ("GAP", "2-1")
    assert stored(run_id) == ["1-1<", "2-1<1-1"]


def test_the_batch_of_a_fenced_writer_leaves_nothing_behind(run_id):
    append(run_id, 1, "1-1", opening=True)
    append(run_id, 3, "2-1", "3-1")
    broker.client().persist(keys.log(run_id))

    assert append(run_id, 2, "2-2", "2-3") == ("FENCED", "3-1")
    assert append(run_id, 2, "2-2", opening=True) == ("FENCED", "3-1")
    assert stored(run_id) == ["1-1<", "2-1<1-1", "3-1<2-1"]
    assert broker.client().ttl(keys.log(run_id)) == -1


def test_a_reopened_log_may_begin_later_and_says_what_was_last(run_id):
    assert append(run_id, 3, "1-1", "2-1", "3-1<2-57", "3-9", opening=True) == ("OK", "3-9")

    assert stored(run_id) == ["1-1<", "2-1<1-1", "3-1<2-57", "3-9<"]


def test_a_change_by_somebody_else_names_the_last_id_the_script_found(run_id):
    append(run_id, 1, "1-1", opening=True)
    append(run_id, 2, "2-1", "2-2", "2-3")
    append(run_id, 3, "3-1")

    assert stored(run_id)[-1] == "3-1<2-3"


def test_the_log_keeps_the_newest_up_to_its_cap_and_lives_for_its_time(run_id, settings):
    append(run_id, 1, "1-1", opening=True)
    append(run_id, 2, "2-1", *[f"2-{n}" for n in range(2, 301)], cap=100)

    kept = stored(run_id)
    assert (len(kept), kept[0], kept[-1]) == (100, "2-201<", "2-300<")
    assert 0 < broker.client().pttl(keys.log(run_id)) <= settings.EVENT_TTL_SECONDS * 1000


def test_an_append_rings_the_wakes_and_a_repeat_does_not(run_id, redis):
    with redis.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.run_wake(run_id), "session-wake")
        eventually(lambda: redis.pubsub_numsub(keys.run_wake(run_id))[0][1] == 1)
        append(run_id, 1, "1-1", opening=True, wakes=["session-wake"])
        append(run_id, 1, "1-1", opening=True, wakes=["session-wake"])
        append(run_id, 2, "2-1")
        got = []
        eventually(lambda: got.append(heard.get_message()) or len([m for m in got if m]) == 3)

    assert [(m["channel"].decode(), m["data"]) for m in got if m] == [
        (keys.run_wake(run_id), b"1-1"),
        ("session-wake", b"1-1"),
        (keys.run_wake(run_id), b"2-1"),
    ]


def test_many_runs_are_appended_to_in_one_call_and_one_answer_does_not_touch_another(run_id):
    other = new_run_id()
    append(other, 1, "1-1", opening=True)

    batch = [Append(run_id, 2, lines("2-1")), Append(other, 2, lines("2-1")), Append(other, 2, lines("2-9"))]

    assert [str(answer) for answer, _ in events.append_all(broker.client(), batch)] == ["NOKEY", "OK", "GAP"]


def test_a_server_that_forgot_the_scripts_learns_them_again(run_id, redis):
    redis.script_flush()

    assert append(run_id, 1, "1-1", opening=True) == ("OK", "1-1")
    assert stored(run_id) == ["1-1<"]


def test_parallel_writers_of_one_fence_leave_every_event_once_and_in_order(run_id):
    append(run_id, 1, "1-1", opening=True)
    append(run_id, 2, "2-1")
    answers = []

    def write(start):
        for first in range(start, 400, 3):
            while True:
                answer, last = append(run_id, 2, *[f"2-{n}" for n in range(max(2, first - 6), first + 1)])
                if answer == "OK":
                    break
                first_missing = events.split_id(last)[1] + 1
                append(run_id, 2, *[f"2-{n}" for n in range(first_missing, first + 1)])
        answers.append("done")

    threads = [threading.Thread(target=write, args=[start]) for start in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert answers == ["done"] * 3
    assert [text.split("<")[0] for text in stored(run_id)] == ["1-1", *[f"2-{n}" for n in range(1, 400)]]


# -- lifecycle: the rows' events, brought into the log ----------------------------------------------------------------
@pytest.mark.django_db
def test_an_announcement_fills_in_the_lifecycle_a_log_lacks(account):
    run = builders.make_run("succeeded", account=account)
    rows = list(run.transitions.order_by("fence"))

    assert lifecycle.announce(broker.client(), [rows[-1]]) == {run.pk: Answer.OK}
    assert stored(run.pk) == ["1-1<", "2-1<1-1", "3-1<2-1"]
    assert lifecycle.announce(broker.client(), [rows[0]]) == {run.pk: Answer.FENCED}


@pytest.mark.django_db
def test_an_announcement_keeps_what_the_owner_wrote(account):
    run = builders.make_run("succeeded", account=account)
    append(run.pk, 1, "1-1", opening=True)
    append(run.pk, 2, "2-1", "2-2")

    lifecycle.announce(broker.client(), [run.transitions.get(fence=3)])

    assert [text.split("<")[0] for text in stored(run.pk)] == ["1-1", "2-1", "2-2", "3-1"]


def test_a_pipeline_without_calls_sends_nothing():
    assert scripts.execute(broker.client(), lambda pipe: None) == []
