"""Secrets in the errors of agents, in junk entries and in refused requests: masked wherever an error is written."""

import json
import textwrap
from typing import Any

import httpx
import pytest
import redis as redis_py
from django.db import connection

from runs import keys
from runs.models import Run
from tests import builders, invariants
from tests.probes import eventually
from tests.processes.trials import kinds, until
from workers.models import DeadLetter

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

AGENTS = """
    import logging, os, sys
    import structlog
    from runs.agents import agent
    from runs.outcomes import Retryable
    from runs.retry import Backoff

    SAID = os.environ["SAID"]

    @agent("leak.raises", max_attempts=1)
    async def raises(ctx, run_input):
        local_key = SAID
        structlog.get_logger("leak").warning("leak.said", text=SAID)
        logging.getLogger("leak").warning("It said %s", SAID)
        error = RuntimeError(SAID)
        error.add_note(SAID)
        raise error

    @agent("leak.retries", max_attempts=2, backoff=Backoff(base=0))
    def retries(ctx, run_input):
        raise Retryable(SAID)

    @agent("leak.returns", output_schema={"type": "integer"}, max_attempts=1)
    async def returns(ctx, run_input):
        return {"password": os.environ["RETURNED"]}

    @agent("leak.isolated", isolation="process", max_attempts=1)
    async def isolated(ctx, run_input):
        print(SAID, flush=True)
        raise RuntimeError(SAID)

    @agent("leak.logs_and_breaks", max_attempts=1)
    async def logs_and_breaks(ctx, run_input):
        try:
            raise type(SAID, (Exception,), {})(SAID)
        except Exception:
            logging.getLogger("django.request").exception("Internal error of %s", SAID)
            raise
"""
SECRETS = {
    "bearer": ("upstream said 401 to Authorization: Bearer {}", "b3arer-9f8e7d6c5b4a"),
    "key": ("GET /v1/items?key={}&page=2", "k3yvalue0a1b2c3d"),
    "address": ("cannot reach redis://worker:{}@cache.internal:6379/0", "pa55-in-address"),
    "provider": ("Incorrect API key provided: {}", "sk-live0123456789abcd"),
    "json": ('{{"client_secret": "{}"}}', "j50n-client-value"),
    "environment": ("the tool {} is not known", "bare environment value"),
}
RETURNED = "returned-pa55word"


def said() -> str:
    return "\n".join(form.format(secret) for form, secret in SECRETS.values())


def found_in(text: str) -> list[str]:
    """Return the kinds of the secrets in a text, also where it is JSON."""
    return [kind for kind, (_, secret) in SECRETS.items() if secret in text]


def all_rows() -> str:
    """Return every row of every table as text; compressed event archives are read through the reader instead."""
    parts = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            parts += [f"{table}: {row!r}" for row in cursor.fetchall()]
    return "\n".join(parts)


def all_of_redis(client: redis_py.Redis, prefix: str) -> str:
    """Return everything under the test's prefix as text."""
    readers: dict[bytes, Any] = {
        b"stream": client.xrange,
        b"hash": client.hgetall,
        b"string": client.get,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"set": client.smembers,
        b"list": lambda key: client.lrange(key, 0, -1),
    }
    found = [(key, client.type(key)) for key in client.scan_iter(f"*{prefix}*")]
    return "\n".join(f"{key!r}: {readers[kind](key)!r}" for key, kind in found if kind in readers)


def answers(url: str, key: str, runs: list[Run]) -> str:
    """Return what the API says of the runs and of the account's dead letters."""
    paths = [f"runs/{run.pk}{part}" for run in runs for part in ("", "/events?after=0-0&limit=100")]
    with httpx.Client(base_url=f"{url}/api/v1/", headers={"Authorization": f"Bearer {key}"}, timeout=20) as client:
        replies = [client.get(path, headers={"Accept": "application/json"}) for path in ["dead-letters", *paths]]
    assert [reply.status_code for reply in replies] == [200] * len(replies)
    return "\n".join(reply.text for reply in replies)


def test_no_secret_of_an_error_is_readable_anywhere(stack, redis, isolation, tmp_path):
    account = builders.make_account()
    key = builders.make_api_key(account, scopes=[*builders.SCOPES, "admin"])[1]
    agents = tmp_path / "leaking_agents.py"
    agents.write_text(textwrap.dedent(AGENTS))
    env = {"AGENTOPS_APPS": str(agents), "SAID": said(), "RETURNED": RETURNED, "TOOL_TOKEN": SECRETS["environment"][1]}
    web, worker = stack.web(**env), stack.worker(**env)

    attempts = {"leak.raises": 1, "leak.retries": 2, "leak.returns": 1, "leak.isolated": 1, "leak.logs_and_breaks": 1}
    runs = [builders.make_run(account=account, agent=name, max_attempts=most) for name, most in attempts.items()]
    redis.xadd(keys.ready("default", "normal"), {"run_id": said(), "password": SECRETS["json"][1], "note": said()})
    until("failed", *runs, timeout=60)
    eventually(lambda: DeadLetter.objects.count() == len(runs) + 1, timeout=30)
    # While the logs are still in Redis, and again when they are archived.
    for _ in range(2):
        assert found_in(all_rows()) == []
        assert found_in(all_of_redis(redis, isolation)) == []
        assert found_in(answers(web.url, key, runs)) == []
        assert found_in(json.dumps([invariants.all_events(run.pk) for run in runs])) == []
        eventually(lambda: invariants.check(account), timeout=30)
    assert found_in(web.output() + worker.output()) == []

    assert "run.retrying" in kinds(runs[1])
    error = Run.objects.get(pk=runs[0].pk).error
    assert error["message"].count("[masked]") == len(SECRETS)
    assert error["traceback"].count("[masked]") == 2 * len(SECRETS)  # the message and its note
    assert "leak.said" in worker.output()
    assert "Internal error of upstream said 401" in worker.output()
    junk = DeadLetter.objects.get(run=None)
    assert "Authorization: Bearer [masked]" in junk.payload
    # The result is payload: it is kept as it is, and the sentence that quotes it is not.
    misfit = Run.objects.get(pk=runs[2].pk)
    assert RETURNED in (misfit.result_json or "")
    assert RETURNED not in json.dumps(misfit.error)


def test_a_refused_request_is_not_told_its_secrets_back(stack):
    account = builders.make_account()
    key = builders.make_api_key(account)[1]
    web = stack.web()
    headers = {"Authorization": f"Bearer {key}"}
    body = {"agent": "probe.sleep", "input": {"seconds": f"token={SECRETS['key'][1]}"}}

    refused = httpx.post(f"{web.url}/api/v1/runs", json=body, headers=headers)
    lost = httpx.get(f"{web.url}/api/v1/nothing/{SECRETS['provider'][1]}", headers=headers)

    assert (refused.status_code, lost.status_code) == (400, 404)
    assert "token=[masked]" in refused.json()["errors"][0]["message"]
    assert "sk-[masked]" in lost.json()["detail"]
    assert found_in(refused.text + lost.text + web.output()) == []
