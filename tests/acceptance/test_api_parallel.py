"""Many clients at once, each on a connection of its own, against a real web process (F39, F41, F63)."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from quotas.models import Account, Hold
from runs.models import Run
from tests import builders, invariants
from tests.probes import WebServer

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
ESTIMATE = 1000  # of probe.ret, micro-units
CLIENTS = 50


@contextmanager
def clients(web: WebServer, count: int = CLIENTS) -> Iterator[list[httpx.Client]]:
    """Give clients with a connection each that is open before it is needed, and stays so."""
    with ExitStack() as opened:
        made = [opened.enter_context(httpx.Client(base_url=web.url, timeout=60)) for _ in range(count)]
        for client in made:
            assert client.get("/healthz").status_code == 200
        yield made


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
    """Submit over a connection of its own."""
    with httpx.Client(base_url=web.url, timeout=60) as own_connection:
        return submit_over(own_connection, key, **options)


def submit_over(client: httpx.Client, key: str, **options) -> httpx.Response:
    body = {"agent": "probe.ret", "input": {"value": 1}} | options.pop("body", {})
    headers = {"Authorization": f"Bearer {key}"} | options.pop("headers", {})
    return client.post("/api/v1/runs", json=body, headers=headers)


def statuses(answers: list[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def check_one_of_many(answers: list[httpx.Response], account: Account, refusal: int) -> list[dict]:
    """Insist that one was accepted and every other one got the refusal. Returns the refusals."""
    assert statuses(answers) == {202: 1, refusal: len(answers) - 1}
    accepted = next(answer.json()["id"] for answer in answers if answer.status_code == 202)
    assert [str(run_id) for run_id in Run.objects.filter(account=account).values_list("pk", flat=True)] == [accepted]
    assert [str(hold.run_id) for hold in Hold.objects.filter(account=account)] == [accepted]
    invariants.check_money([account])
    return [answer.json() for answer in answers if answer.status_code == refusal]


def test_f39_of_fifty_submits_with_money_for_one_exactly_one_is_accepted(stack, rounds):
    with clients(stack.web()) as made:
        for _ in range(rounds):
            account = builders.make_account(limit=ESTIMATE + ESTIMATE // 2, max_in_flight=1000)
            key = builders.make_api_key(account)[1]

            def one(number: int, key: str = key) -> httpx.Response:
                return submit_over(made[number], key, body={"input": {"value": number}})

            refusals = check_one_of_many(at_once(CLIENTS, one), account, 402)
            facts = {(body["code"], body["held"], body["available"], body["needed"]) for body in refusals}
            assert facts == {("quota_exceeded", ESTIMATE, ESTIMATE // 2, ESTIMATE)}


def test_f63_of_fifty_submits_at_the_edge_of_the_places_one_is_accepted_whatever_address_they_forge(stack, rounds):
    with clients(stack.web()) as made:
        for _ in range(rounds):
            account = builders.make_account(max_in_flight=1)
            key = builders.make_api_key(account)[1]

            def forged(number: int, key: str = key) -> httpx.Response:
                address = f"203.0.113.{number}"
                headers = {"X-Forwarded-For": address, "Forwarded": f"for={address}"}
                return submit_over(made[number], key, headers=headers)

            refusals = check_one_of_many(at_once(CLIENTS, forged), account, 429)
            facts = {(body["code"], body["in_flight"], body["limit"]) for body in refusals}
            assert facts == {("too_many_in_flight", 1, 1)}


def test_f41_one_idempotency_key_thirty_times_is_one_run(stack, account):
    web, key = stack.web(), builders.make_api_key(account)[1]
    same = {"Idempotency-Key": "the same"}

    answers = at_once(30, lambda _: submit(web, key, headers=same))
    others = at_once(30, lambda _: submit(web, key, headers=same, body={"input": {"value": 2}}))

    assert statuses(answers) == {202: 1, 200: 29}
    run = Run.objects.get()
    assert {answer.json()["id"] for answer in answers} == {str(run.pk)}
    assert Hold.objects.count() == 1
    assert statuses(others) == {422: 30}
    assert {answer.json()["code"] for answer in others} == {"idempotency_mismatch"}
    invariants.check_money([account])
