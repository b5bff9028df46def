"""What all commands share: they say so when no instance is there, and which account is meant."""

import pytest
from django.conf import settings
from django.db import connection

from quotas.models import Account
from quotas.prices import PriceTable

COMMANDS = [
    ("create_api_key",),
    ("set_price", "m", "input=1"),
    ("submit_run", "probe.ret"),
    ("watch_run", "01890000-0000-7000-8000-000000000000"),
    ("cancel_runs", "01890000-0000-7000-8000-000000000000"),
    ("dead_letters", "list"),
    ("queue_status",),
    ("api_keys", "list"),
]


@pytest.mark.sqlite_only  # a file that is missing
@pytest.mark.parametrize("command", COMMANDS)
def test_no_instance_is_one_clear_sentence(manage, monkeypatch, command):
    monkeypatch.setitem(connection.settings_dict, "NAME", str(settings.DATA_DIR / "nowhere.sqlite3"))

    ran = manage(*command)

    assert ran.code == 4
    assert ran.out == ""
    assert ran.err.startswith("No AgentOps instance was found: there is no database")
    for word in ("./run up", "AGENTOPS_DATA_DIR", "DATABASE_URL", "REDIS_URL"):
        assert word in ran.err


@pytest.mark.parametrize("command", COMMANDS[2:5])
def test_redis_that_is_away_is_named_without_its_password(manage, monkeypatch, default_account, command):
    monkeypatch.setattr(settings, "REDIS_URL", "redis://user:secret@127.0.0.1:1/0")

    ran = manage(*command)

    assert ran.code == 4
    assert "Redis does not answer at redis://127.0.0.1:1/0" in ran.err
    assert "secret" not in ran.err


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[2], COMMANDS[5]])
def test_an_unknown_account_is_named_with_those_there_are(manage, default_account, command):
    ran = manage(*command, "--account", "nobody")
    assert ran.code == 2
    assert "There is no account 'nobody'. There are: default." in ran.err


def test_an_instance_is_prepared_by_hand(manage):
    ran = manage("bootstrap_instance", "prepare")

    assert (ran.code, ran.out.strip()) == (0, "prepared")
    assert Account.objects.filter(name="default").exists()
    assert PriceTable.current().knows("smollm2-135m-instruct")
