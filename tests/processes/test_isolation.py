"""Handlers in processes of their own, in a real worker: killed in time, dead alone, and gone with their worker."""

import os
import time
from pathlib import Path

import pytest
from django.conf import settings

from quotas.models import LedgerEntry
from runs.services import cancel_run
from tests import builders, invariants
from tests.probes import eventually
from tests.processes.trials import kinds, phases, submit, until, until_begun

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
GRACE = {"AGENTOPS_HANDLER_GRACE_SECONDS": "1"}
STARTED_IN = 90.0  # an interpreter each, on a busy machine


def processes(*, besides: int) -> list[str]:
    """Return the commands of this test's processes but the worker: of handlers, wardens, and what they started."""
    mark = f"AGENTOPS_PREFIX={settings.AGENTOPS_PREFIX}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # not ours, or gone meanwhile
            continue
        if mark in environment and int(folder.name) not in {besides, os.getpid()}:
            found.append(command)
    return found


def test_a_stubborn_handler_is_killed_and_one_that_dies_harms_nobody(stack):
    account = builders.make_account()
    worker = stack.worker(**GRACE)
    beside = submit(account, "probe.emit", count=100, seconds=15)
    stubborn = submit(account, "probe.isolated", do="spawn", seconds=300)
    dying = submit(account, "probe.isolated", do="segv")
    until_begun(beside, stubborn, dying, timeout=STARTED_IN)
    eventually(lambda: sum("sleep 300" in command for command in processes(besides=worker.pid)) == 2, timeout=30)

    cancel_run(run_id=stubborn.pk, actor="test")
    asked = time.monotonic()

    until("cancelled", stubborn, timeout=30)
    assert time.monotonic() - asked < 20  # it would go on for five minutes
    assert phases(stubborn) == ["start", "cancelled"]
    until("failed", dying, timeout=60)
    dying.refresh_from_db()
    assert (dying.error["class"], dying.error["type"]) == ("agent_bug", "ProcessDied")
    assert "SIGSEGV" in dying.error["message"]
    assert "Segmentation fault" in dying.error["message"]
    until("succeeded", beside, timeout=60)
    eventually(lambda: processes(besides=worker.pid) == [], timeout=30)
    assert kinds(stubborn) == ["run.queued", "run.started", "run.cancelled"]
    assert LedgerEntry.objects.filter(run_id=dying.pk).count() == 1
    eventually(lambda: invariants.check(account), timeout=30)
    assert "handler.killed" in worker.output()
    assert "handler.abandoned" not in worker.output()
    assert worker.term() == 0


def test_a_killed_worker_leaves_no_process(stack):
    account = builders.make_account()
    victim = stack.worker()
    runs = [submit(account, "probe.isolated", do=do, seconds=300) for do in ("spawn", "block")]
    until_begun(*runs, timeout=STARTED_IN)
    eventually(lambda: sum("sleep 300" in command for command in processes(besides=victim.pid)) == 2, timeout=30)

    victim.kill()

    eventually(lambda: processes(besides=victim.pid) == [], timeout=30)
    stack.worker()
    until("interrupted", *runs, timeout=60)
    eventually(lambda: invariants.check(account), timeout=30)
