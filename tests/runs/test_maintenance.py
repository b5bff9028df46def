"""Maintenance: no new run by any way in, the operators' message for clients, and everything that is there goes on."""

import pytest

from quotas.models import AuditEntry
from runs.controls import begin_maintenance, check_maintenance, end_maintenance
from runs.errors import InvalidRequest, UnderMaintenance
from runs.models import Maintenance, Run
from runs.services import cancel_run
from tests import builders, working
from tests.api import RUNS, Api, problem

pytestmark = pytest.mark.django_db
MESSAGE = "The database moves, back at noon"


@pytest.fixture
def api(account):
    return Api(builders.make_api_key(account, scopes=["read", "submit", "cancel", "admin"])[1])


def begin(**fields):
    return begin_maintenance(**({"message": MESSAGE, "actor": "olga", "retry_after_seconds": 120} | fields))


def test_every_way_to_a_new_run_is_answered_503_with_the_message_and_when_to_come_again(api, account):
    failed = builders.make_run("failed", account=account)
    letter = builders.make_dead_letter(failed)
    begin()

    answers = [
        api.submit(),
        api.post(f"{RUNS}/{failed.pk}/retry"),
        api.post(f"/api/v1/dead-letters/{letter.pk}/requeue"),
    ]

    for answer in answers:
        assert MESSAGE in problem(answer, 503, "maintenance")["detail"]
        assert answer["Retry-After"] == "120"
    assert Run.objects.count() == 1
    letter.refresh_from_db()
    assert letter.state == "open"


def test_a_dry_run_says_that_it_would_be_refused(api, account):
    begin()

    answer = api.post(f"{RUNS}?dry_run=1", {"agent": "probe.ret", "input": {"value": 1}}).json()

    assert (answer["allowed"], [hit["code"] for hit in answer["limits_hit"]]) == (False, ["maintenance"])
    assert answer["limits_hit"][0]["retry_after"] == 120


def test_what_is_there_is_read_cancelled_and_claimed(api, account):
    queued, other = working.submit(account), working.submit(account)
    begin()

    assert api.get(f"{RUNS}/{queued.pk}").status_code == 200
    assert api.post(f"{RUNS}/{queued.pk}/cancel").status_code == 200
    assert len(working.claim(other)) == 1
    assert cancel_run(run_id=other.pk, actor="tester").what == "requested"


def test_the_queue_status_shows_it(api):
    before = api.get("/api/v1/queue/status").json()["maintenance"]
    begin()

    now = api.get("/api/v1/queue/status").json()["maintenance"]

    assert before is None
    assert (now["message"], now["retry_after_seconds"], now["set_by"]) == (MESSAGE, 120, "olga")


def test_it_ends_and_runs_are_accepted_again(api):
    begin()
    refused = api.submit()

    end_maintenance(actor="olga", reason="moved")

    assert (refused.status_code, api.submit().status_code) == (503, 202)


def test_each_change_is_audited_once(account):
    begin()
    begin()
    begin(retry_after_seconds=60)
    end_maintenance(actor="ivan", reason="moved")
    assert end_maintenance(actor="ivan") is None

    lines = list(AuditEntry.objects.order_by("pk").values_list("action", "before__retry_after_seconds", "actor"))
    assert lines == [("maintenance.on", None, "olga"), ("maintenance.on", 120, "olga"), ("maintenance.off", 60, "ivan")]


@pytest.mark.parametrize("fields", [{"message": " \n"}, {"message": "x" * 501}, {"retry_after_seconds": 0},
                                    {"retry_after_seconds": 10**9}])  # fmt: skip
def test_a_message_and_sensible_seconds_are_needed(account, fields):
    with pytest.raises(InvalidRequest):
        begin(**fields)

    assert not Maintenance.objects.exists()


def test_the_message_is_one_line_whatever_was_typed(account):
    begin(message="back\x00 at\r\nSet-Cookie: noon")

    with pytest.raises(UnderMaintenance) as refused:
        check_maintenance()
    assert "“back at Set-Cookie: noon”" in str(refused.value)
