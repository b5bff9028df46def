"""A key is read where it is sent and nowhere else: not in logs, answers, the audit trail or Redis."""

import json

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from quotas.models import ApiKey, AuditEntry
from tests import builders
from tests.acceptance.test_sockets import code_of, cookie_of
from tests.probes import manage

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
def browser():
    with httpx.Client(headers={"Accept": "application/json"}, timeout=30) as client:
        yield client


def test_a_key_is_shown_by_nothing_that_it_is_sent_to(stack, redis, browser):
    account = builders.make_account("default")
    run = builders.make_run(account=account)
    row, raw = builders.make_api_key(account)
    secret = raw.split("_", 2)[2]
    web = stack.web()
    cookie = cookie_of(builders.make_user("root", account=account, is_staff=True, is_superuser=True))
    bearer = {"Authorization": f"Bearer {raw}"}
    odd = [
        {"headers": bearer},
        {"headers": {"Authorization": f"Bearer {raw}x"}},
        {"headers": {"Authorization": f"Basic {raw}"}},
        {"headers": bearer, "params": {"key": raw}},
        {"headers": bearer, "params": {raw: "1"}},
        {"headers": bearer, "params": {"state": raw}},
        {"headers": bearer, "params": {"after": raw}},
        {"headers": bearer | {"X-Request-ID": raw}},
        {"headers": bearer | {"X-AgentOps-Account": raw}},
        {"headers": cookie | {"X-AgentOps-Account": raw}},
        {"headers": bearer | {"Idempotency-Key": raw, "traceparent": raw, "Last-Event-ID": raw}},
    ]

    answers = [
        browser.get(f"{web.url}/api/v1/{path}", **one) for one in odd for path in ("runs", f"runs/{run.pk}/events")
    ]
    answers += [browser.get(f"{web.url}/api/v1/agents/{raw}", headers=bearer), httpx.get(f"{web.url}/nowhere/{raw}")]
    answers += [httpx.post(f"{web.url}/api/v1/runs", headers=bearer, json={"agent": raw, "input": {}})]
    answers += [httpx.post(f"{web.url}/api/v1/runs", headers=bearer, json={raw: 1})]
    answers += [httpx.post(f"{web.url}/api/v1/runs", headers=bearer, content=f'{{"{raw}": '.encode())]
    answers += [
        browser.get(f"{web.url}/admin/quotas/apikey/{path}", headers=cookie) for path in ("", f"{row.pk}/change/")
    ]
    for path in (
        f"/ws/runs/{run.pk}/?key={raw}",
        f"/ws/runs/{run.pk}/?ticket={raw}",
        f"/ws/runs/{run.pk}/?after={raw}",
    ):
        assert code_of(web, path, raw if "after" in path else "") in {4400, 4401}
    with pytest.raises(InvalidStatus):
        code_of(web, f"/ws/nothing/{raw}/", raw)
    issued = httpx.post(f"{web.url}/api/v1/runs/{run.pk}/ticket", headers=bearer).json()["ticket"]
    commands = [
        manage("api_keys", "list", "--all", "--json"),
        manage("api_keys", "rotate", raw, "--reason", "x", "--json"),
    ]
    made = json.loads(commands[1].stdout)["key"].split("_", 2)[2]

    assert not [a.request.url for a in answers if secret in a.text or secret in str(a.headers)]
    assert not [command.args for command in commands if secret in command.stdout + command.stderr]
    kept = str([*AuditEntry.objects.values(), *ApiKey.objects.values()])
    in_redis = str([(name, redis.dump(name)) for name in redis.scan_iter()])
    for hidden in (secret, made, issued):
        assert hidden not in web.output()
        assert hidden not in kept
        assert hidden not in in_redis
    assert cookie["Cookie"].partition("=")[2] not in in_redis
