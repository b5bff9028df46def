"""bulk list, show and abort; dead_letters restore."""

import re
import uuid

import pytest

from quotas.models import AuditEntry
from tests import builders
from workers.bulk import operations
from workers.bulk.options import Options
from workers.models import BulkOperation, DeadLetter

pytestmark = pytest.mark.django_db


def started():
    return operations.start(
        kind="discard",
        source="letters",
        query={"state_is": "open"},
        options=Options(),
        actor="ann",
        reason="of no use",
        form_id=uuid.uuid4(),
    )


def test_operations_are_listed_shown_and_aborted(manage, default_account):
    none = manage("bulk", "list")
    builders.make_dead_letter(builders.make_run("failed", account=default_account))
    operation = started()

    (row,) = manage("bulk", "list", "--json").json["results"]
    shown = manage("bulk", "show", str(operation.pk), "--json").json
    listed, table = manage("bulk", "list", "--state", "running").out, manage("bulk", "show", str(operation.pk)).out
    aborted = manage("bulk", "abort", str(operation.pk), "--reason", "wrong", "--json")
    again = manage("bulk", "abort", str(operation.pk), "--reason", "wrong")

    assert (none.code, "no bulk operations" in none.out) == (0, True)
    assert row == shown
    assert (shown["state"], shown["total"], shown["reason"]) == ("running", 1, "of no use")
    assert "discard" in listed
    assert "of no use" in table
    assert (aborted.code, aborted.json["state"]) == (0, "aborted")
    assert (again.code, "aborted already" in again.err) == (2, True)
    assert AuditEntry.objects.filter(action="bulk.abort").count() == 1


def test_an_operation_is_shown_in_words(manage, default_account):
    builders.make_dead_letter(builders.make_run("failed", account=default_account))
    operation = started()
    options = {"canary": True, "pace": None, "waived": False, "edit": {"merge": {"a": 1}}}
    BulkOperation.objects.filter(pk=operation.pk).update(query={"case": "1", "state_is": "open"}, options=options)

    lines = manage("bulk", "show", operation.pk).out.splitlines()
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}

    assert (shown["query"], shown["options"]) == ("case=1, state_is=open", "canary=yes")
    assert (shown["canary_run"], shown["finished_at"], shown["input"]) == ("-", "-", "edited")
    assert re.fullmatch(r"[0-9-]{10} [0-9:]{8} UTC", shown["created_at"])
    assert "None" not in manage("bulk", "list").out


def test_what_is_no_operation_or_no_limit_is_refused(manage, default_account):
    assert manage("bulk", "show", "77").code == 2
    assert manage("bulk", "list", "--limit", "0").code == 2


def test_a_discarded_letter_is_restored(manage, default_account):
    letter = builders.make_dead_letter(builders.make_run("failed", account=default_account))
    manage("dead_letters", "discard", str(letter.pk), "--reason", "x")

    restored = manage("dead_letters", "restore", str(letter.pk), "--reason", "of use", "--json")
    again = manage("dead_letters", "restore", str(letter.pk), "--reason", "of use")

    assert (restored.code, restored.json["results"][0]["state"]) == (0, "open")
    assert DeadLetter.objects.get().state == "open"
    assert (again.code, "can be restored" in again.err) == (2, True)
