"""The migration that books the lines that are there in the period they were written in."""

import datetime as dt
import importlib

import pytest
from django.apps import apps

from quotas import append_only
from quotas.drift import figures_of
from quotas.models import Account, LedgerEntry
from tests import builders

pytestmark = pytest.mark.django_db(transaction=True)
migration = importlib.import_module("quotas.migrations.0004_money")


@pytest.fixture
def write():
    """Return a function that writes a line at a moment, as an earlier version did."""
    append_only.remove()

    def written(account, at):
        line = LedgerEntry.objects.create(account=account, kind="settle", amount=1)
        LedgerEntry.objects.filter(pk=line.pk).update(at=dt.datetime.fromisoformat(at))
        return line.pk

    yield written
    append_only.install()


def test_each_line_gets_the_period_of_its_accounts_calendar(write):
    monthly = builders.make_account("monthly", timezone="Europe/Berlin")
    daily = builders.make_account("daily", period="day", timezone="America/New_York")
    endless = builders.make_account("endless", period="none")
    builders.make_account("idle")
    expected = {
        write(monthly, "2026-10-31T22:59:59.999999+00:00"): "2026-10",
        write(monthly, "2026-10-31T23:00:00+00:00"): "2026-11",
        write(monthly, "2027-02-28T23:00:00+00:00"): "2027-03",
        write(monthly, "2026-10-01T00:00:00+00:00"): "2026-10",
        write(daily, "2026-11-02T04:59:59.999999+00:00"): "2026-11-01",
        write(daily, "2026-11-02T05:00:00+00:00"): "2026-11-02",
        write(endless, "2026-11-02T05:00:00+00:00"): "",
    }

    migration.name_periods(apps, None)
    migration.name_periods(apps, None)

    assert dict(LedgerEntry.objects.values_list("pk", "period")) == expected


def test_what_was_spent_under_another_calendar_is_counted_anew(write):
    changed = builders.make_account("changed", period="month", spent=2, spent_period="")
    same = builders.make_account("same", period="month", spent=1, spent_period="2026-11")
    write(changed, "2026-10-10T00:00:00+00:00")
    write(changed, "2026-11-10T00:00:00+00:00")
    write(same, "2026-11-10T00:00:00+00:00")

    migration.name_periods(apps, None)
    migration.count_spent(apps, None)

    assert [figures.drift for figures in figures_of(Account.objects.all())] == [{}, {}]
    assert dict(Account.objects.values_list("name", "spent")) == {"changed": 0, "same": 1}
