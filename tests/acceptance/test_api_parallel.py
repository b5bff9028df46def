"""Many clients at once, each on a connection of its own, against a real web process (F39, F41)."""

import threading
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from quotas.models import Hold
from runs.models import Run
from tests import builders, invariants
from tests.probes import WebServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]
ESTIMATE = 1000  # of probe.ret, micro-units


def at_once(count: int, call: Callable[[int], httpx.Response]) -> list[httpx.Response]:
    """Make `count` calls that start together and return their answers."""
    answers: list[httpx.Response | None] = [None] * count
    barrier = threading.Barrier(count)

    def work(number: int) -> None:
        barrier.wait(30)
        answers[number] = call(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert None not in answers
    return answers


def submit(web: WebServer, key: str, **options) -> httpx.Response:
    body = {"agent": "probe.ret", "input": {"value": 1}} | options.pop("body", {})
    headers = {"Authorization": f"Bearer {key}"} | options.pop("headers", {})
    with httpx.Client(timeout=60) as own_connection:
        return own_connection.post(f"{web.url}/api/v1/runs", json=body, headers=headers)


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def test_one_idempotency_key_thirty_times_is_one_run(stack, account):
    web, key = stack.web(), builders.make_api_key(account)[1]

    def repeat(_: int) -> httpx.Response:
        return submit(web, key, headers={"Idempotency-Key": "the same"})

    answers = at_once(30, repeat)

    # Whoever waited longer than three tries for the account is told to come again, and then gets the same run.
    answers = [repeat(0) if answer.status_code == 503 else answer for answer in answers]
    assert set(statuses(answers)) <= {200, 202}
    assert statuses(answers)[202] <= 1
    run = Run.objects.get()
    assert {answer.json()["id"] for answer in answers} == {str(run.pk)}
    assert Hold.objects.count() == 1
    other = submit(web, key, headers={"Idempotency-Key": "the same"}, body={"input": {"value": 2}})
    assert other.status_code == 422
    invariants.check_money([account])


def test_balance_for_one_admits_one_of_fifty(stack):
    account = builders.make_account(limit=ESTIMATE + ESTIMATE // 2, max_in_flight=1000)
    web, key = stack.web(), builders.make_api_key(account)[1]

    answers = at_once(50, lambda number: submit(web, key, body={"input": {"value": number}}))
    while any(answer.status_code == 503 for answer in answers):
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in answers if answer.status_code == 503)
        answers = [submit(web, key) if answer.status_code == 503 else answer for answer in answers]

    assert statuses(answers) == {202: 1, 402: 49}
    assert Run.objects.count() == Hold.objects.count() == 1
    account.refresh_from_db()
    assert account.held == ESTIMATE
    invariants.check_money([account])
