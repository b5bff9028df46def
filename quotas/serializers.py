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
    """One line of the ledger; `run` is null for manual entries."""

    run = serializers.UUIDField(source="run_id", allow_null=True)

    class Meta:
        model = LedgerEntry
        fields = ["id", "kind", "amount", "run", "at", "overdraft", "reason"]


class LedgerPage(serializers.Serializer[dict[str, Any]]):
    """One page, newest first."""

    results = LedgerEntryOut(many=True)
    next = serializers.CharField(allow_null=True)
