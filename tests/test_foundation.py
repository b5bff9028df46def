"""The test foundation itself: what builders make is consistent, and child processes see what the test sees."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.hashers import check_password

from quotas.access import caller_for_key
from quotas.models import Account
from runs.models import Run
from runs.states import TERMINAL, RunState
from tests import builders, invariants
from tests.probes import ROOT, aeventually, child_env, eventually, manage

BUILDABLE = [RunState.QUEUED, RunState.RUNNING, *sorted(TERMINAL)]
COUNT_ACCOUNTS = "from quotas.models import Account as A; print('accounts', A.objects.count())"


@pytest.mark.parametrize("state", BUILDABLE)
def test_a_built_run_keeps_the_invariants_of_money(account, state):
    builders.make_run(state, account=account, estimate=500, cost=120)

    invariants.check_money([account])
    account.refresh_from_db()
    assert account.in_flight == (state not in TERMINAL)


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_built_run_can_end_without_an_attempt(account, state, started):
    run = builders.make_run(state, account=account, estimate=500, cost=120, started=started)

    invariants.check(account)
    assert run.attempts.count() == run.cost // 120 == int(started)


def test_the_invariants_notice_a_run_that_has_not_ended(account):
    builders.make_run("running", account=account)

    with pytest.raises(AssertionError, match="running"):
        invariants.check(account)


def test_the_invariants_notice_a_counter_that_drifted(account):
    builders.make_run("succeeded", account=account, cost=7)
    Account.objects.filter(pk=account.pk).update(spent=8)

    with pytest.raises(AssertionError, match="acme"):
        invariants.check(account)


def test_personas_have_passwords_and_roles(owner, member, outsider, operator):
    assert check_password(builders.PASSWORD, member.password)
    roles = {user.username: [m.role for m in user.memberships.all()] for user in (owner, member, outsider, operator)}
    assert roles == {"owner": ["owner"], "member": ["member"], "outsider": ["member"], "operator": []}
    assert operator.has_perm("runs.requeue_run")


def test_a_built_key_is_accepted(account, api_key):
    assert caller_for_key(api_key).account == account


def test_each_test_has_a_prefix_of_its_own(isolation, settings, redis):
    assert isolation == settings.AGENTOPS_PREFIX
    assert list(redis.scan_iter(f"*{isolation}*")) == []


@pytest.mark.django_db(transaction=True)
def test_a_child_process_sees_the_tests_database():
    builders.make_account()

    done = manage("shell", "--no-imports", "-c", COUNT_ACCOUNTS)

    assert done.returncode == 0, done.stderr
    assert "accounts 1" in done.stdout


@pytest.mark.django_db(transaction=True)
async def test_polling_in_an_async_test_sees_committed_rows():
    await Account.objects.acreate(name="committed")

    await aeventually(lambda: Account.objects.get(name="committed"))


def test_eventually_reports_the_last_failure():
    def never():
        assert not "this text"

    with pytest.raises(AssertionError, match="this text"):
        eventually(never, timeout=0.1)
    with pytest.raises(AssertionError, match="still False"):
        eventually(lambda: False, timeout=0.1)


def test_a_private_server_keeps_its_data_over_a_kill(own_redis, redis):
    redis.set("kept", "yes")

    own_redis.kill()
    own_redis.start()

    assert eventually(lambda: redis.get("kept")) == b"yes"


START_AND_DIE = """
import os
from tests import servers
server = servers.STARTERS["valkey9"]()
print(server.pid, server.folder, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_server_dies_with_the_process_that_started_it():
    command = [sys.executable, "-c", START_AND_DIE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    pid, folder = done.stdout.split()

    # A zombie that nobody reaps has no command line any more.
    eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())
    shutil.rmtree(folder)


def test_a_child_gets_this_tests_addresses(db, settings):
    env = child_env(AGENTOPS_LEASE_SECONDS="2")

    assert env["REDIS_URL"] == settings.REDIS_URL
    assert env["AGENTOPS_PREFIX"] == settings.AGENTOPS_PREFIX
    assert env["AGENTOPS_LEASE_SECONDS"] == "2"
    assert Run.objects.count() == 0


def test_the_admins_pages_pass_djangos_own_checks():
    """`manage.py check` looks at them only when the URLs were imported before: here they are in any case."""
    assert admin.site.check(apps.get_app_configs()) == []
    assert admin.site.is_registered(apps.get_model("runs.Run"))
