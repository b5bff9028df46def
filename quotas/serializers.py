"""How quota and ledger look to clients. All amounts are integers in micro-units."""

from typing import Any

from rest_framework import serializers

from quotas.models import Account, LedgerEntry


class QuotaOut(serializers.Serializer[dict[str, Any]]):
    """An account's figures in its current period."""

    account = serializers.CharField()
    limit = serializers.IntegerField()
    spent = serializers.IntegerField()
    held = serializers.IntegerField()
    available = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    max_in_flight = serializers.IntegerField()
    max_running = serializers.IntegerField(allow_null=True)
    period = serializers.ChoiceField(choices=Account.Period.choices)
    period_ends_at = serializers.DateTimeField(allow_null=True)


class LedgerEntryOut(serializers.ModelSerializer[LedgerEntry]):
    """One line of the ledger: a positive amount is a cost. `run` is null where a line is about none.

    `period` is the account's period it is booked in; `actor` and `reason` tell who wrote a manual line, and why.
    """

    run = serializers.UUIDField(source="run_id", allow_null=True)

    class Meta:
        model = LedgerEntry
        fields = [
            "id",
            "kind",
            "amount",
            "run",
            "at",
            "period",
            "agent",
            "overdraft",
            "price_book",
            "actor",
            "reason",
        ]


class LedgerPage(serializers.Serializer[dict[str, Any]]):
    """One page, newest first."""

    results = LedgerEntryOut(many=True)
    next = serializers.CharField(allow_null=True)


class TotalOut(serializers.Serializer[Any]):
    """What lies under one key: an agent, a session, a tag, a day, a run, or "<run>/<fence>". None: under no key."""

    key = serializers.CharField(allow_null=True)
    settled = serializers.IntegerField(help_text="The ledger's settle lines.")
    manual = serializers.IntegerField(help_text="Its grants, adjustments and write-offs.")
    accrued = serializers.IntegerField(help_text="What open runs have cost so far; in no line yet.")
    runs = serializers.IntegerField(help_text="Runs that have settled.")


class SpendingPage(serializers.Serializer[dict[str, Any]]):
    """One page of totals, and the sum of all of them; of tags the total counts a run once."""

    vars()["from"] = serializers.DateTimeField(source="start", help_text="Where the span that is added up begins.")
    to = serializers.DateTimeField(source="end", allow_null=True, help_text="Where it ends; null: it goes on.")
    total = TotalOut()
    results = TotalOut(many=True)
    next = serializers.CharField(allow_null=True)
