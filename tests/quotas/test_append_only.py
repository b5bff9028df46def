"""Ledger and audit log are append-only in the database itself, on every engine."""

import uuid

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quotas import append_only, audit
from quotas import services as money
from quotas.models import AuditEntry, LedgerEntry
from quotas.prices import set_price

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _made_by_no_migration(request, db):
    """Tables that were made straight from the models (`make mutants`) have no triggers."""
    if request.config.getoption("nomigrations"):
        append_only.install()


@pytest.fixture
def line(account):
    return money.adjust(account, amount=7, reason="private words", actor="jane")


def refused(act):
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
        act()
    return True


def test_a_line_cannot_be_deleted(line):
    assert refused(line.delete)
    assert refused(LedgerEntry.objects.all().delete)
    assert LedgerEntry.objects.get() == line


def test_no_figure_of_a_line_can_be_changed(line, other_account):
    changes = {
        "account": other_account,
        "run_id": uuid.uuid4(),
        "settle_key": uuid.uuid4(),
        "kind": "grant",
        "amount": 8,
        "period": "2020-01",
        "agent": "other",
        "overdraft": True,
        "price_book": set_price(model="m", prices={"input": 1}, actor="tester"),
        "at": timezone.now(),
        "id": line.pk + 1,
    }
    assert {*changes, *append_only.LEDGER.emptied} == {field.name for field in LedgerEntry._meta.local_concrete_fields}
    before = LedgerEntry.objects.values().get()

    for name, value in changes.items():
        assert refused(lambda name=name, value=value: LedgerEntry.objects.update(**{name: value})), name

    assert LedgerEntry.objects.values().get() == before


def test_its_texts_can_be_emptied_and_not_written(line):
    assert refused(lambda: LedgerEntry.objects.update(reason="other words"))
    assert refused(lambda: LedgerEntry.objects.update(reason="", amount=0))

    assert money.forget_who_and_why(line.account_id) == 1

    assert LedgerEntry.objects.values_list("actor", "reason", "amount").get() == ("", "", 7)
    assert refused(lambda: LedgerEntry.objects.update(actor="jane"))


def test_saving_a_line_as_it_is_changes_nothing_and_is_let_be(line):
    line.refresh_from_db()
    line.save()

    assert LedgerEntry.objects.get().amount == 7


@pytest.mark.parametrize("guard", append_only.GUARDS, ids=lambda guard: guard.table)
def test_where_emptying_at_once_can_be_refused_it_is(guard):
    guarded = guard.name("truncate") in guard.names

    assert guarded == (connection.vendor == "postgresql")
    if guarded:
        assert refused(lambda: connection.cursor().execute(f"TRUNCATE {guard.table}"))


@pytest.fixture
def entry():
    return audit.record(
        actor="jane",
        action="x.y",
        target_type="thing",
        target_id=1,
        before={"a": 1},
        after=[2],
        reason="words",
        request_id="r",
    )


def test_no_fact_of_an_audit_entry_can_be_changed(entry):
    changes = {
        "id": entry.pk + 1,
        "at": timezone.now(),
        "actor": "joe",
        "action": "x.z",
        "target_type": "other",
        "target_id": "2",
        "request_id": "s",
        "before": {"a": 2},
        "after": {},
        "reason": "other words",
    }
    assert set(changes) == {field.name for field in AuditEntry._meta.local_concrete_fields}
    before = AuditEntry.objects.values().get()

    for name, value in changes.items():
        assert refused(lambda name=name, value=value: AuditEntry.objects.update(**{name: value})), name
    assert refused(entry.delete)

    assert AuditEntry.objects.values().get() == before


def test_what_an_audit_entry_says_in_words_can_be_emptied(entry):
    assert audit.forget_texts(target_type="thing", target_ids=[1]) == 1

    entry.refresh_from_db()
    assert (entry.before, entry.after, entry.reason, entry.actor, entry.action) == (None, None, "", "jane", "x.y")


@pytest.mark.django_db(transaction=True)
def test_what_is_missing_is_found_and_can_be_put_back(account):
    assert append_only.missing() == set()
    append_only.remove()
    try:
        assert append_only.missing() == {name for guard in append_only.GUARDS for name in guard.names}
    finally:
        assert append_only.install()

    assert append_only.missing() == set()
    money.grant(account, amount=1, reason="gift", actor="jane")
    assert refused(LedgerEntry.objects.all().delete)


@pytest.mark.django_db(transaction=True)
def test_what_is_not_there_is_not_taken_away_on_a_server_that_might_not_allow_it():
    append_only.remove()
    try:
        with CaptureQueriesContext(connection) as queries:
            append_only.remove()
    finally:
        append_only.install()

    dropped = [query["sql"] for query in queries if query["sql"].startswith("DROP")]
    assert not dropped or connection.vendor != "mysql"
