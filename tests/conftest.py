"""Fixtures every test may use. Servers and environment come from tests/plugin.py, rows from tests/builders.py.

Isolation: each test has a key prefix of its own on the shared Redis server, and a probe log of its own. Rows are
rolled back, except in tests marked `django_db(transaction=True)`, which commit and pay for the clean-up.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from django.conf import settings as django_settings
from django.db import connection
from django.test import TransactionTestCase

from agentops.console.latest import Latest
from quotas.models import Account
from quotas.prices import PriceTable
from runs import broker, controls
from runs.services.estimating import forget_costs
from tests import builders, flushing, servers
from tests.plugin import SESSION
from tests.probes import Stack


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """Put SQLite's test database into a file: worker processes and other threads open it too."""
    entry = django_settings.DATABASES["default"]
    if entry["ENGINE"].endswith("sqlite3"):
        entry.setdefault("TEST", {})["NAME"] = str(django_settings.DATA_DIR / "test.sqlite3")


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Leave the test database to the end of its server: threads may still hold connections to it."""
    return True


@pytest.fixture(scope="session", autouse=True)
def _flush_with_ledger() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", flushing.flush_with_ledger)
        yield


def point_at(settings: Any, *, redis_url: str, prefix: str) -> None:
    """Point every user of Redis in this process at the server and the prefix."""
    settings.REDIS_URL = redis_url
    settings.AGENTOPS_PREFIX = prefix
    layer, cache = django_settings.CHANNEL_LAYERS["default"], django_settings.CACHES["default"]
    hosts = [{**layer["CONFIG"]["hosts"][0], "address": redis_url}]
    config = {**layer["CONFIG"], "hosts": hosts, "prefix": f"{prefix}:ops"}
    settings.CHANNEL_LAYERS = {"default": {**layer, "CONFIG": config}}
    settings.CACHES = {"default": {**cache, "LOCATION": redis_url, "KEY_PREFIX": f"{prefix}:cache"}}
    broker.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is about another database: locked rows where there are none, and SQLite's own ways."""
    unfit = "row_locks" if connection.vendor == "sqlite" else "sqlite_only"
    items[:] = [item for item in items if item.get_closest_marker(unfit) is None]


@pytest.fixture(autouse=True)
def isolation(settings: Any) -> Iterator[str]:
    """Give the test a key prefix and a probe log of its own. Returns the prefix."""
    prefix = f"t{secrets.token_hex(6)}"
    settings.AGENTOPS_PROBE_LOG = str(Path(settings.DATA_DIR).parent / f"probe-{prefix}.jsonl")
    point_at(settings, redis_url=settings.REDIS_URL, prefix=prefix)
    PriceTable.forget()
    forget_costs()
    controls.forget()
    Latest.forget()
    yield prefix
    broker.reset()


@pytest.fixture
def redis(settings: Any) -> Iterator[redis_py.Redis]:
    """A plain client of the test's Redis server, for looking from outside."""
    with redis_py.Redis.from_url(settings.REDIS_URL, socket_timeout=10, retry=None) as client:
        yield client


@pytest.fixture
def own_redis(request: pytest.FixtureRequest, settings: Any, isolation: str) -> Iterator[servers.Server]:
    """A Redis server for this test alone: it may be flushed, paused, killed and restarted."""
    kind = request.config.stash[SESSION].names["redis"]
    server = servers.STARTERS[kind]()
    point_at(settings, redis_url=server.url, prefix=isolation)
    yield server
    broker.reset()
    server.stop()


@pytest.fixture
def stack(transactional_db: None, isolation: str) -> Iterator[Stack]:
    """Real worker and web processes on the test's database and Redis. Ends them, then the rows are deleted."""
    with Stack() as made:
        yield made


@pytest.fixture
def live_stack(stack: Stack) -> Stack:
    """The stack with one worker that is ready."""
    stack.worker()
    return stack


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    """How often a trial of many clients at once is repeated (`--rounds`)."""
    return int(request.config.getoption("rounds"))


@pytest.fixture
def account(db: None) -> Account:
    return builders.make_account("acme")


@pytest.fixture
def other_account(db: None) -> Account:
    return builders.make_account("globex")


@pytest.fixture
def api_key(account: Account) -> str:
    """A raw key of `account` with every scope but admin."""
    return builders.make_api_key(account)[1]


@pytest.fixture
def owner(account: Account) -> Any:
    return builders.make_user("owner", account=account, role="owner")


@pytest.fixture
def member(account: Account) -> Any:
    return builders.make_user("member", account=account, role="member")


@pytest.fixture
def outsider(other_account: Account) -> Any:
    """A member of another account."""
    return builders.make_user("outsider", account=other_account, role="member")


@pytest.fixture
def operator(db: None) -> Any:
    """Staff with every permission of ours; no superuser, a member of no account."""
    return builders.make_operator("operator")
