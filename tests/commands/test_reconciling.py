"""grant and reconcile_quotas."""

import uuid

import pytest

from agentops import invariants
from quotas import append_only
from quotas.models import Account, AuditEntry, Hold, LedgerEntry
from runs.management.commands.reconcile_quotas import Command
from tests import builders


@pytest.fixture(autouse=True)
def _account(default_account):
    """The account that `grant` acts for."""


def test_grant_books_a_line_and_says_what_is_available(manage, default_account):
    ran = manage("grant", "--amount", 5_000_000, "--reason", "as agreed", "--json")

    assert ran.code == 0, ran.err
    line = LedgerEntry.objects.get()
    assert (line.kind, line.amount, line.reason) == ("grant", -5_000_000, "as agreed")
    assert line.actor.startswith("command")
    expected = {"account": "default", "id": line.pk, "kind": "grant", "amount": -5_000_000, "run": None}
    assert ran.json == expected | {"period": line.period, "spent": -5_000_000, "available": 105_000_000}
    assert AuditEntry.objects.get().action == "ledger.grant"


def test_grant_takes_the_other_kinds_and_a_run(manage, account):
    run = builders.make_run("succeeded", account=account, cost=900)

    for kind, amount in (("write-off", "400"), ("adjustment", "-50"), ("adjustment", "7")):
        options = ("--account", account.name, "--kind", kind, f"--amount={amount}", "--run", run.pk, "--reason", "r")
        ran = manage("grant", *options)
        assert ran.code == 0, ran.err
        assert f"{kind} of" in ran.out

    assert Account.objects.get(pk=account.pk).spent == 457
    assert invariants.money_drift([account]) == []


@pytest.mark.parametrize(
    "options",
    [
        ("--amount", "-5", "--reason", "r"),
        ("--amount", "0", "--reason", "r"),
        ("--amount", "1.5", "--reason", "r"),
        ("--amount", "9" * 17, "--reason", "r"),
        ("--amount", "٣", "--reason", "r"),
        ("--amount", str(2**53 + 1), "--reason", "r"),
        ("--amount", "5", "--reason", " "),
        ("--amount", "5", "--reason", "r", "--kind", "write-off"),
        ("--amount", "5", "--reason", "r", "--run", "x"),
        ("--amount", "5", "--reason", "r", "--run", str(uuid.uuid4())),
        ("--amount", "5", "--reason", "r", "--account", "nobody"),
    ],
)
def test_grant_refuses_nonsense_and_books_nothing(manage, options):
    assert manage("grant", *options).code == 2
    assert not LedgerEntry.objects.exists()


def test_reconcile_finds_nothing_where_all_is_well(manage, account):
    builders.make_run("succeeded", account=account, cost=5)

    ran = manage("reconcile_quotas", "--json")

    assert ran.code == 0, ran.err
    assert ran.json == {"accounts": 2, "differences": [], "leaks": [], "unprotected": [], "fixed": False}


def test_reconcile_prints_every_difference_and_exits_1_until_it_is_repaired(manage, account, other_account):
    Account.objects.filter(pk=account.pk).update(spent=3, held=4)
    Account.objects.filter(pk=other_account.pk).update(in_flight=2)
    run = builders.make_run("failed", account=other_account, cost=0)
    Hold.objects.filter(run_id=run.pk).update(state="active")

    ran = manage("reconcile_quotas", "--json")
    assert ran.code == 1
    drift = {(row["account"], row["kind"]): (row["stored"], row["counted"]) for row in ran.json["differences"]}
    assert drift.keys() >= {(account.name, "spent"), (account.name, "held"), (other_account.name, "in_flight")}
    assert drift[account.name, "spent"] == (3, 0)
    assert [(row["run"], row["state"]) for row in ran.json["leaks"]] == [(str(run.pk), "failed")]
    people = manage("reconcile_quotas")
    assert people.code == 1
    assert all(text in people.out for text in (account.name, "spent", str(run.pk), "--fix"))

    fixed = manage("reconcile_quotas", "--fix")

    assert fixed.code == 0
    assert "repaired" in fixed.out
    assert manage("reconcile_quotas").code == 0
    assert invariants.money_drift([account, other_account]) == []


def test_reconcile_looks_at_one_account_where_it_is_named(manage, account, other_account):
    Account.objects.filter(pk=other_account.pk).update(held=2)

    assert manage("reconcile_quotas", "--account", account.name).code == 0
    assert manage("reconcile_quotas", "--account", other_account.name).code == 1
    assert manage("reconcile_quotas", "--account", "nobody").code == 2


@pytest.mark.django_db(transaction=True)
def test_reconcile_says_that_it_looks_at_all_accounts():
    said = " ".join(Command().create_parser("manage.py", "reconcile_quotas").format_help().split())
    assert "look at this account only (default: at all accounts)" in said


def test_reconcile_puts_the_ledgers_protection_back(manage):
    append_only.remove()
    try:
        told = manage("reconcile_quotas", "--json")
        assert (told.code, set(told.json["unprotected"])) == (1, append_only.missing())
    finally:
        assert manage("reconcile_quotas", "--fix").code == 0

    assert append_only.missing() == set()
    assert manage("reconcile_quotas").code == 0
